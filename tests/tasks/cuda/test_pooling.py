"""The gradient of max-pooling equals torch's own, on the CPU."""

from __future__ import annotations

import pytest
import torch
from rekindle.tasks.cuda.pooling import max_pool2d_backward


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "dilation", "ceil"),
    [
        ((3, 3), (2, 2), (1, 1), (1, 1), False),
        ((2,), (), (0,), (1,), False),  # one number is of both sides, and no stride is the kernel's
        ((3, 2), (1, 2), (1, 0), (1, 1), False),
        ((2, 3), (3, 1), (0, 1), (2, 3), False),
        ((3,), (2,), (1,), (2,), True),
        ((2,), (3,), (0,), (1,), True),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 9, 10), (3, 8, 7)])
def test_it_is_torchs(
    kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], ceil: bool, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    how = (kernel, stride, padding, dilation, ceil)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    y, indices = torch.ops.aten.max_pool2d_with_indices(x, *how)
    g = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    (wanted,) = torch.autograd.grad(y, x, g)
    torch.testing.assert_close(max_pool2d_backward(g, x, *how, indices), wanted, rtol=1e-12, atol=1e-12)
