"""The gradient of overlapping max-pooling, added in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, arange, where


def max_pool2d_backward(
    g: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """Return the gradient (..., H, W) of max-pooling with respect to x.

    Torch's own operator adds the gradients of overlapping windows in any order. Here they are added one position within
    the window after the other. At the same position, no two windows have the same pixel.
    """
    (height, width), (rows, columns) = x.shape[-2:], g.shape[-2:]
    kernel, pad, gap = (list(pair) * (2 // len(pair)) for pair in (kernel_size, padding, dilation))
    step = list(stride) * (2 // len(stride)) if stride else kernel
    sides = [max(n + pad[i], step[i] * count + gap[i] * kernel[i]) for i, (n, count) in
             enumerate(((height, rows), (width, columns)))]  # fmt: skip
    room = g.new_zeros(*x.shape[:-2], *(side + p for side, p in zip(sides, pad, strict=True)))
    at_rows, at_columns = (arange(count, device=g.device) * step[i] - pad[i] for i, count in enumerate((rows, columns)))
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            place = (at_rows + i * gap[0])[:, None] * width + (at_columns + j * gap[1])
            top, left = i * gap[0], j * gap[1]
            part = room[..., top : top + step[0] * rows : step[0], left : left + step[1] * columns : step[1]]
            part += where(indices == place, g, 0)
    return room[..., pad[0] : pad[0] + height, pad[1] : pad[1] + width].contiguous()
