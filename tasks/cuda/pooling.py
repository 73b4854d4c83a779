"""The gradient of overlapping max-pooling, added in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

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
    kernel, pad, gap, step = (
        list(pair) * (2 // len(pair)) for pair in (kernel_size, padding, dilation, stride or kernel_size)
    )
    (height, width), (rows, columns) = x.shape[-2:], g.shape[-2:]
    tops = arange(rows, device=g.device) * step[0] - pad[0]  # of the windows
    lefts = arange(columns, device=g.device) * step[1] - pad[1]
    # The image, its padding, and what windows reach beyond. Whatever is added outside of the image is cut off.
    ends = [max(n + 2 * pad[i], step[i] * g.shape[i - 2] + gap[i] * kernel[i]) for i, n in enumerate((height, width))]
    canvas = g.new_zeros(*x.shape[:-2], *ends)
    for i, j in product(range(kernel[0]), range(kernel[1])):
        down, right = i * gap[0], j * gap[1]
        pixels = (tops + down)[:, None] * width + (lefts + right)  # of each window, numbered as in `indices`
        part = canvas[..., down : down + step[0] * rows : step[0], right : right + step[1] * columns : step[1]]
        part += where(indices == pixels, g, 0)
    return canvas[..., pad[0] : pad[0] + height, pad[1] : pad[1] + width].contiguous()
