"""Matrix products in blocks that fit into a processor's vector registers.

Matrix libraries are made for large matrices. For 64 columns they spend a quarter of the time on copying the factors
into another order; these products read the factors where they lie.

Each number of a product is the sum of its terms in order, rounded once per term (by a fused multiply-add). It therefore
depends neither on the other rows and columns, nor on the number of members, nor on the width of vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple

import llvmlite.binding
import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen
from numba.extending import intrinsic

from .decorators import inner, is_cached

BYTES = 4  # of a float32
WORD, NUMBER, LANE = ir.IntType(64), ir.FloatType(), ir.IntType(32)


class Block(NamedTuple):
    """A part of a product that is kept in registers.

    Attributes:
        rows: number of rows.
        vectors: number of vectors in a row.
        lanes: number of numbers in a vector.
    """

    rows: int
    vectors: int
    lanes: int


def _features() -> str:
    """Return the processor features that numba compiles for."""
    features = vars(numba.config)["CPU_FEATURES"]
    return codegen.get_host_cpu_features() if features is None else features


def _largest() -> Block:
    """Return the largest block that fits into the registers."""
    features = _features()
    if "+avx512f" in features:  # 32 registers
        return Block(6, 4, 16)
    if "+avx" in features:  # 16 registers
        return Block(6, 2, 8)
    return Block(6, 4, 4) if "+neon" in features else Block(6, 2, 4)


TALL, WIDE, LANES = _largest()
FEW = 4  # lanes for matrices of few columns
FUSED = "+fma" in _features() or "+neon" in _features()  # otherwise the C library would compute fused multiply-adds


class _Code:
    """Instructions on numbers in memory, whose addresses are 64-bit integers."""

    def __init__(self, builder: ir.IRBuilder):
        self._builder = builder

    def load(self, address: Any, ir_type: ir.Type) -> Any:
        """Return the number or vector that begins at an address."""
        value = self._builder.load(self._builder.inttoptr(address, ir_type.as_pointer()))
        value.align = BYTES
        return value

    def store(self, address: Any, value: Any) -> None:
        """Write a number or a vector to an address."""
        self._builder.store(value, self._builder.inttoptr(address, value.type.as_pointer())).align = BYTES

    def series(self, address: Any, step: Any, count: int) -> list[Any]:
        """Return `count` addresses, a step apart."""
        return [self._builder.add(address, self._builder.mul(step, WORD(i))) for i in range(count)]

    def picked(self, a: Any, b: Any, lanes: Sequence[int]) -> Any:
        """Return a vector of lanes of a and then b."""
        return self._builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(LANE, len(lanes)), list(lanes)))

    def repeated(self, number: Any, vector_type: ir.VectorType) -> Any:
        """Return a vector with the same number in every lane."""
        nothing = ir.Constant(vector_type, ir.Undefined)
        return self.picked(self._builder.insert_element(nothing, number, LANE(0)), nothing, [0] * vector_type.count)

    def multiply_add(self, x: Any, y: Any, total: Any) -> Any:
        """Return x y + total, rounded once if possible."""
        if not FUSED:
            return self._builder.fadd(self._builder.fmul(x, y), total)
        signature = ir.FunctionType(total.type, [total.type] * 3)
        name = f"llvm.fma.v{total.type.count}f32"
        return self._builder.call(cgutils.get_or_insert_function(self._builder.module, signature, name), [x, y, total])


def _filling(block: Block) -> Any:
    """Return a function that fills in one block of a product.

    Its arguments are (x, x0, x1, w, w0, out, out0, terms): the addresses of the block's first row in x, of its first
    column in w and of its first number in the result, each followed by strides in bytes, and the number of terms, at
    least 1. In the notation of NumPy:

        sums = zeros((rows, vectors * lanes))
        for k in range(terms):
            sums += x[:rows, k, None] * w[k, :vectors * lanes]
        out[:rows, :vectors * lanes] = sums
    """
    vector_type = ir.VectorType(NUMBER, block.lanes)
    places = list(product(range(block.rows), range(block.vectors)))
    vector = WORD(BYTES * block.lanes)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        code, (x, x0, x1, w, w0, out, out0, terms) = _Code(builder), arguments
        before = builder.block
        loop, after = (builder.append_basic_block(name) for name in ("terms", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k, column, row = (builder.phi(WORD) for _ in range(3))
        sums = {place: builder.phi(vector_type) for place in places}
        weights = [code.load(address, vector_type) for address in code.series(row, vector, block.vectors)]
        factors = [code.load(address, NUMBER) for address in code.series(column, x0, block.rows)]
        factors = [code.repeated(factor, vector_type) for factor in factors]
        more = {(i, n): code.multiply_add(factors[i], weights[n], sums[i, n]) for i, n in places}
        changes: list[Any] = [
            (sums[place], ir.Constant(vector_type, [0.0] * block.lanes), more[place]) for place in places
        ]
        steps = [(k, WORD(0), WORD(1)), (column, x, x1), (row, w, w0)]
        changes += [(phi, first, builder.add(phi, step)) for phi, first, step in steps]
        for phi, first, following in changes:
            phi.add_incoming(first, before)
            phi.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", builder.add(k, WORD(1)), terms), loop, after)
        builder.position_at_end(after)
        for i, address in enumerate(code.series(out, out0, block.rows)):
            for n, place in enumerate(code.series(address, vector, block.vectors)):
                code.store(place, more[i, n])
        return context.get_dummy_value()

    @intrinsic
    def fill(typing: Any, x: Any, x0: Any, x1: Any, w: Any, w0: Any, out: Any, out0: Any, terms: Any) -> Any:
        return types.void(*[types.int64] * 8), generate

    return fill


def _panel(vectors: int, lanes: int) -> Any:
    """Return a function that fills in vectors of every row."""
    fill, fill_4, fill_2, fill_1 = (_filling(Block(rows, vectors, lanes)) for rows in (TALL, 4, 2, 1))

    @inner()
    def panel(x, x0, x1, w, w0, out, out0, rows, terms):
        r = 0
        while r + TALL <= rows:
            fill(x + r * x0, x0, x1, w, w0, out + r * out0, out0, terms)
            r += TALL
        if r + 4 <= rows:
            fill_4(x + r * x0, x0, x1, w, w0, out + r * out0, out0, terms)
            r += 4
        if r + 2 <= rows:
            fill_2(x + r * x0, x0, x1, w, w0, out + r * out0, out0, terms)
            r += 2
        if r < rows:
            fill_1(x + r * x0, x0, x1, w, w0, out + r * out0, out0, terms)

    return panel


_wide, _narrow, _few, _single = (_panel(*size) for size in ((WIDE, LANES), (1, LANES), (1, FEW), (1, 1)))


def _external(name: str, function: Any) -> Any:
    """Return a C function in the form in which kernels call it.

    They call it by its name. Numba would compile an inner function again for each kernel.
    """
    llvmlite.binding.add_symbol(name, function.address)
    return types.ExternalFunction(name, function._sig)


@numba.cfunc(types.void(*[types.int64] * 10), cache=is_cached())
def _multiply(x, x0, x1, w, w0, out, out0, rows, columns, terms):
    """Fill in a product, given by addresses and strides in bytes."""
    c = 0
    while c + WIDE * LANES <= columns:
        _wide(x, x0, x1, w + BYTES * c, w0, out + BYTES * c, out0, rows, terms)
        c += WIDE * LANES
    while c < columns:  # the last vector begins where it still fits, so some columns are computed twice
        if columns >= LANES:
            first = BYTES * min(c, columns - LANES)
            _narrow(x, x0, x1, w + first, w0, out + first, out0, rows, terms)
            c += LANES
        elif columns >= FEW:
            first = BYTES * min(c, columns - FEW)
            _few(x, x0, x1, w + first, w0, out + first, out0, rows, terms)
            c += FEW
        else:
            _single(x, x0, x1, w + BYTES * c, w0, out + BYTES * c, out0, rows, terms)
            c += 1


_call_multiply = _external("rekindle_multiply", _multiply)


@inner()
def multiply(x, w, out):
    """Fill in the product x w of two matrices.

    The rows of w and of the result are contiguous.
    """
    (x0, x1), rows, columns, terms = x.strides, out.shape[0], out.shape[1], len(w)
    _call_multiply(
        x.ctypes.data, x0, x1, w.ctypes.data, w.strides[0], out.ctypes.data, out.strides[0], rows, columns, terms
    )


def _transposed(code: _Code, rows: list[Any]) -> list[Any]:
    """Return the rows of a square matrix, transposed."""
    rows, lanes, step = list(rows), len(rows), 1
    while step < lanes:  # exchange the blocks beside the diagonal, of one number, then two, ...
        for i in (i for i in range(lanes) if not i & step):
            a, b = rows[i], rows[i + step]
            rows[i] = code.picked(a, b, [n + lanes - step if n & step else n for n in range(lanes)])
            rows[i + step] = code.picked(a, b, [n + lanes if n & step else n + step for n in range(lanes)])
        step *= 2
    return rows


@intrinsic
def _copy(typing: Any, x: Any, out: Any) -> Any:
    """Copy a number from one address to another."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        code, (x, out) = _Code(builder), arguments
        code.store(out, code.load(x, NUMBER))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def _transpose_block(typing: Any, w: Any, w0: Any, out: Any, out0: Any) -> Any:
    """Transpose LANES rows and columns, given by addresses and strides."""
    vector_type = ir.VectorType(NUMBER, LANES)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        code, (w, w0, out, out0) = _Code(builder), arguments
        rows = [code.load(address, vector_type) for address in code.series(w, w0, LANES)]
        for address, row in zip(code.series(out, out0, LANES), _transposed(code, rows), strict=True):
            code.store(address, row)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@numba.cfunc(types.void(*[types.int64] * 6), cache=is_cached())
def _transpose(w, w0, out, out0, rows, columns):
    """Fill in a transpose, given by addresses and strides in bytes."""
    whole_rows, whole_columns = rows // LANES * LANES, columns // LANES * LANES
    for r in range(0, whole_rows, LANES):
        for c in range(0, whole_columns, LANES):
            _transpose_block(w + r * w0 + BYTES * c, w0, out + c * out0 + BYTES * r, out0)
    for r in range(rows):
        for c in range(whole_columns if r < whole_rows else 0, columns):
            _copy(w + r * w0 + BYTES * c, out + c * out0 + BYTES * r)


_call_transpose = _external("rekindle_transpose", _transpose)


@inner()
def transpose(w, out):
    """Fill in the transpose of a matrix; all rows are contiguous."""
    _call_transpose(w.ctypes.data, w.strides[0], out.ctypes.data, out.strides[0], w.shape[0], w.shape[1])
