"""Batch-invariant replacements for torch's operators on CUDA.

Of all operators that training uses, only these depend on the number of members, or add in an order that changes from
call to call: batched products, sums, means, and the gradient of overlapping max-pooling. The arguments are those of
torch's own operators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import kernels
from .pooling import max_pool2d_backward

CHUNK = 8192  # summands of one program; a longer sum is a sum of partial sums
LANES = 128  # lanes that add in parallel
COMPILED = {"enable_fp_fusion": True}  # explicit, since bits depend on it and Triton's defaults may change
HALVES = (torch.float16, torch.bfloat16)  # types that are summed as float32
Dims = Sequence[int] | None


def bmm(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return the products a b, (P, rows, columns).

    The factors are (P, rows, inner) and (P, inner, columns).
    """
    return _product(None, a, b, 0.0, 1.0, out)


def baddbmm(
    bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, out: Tensor | None = None
) -> Tensor:
    """Return beta bias + alpha a b, see `bmm`.

    The bias is (P, rows, columns), or broadcasts to it.
    """
    return _product(bias, a, b, beta, alpha, out)


def baddbmm_(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """Overwrite the bias with the result of `baddbmm`."""
    if bias.shape != (*a.shape[:2], b.shape[2]):
        raise RuntimeError(f"a bias that is replaced has the product's shape, but it has {[*bias.shape]}")
    return _product(bias, a, b, beta, alpha, bias)


def _product(bias: Tensor | None, a: Tensor, b: Tensor, beta: float, alpha: float, out: Tensor | None = None) -> Tensor:
    if a.ndim != 3 or b.ndim != 3 or a.shape[0] != b.shape[0] or a.shape[2] != b.shape[1]:
        raise RuntimeError(f"batched products need (P, n, k) and (P, k, m), but got {[*a.shape]} and {[*b.shape]}")
    if len(kinds := {x.dtype for x in (a, b, bias) if x is not None}) > 1:
        raise RuntimeError(f"batched products need factors and a bias of one type, but got {kinds}")
    (members, rows, inner), columns = a.shape, b.shape[2]
    shape = members, rows, columns
    added = None if bias is None or beta == 0 else bias.expand(shape)
    if a.is_complex() or (a.dtype is torch.float64 and not (alpha == 1 and beta in (0, 1))):  # kernels scale by float32
        product = torch.stack([x @ y for x, y in zip(a, b, strict=True)]) if members else a.new_empty(shape)
        return _into(out, product * alpha if added is None else beta * added + alpha * product)
    if out is None:
        out = a.new_empty(shape)
    elif out.shape != shape:
        out.resize_(shape)
    if out.numel() == 0:
        return out
    tile_rows, tile_columns = (min(64, max(16, triton.next_power_of_2(n))) for n in (rows, columns))
    tile_inner = min(32, max(16, triton.next_power_of_2(inner)))
    grid = (members * triton.cdiv(rows, tile_rows) * triton.cdiv(columns, tile_columns),)
    tensors = (a, b, out if added is None else added, out)
    with torch.cuda.device_of(out):
        kernels.product[grid](
            *(*tensors, rows, columns, inner, *(stride for x in tensors for stride in x.stride())),
            *(float(alpha), float(beta)),
            has_bias=added is not None,
            tile_rows=tile_rows,
            tile_columns=tile_columns,
            tile_inner=tile_inner,
            number_type=_accumulator_type(a),
            **COMPILED,
        )
    return out


def _into(out: Tensor | None, result: Tensor) -> Tensor:
    """Return a result, in `out` if it is given."""
    if out is None:
        return result
    if out.shape != result.shape:
        out.resize_(result.shape)
    return out.copy_(result)


def sum_dims(
    x: Tensor, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """Return the sum over these dimensions; over all if there are none."""
    numbers = x.is_floating_point() or x.is_complex()
    wanted = dtype or (x.dtype if numbers else torch.int64) if out is None else out.dtype
    return _into(out, _reduce(x.to(wanted), dims, keepdim))


def mean_dims(
    x: Tensor, dims: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """Return the mean over these dimensions; over all if there are none."""
    wanted = dtype or x.dtype if out is None else out.dtype
    if not (wanted.is_floating_point or wanted.is_complex):
        raise RuntimeError(f"mean needs numbers of a floating or complex kind, but got {wanted}")
    count = math.prod(x.shape[dim] for dim in _dims(x, dims))
    if wanted is torch.float32 and count:
        return _into(out, _reduce(x.to(wanted), dims, keepdim, 1 / count))
    wide = torch.float32 if wanted in HALVES else wanted
    return _into(out, (_reduce(x.to(wide), dims, keepdim) / count).to(wanted))


def _dims(x: Tensor, dims: Dims) -> list[int]:
    """Return the dimensions to reduce, in order."""
    if not dims or not x.ndim:
        return list(range(x.ndim))
    if wrong := [dim for dim in dims if not -x.ndim <= dim < x.ndim]:
        raise IndexError(f"a dimension must be from {-x.ndim} to {x.ndim - 1}, but got {wrong[0]}")
    reduced = sorted({dim % x.ndim for dim in dims})
    if len(reduced) < len(dims):
        raise RuntimeError(f"a dimension is reduced once, but got {[*dims]}")
    return reduced


def _reduce(x: Tensor, dims: Dims, keepdim: bool, scale: float = 1.0) -> Tensor:
    if x.is_complex():
        return torch.view_as_complex(_reduce(torch.view_as_real(x), _dims(x, dims), keepdim)) if x.ndim else x.clone()
    reduced = _dims(x, dims)
    kept = [dim for dim in range(x.ndim) if dim not in reduced]
    shape = [1 if dim in reduced else n for dim, n in enumerate(x.shape)] if keepdim else [x.shape[i] for i in kept]
    if reduced and reduced[-1] - reduced[0] == len(reduced) - 1:  # adjacent dimensions
        outer, inner = math.prod(x.shape[: reduced[0]]), math.prod(x.shape[reduced[-1] + 1 :])
    else:
        x, outer, inner = x.permute(kept + reduced), math.prod(x.shape[i] for i in kept), 1
    count, dtype = x.numel() // max(1, outer * inner), x.dtype
    x = x.float() if dtype in HALVES else x
    return _total(x.contiguous().view(outer, count, inner), scale).view(shape).to(dtype)


def _total(x: Tensor, scale: float) -> Tensor:
    """Return the sum of x (outer, n, inner) over n, times scale."""
    outer, count, inner = x.shape
    chunks = max(1, triton.cdiv(count, CHUNK))
    out = x.new_empty(outer, chunks, inner)
    if out.numel() == 0:
        return out.new_zeros(outer, inner)
    lanes = min(LANES, max(2, triton.next_power_of_2(count)))
    across = 1 if inner == 1 else 16
    with torch.cuda.device_of(x):
        kernels.total[(outer * chunks * triton.cdiv(inner, across),)](
            *(x, out, count, inner, CHUNK, chunks, scale if chunks == 1 and x.dtype is torch.float32 else 1),
            lanes=lanes,
            halvings=lanes.bit_length() - 1,
            tile_inner=across,
            number_type=_accumulator_type(x),
            **COMPILED,
        )
    return out.view(outer, inner) if chunks == 1 else _total(out, scale)


def _accumulator_type(x: Tensor) -> object:
    """Return the type in which a kernel accumulates."""
    if not x.is_floating_point():
        return tl.int64
    return tl.float64 if x.dtype is torch.float64 else tl.float32


REPLACEMENTS = {
    "bmm": bmm,
    "bmm.out": bmm,
    "baddbmm": baddbmm,
    "baddbmm.out": baddbmm,
    "baddbmm_": baddbmm_,
    "sum.dim_IntList": sum_dims,
    "sum.IntList_out": sum_dims,
    "mean.dim": mean_dims,
    "mean.out": mean_dims,
    "max_pool2d_with_indices_backward": max_pool2d_backward,
}
