"""NumPy's own sine and cosine, within kernels.

On processors with wide vectors NumPy rounds them otherwise than the C library does, so kernels call NumPy's loops.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

Addresses = tuple[int, int]  # of the loops of cosine and sine
# void loop(char **args, npy_intp const *dimensions, npy_intp const *steps, void *data)
_LOOP = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)


@cache
def cosine_and_sine() -> Addresses | None:
    """Return the addresses of NumPy's loops; None unless they give its bits."""
    found = [_address(ufunc) for ufunc in (np.cos, np.sin)]
    return (found[0], found[1]) if all(found) else None


def _address(ufunc: np.ufunc) -> int:
    """Return the address of a ufunc's loop over float64, or 0.

    The first fields of PyUFuncObject, see NumPy's C API: four ints, then the arrays of loops and of their data.
    """
    at = id(ufunc) + object.__basicsize__ + 4 * ctypes.sizeof(ctypes.c_int)
    size, number = ctypes.sizeof(ctypes.c_void_p), ufunc.types.index("d->d")
    loop, data = (
        ctypes.c_void_p.from_address(ctypes.c_void_p.from_address(at + k * size).value + number * size).value  # type: ignore[operator]
        for k in range(2)
    )
    x = np.linspace(-7.0, 7.0, 97)
    y = np.empty_like(x)
    if loop is None or data is not None:
        return 0
    arguments = ((ctypes.c_void_p * 2)(x.ctypes.data, y.ctypes.data), (ctypes.c_ssize_t * 1)(len(x)))
    _LOOP(loop)(*arguments, (ctypes.c_ssize_t * 2)(x.itemsize, x.itemsize), None)
    return loop if np.array_equal(y, ufunc(x)) else 0


@intrinsic
def call(typing: Any, loop: Any, x: Any) -> Any:
    """Return what the loop at an address makes of one number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, number, pointer = ir.IntType(64), ir.DoubleType(), ir.IntType(8).as_pointer()
        numbers, places = (cgutils.alloca_once(builder, kind, 2) for kind in (number, pointer))
        sizes = cgutils.alloca_once(builder, word, 3)  # one number; strides
        builder.store(arguments[1], numbers)
        for k, size in enumerate((1, 8, 8)):
            builder.store(word(size), builder.gep(sizes, [word(k)]))
        for k in range(2):
            at = builder.bitcast(builder.gep(numbers, [word(k)]), pointer)
            builder.store(at, builder.gep(places, [word(k)]))
        kind = ir.FunctionType(ir.VoidType(), [pointer] * 4)
        given = [builder.bitcast(x, pointer) for x in (places, sizes, builder.gep(sizes, [word(1)]))]
        builder.call(builder.inttoptr(arguments[0], kind.as_pointer()), [*given, ir.Constant(pointer, None)])
        return builder.load(builder.gep(numbers, [word(1)]))

    return types.float64(types.uint64, types.float64), generate
