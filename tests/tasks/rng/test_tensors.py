"""Random tensors equal the numbers of streams, bit for bit."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from rekindle.tasks.rng import streams, tensors

KEYS = streams.keys(range(5), "numbers")


@given(st.integers(0, 2**62), st.integers(1, 20))
def test_bits_and_numbers_are_those_of_streams(first: int, count: int) -> None:
    counters = np.arange(first, first + count)
    given_keys = tensors.key_tensor(KEYS, "cpu")[:, None], torch.from_numpy(counters)
    bits = tensors.bits(*given_keys)
    assert (bits.numpy().view(np.uint64) == streams.bits(KEYS[:, None], counters)).all()
    assert (tensors.uniform(*given_keys).numpy() == streams.uniform(KEYS[:, None], counters)).all()
    assert (tensors.open_uniform(*given_keys).numpy() == streams.open_uniform(KEYS[:, None], counters)).all()


def test_orders_are_those_of_unsigned_numbers() -> None:
    bits = streams.bits(KEYS[:, None], np.arange(1000))
    assert (bits >> np.uint64(63)).any()
    order = tensors.in_order(torch.from_numpy(bits.view(np.int64)))
    assert (order.numpy() == np.argsort(bits, axis=-1)).all()
