"""Loops over units, against float64 and at any place in memory."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from rekindle.tasks.compiled.layers import add_biases_for_slopes, through
from rekindle.tasks.compiled.loading import kernels
from rekindle.tasks.compiled.records import ACTIVATION_NUMBERS, Perceptrons
from rekindle.tasks.networks.acting import NO_MOMENTS

RUN = kernels()
assert RUN is not None


def activated(x: np.ndarray, activation: str = "tanh") -> tuple[np.ndarray, np.ndarray]:
    """Numbers through an activation, and its slopes at them."""
    h = x[None].astype(np.float32)
    at = np.empty_like(h) if activation == "silu" else h
    slopes, zeros = np.ones_like(h), np.zeros(len(x), np.float32)
    add_biases_for_slopes(h, at, zeros, ACTIVATION_NUMBERS[activation])
    through(slopes, at, zeros, ACTIVATION_NUMBERS[activation])
    return h[0], slopes[0]


def test_tanh_is_right_to_some_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), np.geomspace(1e-30, 1, 1001)]).astype(np.float32)
    right = np.tanh(x.astype(np.float64))
    result, _ = activated(x)
    assert np.all(np.abs(result - right) <= 7 * np.spacing(np.abs(right).astype(np.float32)))
    assert np.abs(result).max() <= 1.0


def test_tanh_has_limits_and_keeps_what_is_no_number() -> None:
    result, _ = activated(np.array([math.inf, 1e30, -math.inf, 0.0, math.nan]))
    assert result[:4].tolist() == pytest.approx([1.0, 1.0, -1.0, 0.0], abs=1e-7)
    assert np.isnan(result[4])


def test_elu_and_silu_are_right_to_some_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-86, 86, 100_001), np.linspace(-9, 9, 100_001)]).astype(np.float32)
    right = x.astype(np.float64)
    sigmoid = 1 / (1 + np.exp(-right))
    result, slopes = activated(x, "silu")
    assert np.all(np.abs(result - right * sigmoid) <= 2.5e-7 * np.abs(right * sigmoid))  # as right as exp itself
    assert np.abs(slopes - sigmoid * (1 + right * (1 - sigmoid))).max() <= 2e-7
    result, slopes = activated(x, "elu")
    assert np.array_equal(result[x > 0], x[x > 0])
    assert np.abs(result - np.expm1(np.minimum(right, 0)))[x <= 0].max() <= 6e-8
    assert np.abs(slopes - np.exp(np.minimum(right, 0))).max() <= 1.2e-7


@pytest.mark.parametrize(("activation", "limits"), [("elu", [2.0**99, -1.0, 0.0]), ("silu", [2.0**99, 0.0, 0.0])])
def test_elu_and_silu_have_limits_and_keep_what_is_no_number(activation: str, limits: list[float]) -> None:
    result, slopes = activated(np.array([2.0**99, -1e4, 0.0, math.nan]), activation)
    assert result[:3].tolist() == pytest.approx(limits, abs=1e-30)
    assert slopes[:3].tolist() == pytest.approx([1.0, 0.0, 1.0 if activation == "elu" else 0.5], abs=1e-30)
    assert np.isnan(result[3])
    assert np.isnan(slopes[3])


@pytest.mark.parametrize("units", [2, 3, 7, 17, 33, 64])
@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("outputs", [2, 9])
def test_a_member_anywhere_in_memory_has_the_same_bits(units: int, activation: str, outputs: int) -> None:
    random, sizes = np.random.default_rng(0), np.array([5, units, 33, outputs])
    numbers = sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))
    vector, x = (random.standard_normal(n).astype(np.float32) for n in ((5, numbers), (5, 7, 5)))
    together = passed(vector, x, sizes, ACTIVATION_NUMBERS[activation])
    for p in range(5):
        alone = passed(
            *(shifted(array[p : p + 1], p + 1) for array in (vector, x)), sizes, ACTIVATION_NUMBERS[activation]
        )
        for result, all_of_them in zip(alone, together, strict=True):
            assert np.array_equal(result[0], all_of_them[p])


def shifted(x: np.ndarray, by: int) -> np.ndarray:
    """A copy that lies so many numbers further in memory."""
    room = np.zeros(x.size + by, np.float32)[by:].reshape(x.shape)
    room[:] = x
    return room


def passed(vector: np.ndarray, x: np.ndarray, sizes: np.ndarray, activation: int) -> list[np.ndarray]:
    """The last hidden units and the outputs of a forward pass."""
    hidden, out = (np.zeros((*x.shape[:2], size), np.float32) for size in sizes[-2:])
    RUN.infer(x, Perceptrons(vector, vector, sizes, activation, NO_MOMENTS), hidden, out)
    return [hidden, out]
