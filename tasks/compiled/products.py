"""Matrix products, computed in blocks that fit the processor's vector registers.

Libraries for matrix products are made for large matrices: of the time for one with 64 columns they spend a quarter on
copying its factors into another order. These products read them where they lie.

A number of a product is the sum of its terms in their order, with one rounding for each term (a fused multiply-add). So
it depends neither on the other rows and columns, nor on the number of members, nor on the width of vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen
from numba.extending import intrinsic

from .compiling import inner

BYTES = 4  # of a float32
WORD, NUMBER, LANE, POINTER = ir.IntType(64), ir.FloatType(), ir.IntType(32), ir.IntType(8).as_pointer()


class Block(NamedTuple):
    """The part of a product that is kept in registers.

    Attributes:
        rows: its rows.
        vectors: vectors in a row.
        lanes: numbers in a vector.
    """

    rows: int
    vectors: int
    lanes: int


def _features() -> str:
    """Return the features of the processor that numba compiles for."""
    config: Any = numba.config
    given = config.CPU_FEATURES
    return given if given is not None else codegen.get_host_cpu_features()


def _largest() -> Block:
    """Return the largest block whose sums, with a row of weights, fit into the registers."""
    features = _features()
    if "+avx512f" in features:  # 32 registers
        return Block(6, 4, 16)
    if "+avx" in features:  # 16 registers
        return Block(6, 2, 8)
    return Block(6, 4, 4) if "+neon" in features else Block(6, 2, 4)


LARGEST = _largest()
FUSED = "+fma" in _features() or "+neon" in _features()  # else the C library would compute each multiply-add


class _Matrix:
    """An array that a kernel was given: the addresses of its numbers."""

    def __init__(self, context: Any, builder: ir.IRBuilder, kind: Any, value: Any):
        array = context.make_array(kind)(context, builder, value)
        self._builder, self._data = builder, builder.bitcast(array.data, POINTER)
        self._strides = [builder.extract_value(array.strides, k) for k in range(2)]
        self.rows = builder.extract_value(array.shape, 0)

    def at(self, row: Any, column: Any) -> Any:
        """Return the address of a number."""
        steps = [self._builder.mul(x, stride) for x, stride in zip((row, column), self._strides, strict=True)]
        return self._builder.gep(self._data, [self._builder.add(*steps)])

    def load(self, row: Any, column: Any, kind: ir.Type) -> Any:
        """Return a number, or the vector that begins there."""
        found = self._builder.load(self._builder.bitcast(self.at(row, column), kind.as_pointer()))
        found.align = BYTES
        return found

    def store(self, row: Any, column: Any, value: Any) -> None:
        """Write a vector."""
        place = self._builder.bitcast(self.at(row, column), value.type.as_pointer())
        self._builder.store(value, place).align = BYTES


def _shuffled(builder: ir.IRBuilder, a: Any, b: Any, lanes: Sequence[int]) -> Any:
    """Return a vector of lanes of two vectors, those of b numbered after those of a."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(LANE, len(lanes)), list(lanes)))


def _multiply_add(builder: ir.IRBuilder, x: Any, y: Any, total: Any) -> Any:
    if not FUSED:
        return builder.fadd(builder.fmul(x, y), total)
    kind = total.type
    name = f"llvm.fma.v{kind.count}f32"
    return builder.call(
        cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind] * 3), name), [x, y, total]
    )


def _filling(block: Block) -> Any:
    """Return a function (x, w, out, r, c) that fills in the block of the product at row r and column c."""
    kind = ir.VectorType(NUMBER, block.lanes)
    zeros, nothing = ir.Constant(kind, [0.0] * block.lanes), ir.Constant(kind, ir.Undefined)
    places = [(i, n) for i in range(block.rows) for n in range(block.vectors)]

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        x, w, out = (_Matrix(context, builder, *each) for each in zip(signature.args[:3], arguments[:3], strict=True))
        rows = [builder.add(arguments[3], WORD(i)) for i in range(block.rows)]
        columns = [builder.add(arguments[4], WORD(n * block.lanes)) for n in range(block.vectors)]
        before = builder.block
        loop, after = (builder.append_basic_block(name) for name in ("terms", "block"))
        builder.branch(loop)
        builder.position_at_end(loop)
        k, sums = builder.phi(WORD), {place: builder.phi(kind) for place in places}
        weights = [w.load(k, column, kind) for column in columns]
        factors = [builder.insert_element(nothing, x.load(row, k, NUMBER), LANE(0)) for row in rows]
        factors = [_shuffled(builder, each, nothing, [0] * block.lanes) for each in factors]
        more = {(i, n): _multiply_add(builder, factors[i], weights[n], sums[i, n]) for i, n in places}
        following = builder.add(k, WORD(1))
        for phi, first, later in [(k, WORD(0), following), *((sums[each], zeros, more[each]) for each in places)]:
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, w.rows), loop, after)
        builder.position_at_end(after)
        for i, n in places:
            out.store(rows[i], columns[n], more[i, n])
        return context.get_dummy_value()

    @intrinsic
    def fill(typing: Any, x: Any, w: Any, out: Any, r: Any, c: Any) -> Any:
        return types.void(x, w, out, r, c), generate

    return fill


@intrinsic
def _transpose_block(typing: Any, w: Any, out: Any, r: Any, c: Any) -> Any:
    """Write LANES rows and columns of w at row r and column c, transposed."""
    lanes = LARGEST.lanes
    kind = ir.VectorType(NUMBER, lanes)

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        matrix, target = (
            _Matrix(context, builder, *each) for each in zip(signature.args[:2], arguments[:2], strict=True)
        )
        r, c = arguments[2:]
        x = [matrix.load(builder.add(r, WORD(i)), c, kind) for i in range(lanes)]
        step = 1
        while step < lanes:  # exchange the blocks beside the diagonal, of one number, then two, ...
            for i in (i for i in range(lanes) if not i & step):
                a, b = x[i], x[i + step]
                x[i] = _shuffled(builder, a, b, [n + lanes - step if n & step else n for n in range(lanes)])
                x[i + step] = _shuffled(builder, a, b, [n + lanes if n & step else n + step for n in range(lanes)])
            step *= 2
        for i in range(lanes):
            target.store(builder.add(c, WORD(i)), r, x[i])
        return context.get_dummy_value()

    return types.void(w, out, r, c), generate


TALL, WIDE, LANES = LARGEST
FEW = 4  # lanes for matrices of few columns


def _panel(vectors: int, lanes: int) -> Any:
    """Return a function (x, w, out, c) that fills in some vectors of every row, from column c on."""
    fill, fill_4, fill_2, fill_1 = (_filling(Block(rows, vectors, lanes)) for rows in (TALL, 4, 2, 1))

    @inner()
    def panel(x, w, out, c):
        rows, r = len(out), 0
        while r + TALL <= rows:
            fill(x, w, out, r, c)
            r += TALL
        if r + 4 <= rows:
            fill_4(x, w, out, r, c)
            r += 4
        if r + 2 <= rows:
            fill_2(x, w, out, r, c)
            r += 2
        if r < rows:
            fill_1(x, w, out, r, c)

    return panel


_wide, _narrow, _few, _single = (_panel(*size) for size in ((WIDE, LANES), (1, LANES), (1, FEW), (1, 1)))


@inner()
def multiply(x, w, out):
    """Fill in the product x w of two matrices.

    The rows of w and of the result are contiguous.
    """
    columns, c = out.shape[1], 0
    while c + WIDE * LANES <= columns:
        _wide(x, w, out, c)
        c += WIDE * LANES
    while c < columns:  # the last vector begins where it still fits, so that some columns are computed twice
        if columns >= LANES:
            _narrow(x, w, out, min(c, columns - LANES))
            c += LANES
        elif columns >= FEW:
            _few(x, w, out, min(c, columns - FEW))
            c += FEW
        else:
            _single(x, w, out, c)
            c += 1


@inner()
def transpose(w, out):
    """Fill in the transpose of a matrix whose rows are contiguous."""
    rows, columns = w.shape
    whole_rows, whole_columns = rows // LANES * LANES, columns // LANES * LANES
    for r in range(0, whole_rows, LANES):
        for c in range(0, whole_columns, LANES):
            _transpose_block(w, out, r, c)
    for r in range(rows):
        for c in range(whole_columns if r < whole_rows else 0, columns):
            out[c, r] = w[r, c]
