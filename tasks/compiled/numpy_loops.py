"""NumPy's own sine and cosine, for use in kernels.

On processors with wide vectors, NumPy rounds them differently from the C library, so kernels call NumPy's loops.
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

Addresses = tuple[int, int]  # of NumPy's loops for cosine and sine
# void loop(char **args, npy_intp const *dimensions, npy_intp const *steps, void *data)
_LOOP = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)


@cache
def cosine_and_sine() -> Addresses | None:
    """Return the addresses of NumPy's loops; None if they are unusable."""
    found = [_address(ufunc) for ufunc in (np.cos, np.sin)]
    return (found[0], found[1]) if all(found) else None


def _address(ufunc: np.ufunc) -> int:
    """Return the address of a ufunc's loop over float64, or 0.

    PyUFuncObject begins with four ints and then the arrays of loops and of their data (see NumPy's C API). The address
    is used only if the loop gives the ufunc's bits.
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
    """Apply the loop at an address to one number."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, number, pointer = ir.IntType(64), ir.DoubleType(), ir.IntType(8).as_pointer()
        numbers, places = (cgutils.alloca_once(builder, kind, 2) for kind in (number, pointer))
        sizes = cgutils.alloca_once(builder, word, 3)  # count of 1, and two strides
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
