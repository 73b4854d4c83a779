"""Loops over units against float64, and at any place in memory."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rekindle.tasks.compiled import layers
from rekindle.tasks.compiled.loading import kernels

RUN = kernels()
assert RUN is not None


def activated(x: np.ndarray, kind: int = 0) -> np.ndarray:
    """Rows (P, B, units) through an activation, without biases."""
    x = x.copy()
    RUN.activate(x, len(x), x.shape[1], np.zeros((len(x), 1, x.shape[2]), np.float32), kind)
    return x


def test_tanh_is_right_to_some_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), np.geomspace(1e-30, 1, 1001)]).astype(np.float32)
    right = np.tanh(x.astype(np.float64))
    found = activated(x[None, None])[0, 0]
    assert np.all(np.abs(found - right) <= 7 * np.spacing(np.abs(right).astype(np.float32)))
    assert np.abs(found).max() <= 1.0


def test_tanh_has_limits_and_keeps_what_is_no_number() -> None:
    found = activated(np.array([[[math.inf, 1e30, -math.inf, 0.0, math.nan]]], np.float32))[0, 0]
    assert found[:4].tolist() == pytest.approx([1.0, 1.0, -1.0, 0.0], abs=1e-7)
    assert np.isnan(found[4])


@pytest.mark.parametrize("units", [2, 3, 7, 17, 33, 64])
@pytest.mark.parametrize("kind", [0, 1])
def test_a_member_anywhere_in_memory_has_the_same_bits(units: int, kind: int) -> None:
    random = np.random.default_rng(0)
    h, g = (random.standard_normal((5, 3, units)).astype(np.float32) for _ in range(2))
    vector = random.standard_normal((5, units + 3)).astype(np.float32)
    biases, gradient, slopes, values = vector[:, None, 1 : 1 + units], np.zeros_like(vector), g.copy(), h.copy()
    RUN.activate(values, 5, 3, biases, kind)
    RUN.slope(slopes, values, gradient[:, None, 1 : 1 + units], kind)
    for p in range(5):
        room = np.zeros(3 * units + p + 1, np.float32)[p + 1 :]  # one number further each time
        alone = room.reshape(1, 3, units)
        alone[:] = h[p]
        RUN.activate(alone, 1, 3, biases[p : p + 1].copy(), kind)
        assert np.array_equal(alone[0], values[p])
        own, to = np.empty((1, 1, units), np.float32), g[p : p + 1].copy()
        RUN.slope(to, alone, own, kind)
        assert np.array_equal(to[0], slopes[p])
        assert np.array_equal(own[0, 0], gradient[p, 1 : 1 + units])


def test_a_folder_that_cannot_be_written_keeps_no_machine_code(tmp_path: object) -> None:
    assert layers._writable(str(tmp_path))
    assert not layers._writable("/proc/rekindle")
