"""Products of matrices: every number is the sum of its terms in their order, each rounded once."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest
from rekindle.tasks.compiled.loading import kernels

assert kernels() is not None  # first: what imports a module of kernels before compiles it, in half a minute
products = importlib.import_module("rekindle.tasks.compiled.products")
FUSED, LANES, TALL, WIDE = products.FUSED, products.LANES, products.TALL, products.WIDE
multiply, transpose = products.multiply, products.transpose


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def by_definition(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The product, term after term. A long double has the digits for a term and the sum before it is rounded."""
    exact = np.longdouble if FUSED else np.float32
    total = np.zeros((len(x), w.shape[1]), np.float32)
    for k in range(len(w)):
        total = (total + x[:, k, None].astype(exact) * w[k].astype(exact)).astype(np.float32)
    return total


@pytest.mark.parametrize("rows", [1, 2, 3, 5, TALL, TALL + 4, 3 * TALL + 5])
@pytest.mark.parametrize("columns", [1, 3, 4, 7, LANES, LANES + 1, WIDE * LANES, WIDE * LANES + 2, 3 * WIDE * LANES])
@pytest.mark.parametrize("terms", [1, 2, 67])
def test_a_number_is_the_sum_of_its_terms_in_order(rows: int, columns: int, terms: int) -> None:
    x, w = numbers(rows, terms), numbers(terms, columns)
    out = np.full((rows + 2, columns + 3), np.nan, np.float32)
    multiply(x, w, out[1 : rows + 1, :columns])
    expected = by_definition(x, w)
    assert np.array_equal(out[1 : rows + 1, :columns], expected)
    out[1 : rows + 1, :columns] = np.nan
    assert np.isnan(out).all()  # nothing else was written
    turned = np.ascontiguousarray(x.T).T  # as the hidden units are in the product for a gradient
    multiply(turned, w, out[1 : rows + 1, :columns])
    assert np.array_equal(out[1 : rows + 1, :columns], expected)


@pytest.mark.parametrize(
    ("rows", "columns"), [(1, 1), (3, LANES), (LANES, 5), (2 * LANES + 3, 3 * LANES + 1), (64, 64)]
)
def test_a_transpose(rows: int, columns: int) -> None:
    w, out = numbers(rows, columns), np.full((columns, rows), np.nan, np.float32)
    transpose(w, out)
    assert np.array_equal(out, w.T)


def test_a_nan_stays_in_its_row() -> None:
    x, w, out = numbers(9, 8), numbers(8, 40), np.empty((9, 40), np.float32)
    x[4, 3] = np.nan
    multiply(x, w, out)
    assert np.isnan(out[4]).all()
    assert np.isfinite(np.delete(out, 4, 0)).all()


OTHERS = {  # processors with narrower vectors, with and without a fused multiply-add
    "haswell": "+avx,+avx2,+fma,+sse4.2",
    "nehalem": "+sse4.2",
}
DIGEST = """
import hashlib, numpy as np
from rekindle.tasks.compiled.products import multiply, FUSED, LANES
random = np.random.default_rng(0)
x, w = (random.standard_normal(shape).astype("f4") for shape in ((37, 50), (50, 77)))
out = np.empty((37, 77), "f4")
multiply(x, w, out)
print(FUSED, LANES, hashlib.sha256(out.tobytes()).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="runs machine code of several x86 processors")
def test_the_width_of_vectors_is_no_part_of_a_result() -> None:
    """Machine code for other processors is compiled and run here."""

    def digests(**settings: str) -> list[str]:
        command = [sys.executable, "-c", DIGEST]
        done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=True)
        return done.stdout.split()

    others = [digests(NUMBA_CPU_NAME=name, NUMBA_CPU_FEATURES=features) for name, features in OTHERS.items()]
    assert [other[:2] for other in others] == [["True", "8"], ["False", "4"]]
    haswell, nehalem = (other[2] for other in others)
    assert not FUSED or digests()[2] == haswell
    assert nehalem != haswell
