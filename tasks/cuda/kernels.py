"""Triton kernels for products and sums.

Each program computes a tile of one member's result, in an order that depends only on the member's own shape.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(
    a,
    b,
    bias,
    out,
    rows,
    columns,
    inner,
    a0,
    a1,
    a2,
    b0,
    b1,
    b2,
    bias0,
    bias1,
    bias2,
    out0,
    out1,
    out2,
    alpha,
    beta,
    has_bias: tl.constexpr,
    tile_rows: tl.constexpr,
    tile_columns: tl.constexpr,
    tile_inner: tl.constexpr,
    number_type: tl.constexpr,
):
    """Compute a tile of one member's beta bias + alpha a b.

    The matrices are (P, rows, inner), (P, inner, columns) and (P, rows, columns). Names with numbers are their strides.
    """
    tiles_across = tl.cdiv(columns, tile_columns)
    tiles = tl.cdiv(rows, tile_rows) * tiles_across
    program = tl.program_id(0)
    member, tile = (program // tiles).to(tl.int64), program % tiles
    i = ((tile // tiles_across) * tile_rows + tl.arange(0, tile_rows)).to(tl.int64)  # offsets can exceed 2^31
    j = ((tile % tiles_across) * tile_columns + tl.arange(0, tile_columns)).to(tl.int64)
    in_rows, in_columns = (i < rows)[:, None], (j < columns)[None, :]
    result = tl.zeros((tile_rows, tile_columns), number_type)
    for start in range(0, inner, tile_inner):
        k = (start + tl.arange(0, tile_inner)).to(tl.int64)
        left = tl.load(
            a + member * a0 + i[:, None] * a1 + k[None, :] * a2, in_rows & (k < inner)[None, :], other=0.0
        ).to(number_type)
        right = tl.load(
            b + member * b0 + k[:, None] * b1 + j[None, :] * b2, (k < inner)[:, None] & in_columns, other=0.0
        ).to(number_type)
        result = tl.dot(left, right, result, input_precision="ieee", out_dtype=number_type)
    result = result * alpha
    if has_bias:
        added = tl.load(
            bias + member * bias0 + i[:, None] * bias1 + j[None, :] * bias2, in_rows & in_columns, other=0.0
        )
        result += added.to(number_type) * beta
    at = out + member * out0 + i[:, None] * out1 + j[None, :] * out2
    tl.store(at, result.to(out.dtype.element_ty), in_rows & in_columns)


@triton.jit
def total(
    x,
    out,
    reduced,
    inner,
    chunk,
    chunks,
    scale,
    lanes: tl.constexpr,
    halvings: tl.constexpr,
    tile_inner: tl.constexpr,
    number_type: tl.constexpr,
):
    """Sum one chunk of the middle dimension, times scale.

    x is (outer, reduced, inner), and the result (outer, chunks, inner). Numbers are added in 2^halvings lanes. Then the
    upper half of the lanes is added to the lower half until one is left, so the order does not depend on the layout of
    lanes.
    """
    across = tl.cdiv(inner, tile_inner)
    program = tl.program_id(0)
    j = (program % across) * tile_inner + tl.arange(0, tile_inner)
    part = ((program // across) % chunks).to(tl.int64)
    outer = (program // across // chunks).to(tl.int64)
    first = part * chunk
    last = tl.minimum(first + chunk, reduced)
    sums = tl.zeros((lanes, tile_inner), number_type)
    for start in range(first, last, lanes):
        i = start + tl.arange(0, lanes)
        at = x + (outer * reduced + i[:, None]) * inner + j[None, :]
        sums += tl.load(at, (i < last)[:, None] & (j < inner)[None, :], other=0).to(number_type)
    for halving in tl.static_range(halvings):
        sums = tl.sum(tl.reshape(sums, (2, lanes >> (halving + 1), tile_inner)), 0)
    result = tl.reshape(sums, (tile_inner,)) * scale
    tl.store(out + (outer * chunks + part) * inner + j, result.to(out.dtype.element_ty), j < inner)
