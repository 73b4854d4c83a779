"""A random number is a function of its key and position, and of nothing else."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rekindle.tasks.rng import streams


def test_a_number_depends_on_its_key_and_position_only() -> None:
    key = streams.key(7, "action")
    block = streams.uniform(key, np.arange(1000))
    assert streams.uniform(key, np.arange(500, 600)).tolist() == block[500:600].tolist()
    assert streams.uniform(key, np.arange(1000)[::-1].copy())[::-1].tolist() == block.tolist()
    assert [streams.uniform(key, i).item() for i in range(20)] == block[:20].tolist()


def test_keys_and_counters_are_broadcast() -> None:
    keys = streams.keys([1, 2, 3], "order")
    table = streams.bits(keys[:, None], np.arange(5))
    assert table.shape == (3, 5)
    for row, key in zip(table, keys, strict=True):
        assert row.tolist() == streams.bits(key, np.arange(5)).tolist()
    assert streams.bits(keys, 4).tolist() == table[:, 4].tolist()


def test_arguments_are_left_alone() -> None:
    keys, counters = streams.keys([1, 2], "x"), np.arange(2).astype(np.uint64)
    kept = keys.copy(), counters.copy()
    streams.bits(keys, counters)
    assert (keys.tolist(), counters.tolist()) == (kept[0].tolist(), kept[1].tolist())


def test_known_numbers_never_change() -> None:
    # A change here changes every result of every trial: raise the version of every task with it.
    key = streams.key(1, "train", "reset", 0)
    assert int(key) == 15448146982398779263
    assert streams.bits(key, np.arange(3)).tolist() == [9627881255625150797, 5158720762271826163, 5320890507943257075]
    assert streams.seed_of(1, "train") == 2032283611


def test_keys_are_the_same_in_every_process() -> None:
    code = "from rekindle.tasks.rng import streams; print(int(streams.key(1, 'train', 'reset', 0)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) == streams.key(1, "train", "reset", 0)


def test_no_two_paths_share_a_key() -> None:
    paths = [
        (seed, purpose, n) for seed in range(50) for purpose in ("train", "evaluation", "order") for n in range(10)
    ]
    paths += [(str(seed), "train", 0) for seed in range(50)]  # a number is not its digits
    assert len({int(streams.key(*path)) for path in paths}) == len(paths)


def test_a_number_of_numpy_names_the_stream_of_the_integer() -> None:
    assert streams.key(np.int64(5), "x") == streams.key(5, "x")


@given(st.integers(0, 2**63 - 1), st.text(max_size=5))
def test_a_seed_for_libraries_has_31_bits(seed: int, purpose: str) -> None:
    assert 0 <= streams.seed_of(seed, purpose) < 2**31


def test_uniform_numbers_are_uniform() -> None:
    u = streams.uniform(streams.key(3, "u"), np.arange(200_000))
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    chi_square = ((counts - 2000) ** 2 / 2000).sum()  # 99 degrees of freedom: mean 99, deviation 14
    assert 40 < chi_square < 180


def test_every_bit_is_fair() -> None:
    bits = streams.bits(streams.key(3, "bits"), np.arange(50_000))
    ones = ((bits[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).mean(0)
    assert np.abs(ones - 0.5).max() < 0.012  # five deviations


@pytest.mark.parametrize("lag", [1, 2, 3, 64])
def test_neighbours_are_uncorrelated(lag: int) -> None:
    u = streams.uniform(streams.key(9, "u"), np.arange(100_000)) - 0.5
    assert abs((u[:-lag] * u[lag:]).mean() * 12) < 0.02


def test_streams_of_neighbouring_seeds_are_uncorrelated() -> None:
    table = streams.uniform(streams.keys(range(20), "u")[:, None], np.arange(20_000)) - 0.5
    correlation = table @ table.T * 12 / 20_000
    assert np.abs(correlation - np.eye(20)).max() < 0.05


@pytest.mark.parametrize("bits", [0, 1, 2**64 - 1, 2**63])
def test_open_uniform_numbers_are_never_0_or_1(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "bits", lambda keys, counters: np.array([bits], dtype=np.uint64))
    u = streams.open_uniform(np.uint64(0), 0)
    assert 0 < u[0] < 1
    assert np.isfinite(-np.log(-np.log(u[0])))


def test_open_uniform_numbers_follow_the_uniform_ones() -> None:
    key = streams.key(1, "u")
    np.testing.assert_allclose(
        streams.open_uniform(key, np.arange(100)), streams.uniform(key, np.arange(100)), atol=1e-15
    )


def test_huge_counters_still_give_new_numbers() -> None:
    counters = np.array([0, 2**32, 2**62, 2**63 - 1])
    assert len(set(streams.bits(streams.key(1, "x"), counters).tolist())) == 4
