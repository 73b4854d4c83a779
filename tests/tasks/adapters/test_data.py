"""Values of Python as data: what is stored comes back, and what is no data is named."""

from __future__ import annotations

import collections
import math
import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rekindle.tasks.adapters.data import Data, decode, encode
from rekindle.tasks.checkpoint.state import pack, unpack
from rekindle.tasks.errors import NotData, StateMismatch


def stored(value: Any) -> Any:
    """A value that was written into blobs and read again."""
    packed = pack(encode(value, "the state"))
    return decode(unpack(packed.manifest, packed.blobs.__getitem__))


def same(a: Any, b: Any) -> bool:
    """Whether two values have equal types and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return [*a] == [*b] and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    return bool(a == b)


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=10,
)


@given(values)
def test_nested_values_come_back_as_they_were(value: Any) -> None:
    assert same(stored(value), value)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.asfortranarray(np.eye(3)),
        np.array([], dtype=np.float32).reshape(0, 4),
        np.float32(0.1),
        np.bool_(True),
        np.array(["a", "bc"]),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        np.array([1 + 2j]),
        np.uint64(2**63),
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.zeros(0, 2, dtype=torch.int64),
        torch.arange(6).reshape(2, 3).T,
        torch.tensor([1 + 2j]),
        "x" * 5000,
        bytearray(b"\0\xff"),
        [{"a/b": torch.ones(2), "a|b": torch.zeros(2)}],
    ],
)
def test_arrays_and_long_texts_come_back_with_type_and_shape(value: Any) -> None:
    assert same(stored(value), value)


def test_states_of_networks_and_optimizers_are_data() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = stored([model.state_dict(), optimizer.state_dict()])
    other = torch.nn.Linear(2, 1)
    other.load_state_dict(state[0])
    resumed = torch.optim.Adam(other.parameters())
    resumed.load_state_dict(state[1])
    for network, steps in ((model, optimizer), (other, resumed)):
        steps.zero_grad()
        network(torch.ones(1, 2)).sum().backward()
        steps.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_a_decoded_value_shares_no_memory() -> None:
    array, tensor = np.zeros(2), torch.zeros(2)
    tree = encode([array, tensor], "the state")
    array += 1
    tensor += 1
    for one in decode(tree):
        assert not one.any()
        one += 1
    assert not any(one.any() for one in decode(tree))


Point = collections.namedtuple("Point", "x")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"a": [1, torch.nn.Linear(1, 1)]},
            r"the state\['a'\]\[1\] is a Linear; put its numbers there, such as its st",
        ),
        ([Point(1)], r"the state\[0\] is a Point"),
        ({(1, 2): 3}, r"keys of data are text or integers, but the state has \(1, 2\) \(tuple\)"),
        (np.array([object()]), r"arrays hold numbers, texts or times, but the state has dtype object"),
        (torch.eye(2).to_sparse(), r"arrays are dense, but the state is a tensor with layout torch.sparse_coo"),
        ({1, 2}, r"the state is a set"),
    ],
)
def test_objects_that_are_no_data_are_named_with_their_place(value: Any, message: str) -> None:
    with pytest.raises(NotData, match=message):
        encode(value, "the state")


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotData, match=r"nested at most 64 deep, but the state.* is deeper; it may contain itself"):
        encode(value, "the state")


@pytest.mark.parametrize(
    "tree",
    [{}, {"form": "{", "arrays": {}}, {"form": '{"torch":["x"]}', "arrays": {}}, {"form": '{"a":1}', "arrays": {}}],
)
def test_damaged_data_is_refused(tree: dict[str, Any]) -> None:
    with pytest.raises(StateMismatch, match="data must have a form and its arrays, but"):
        Data().load_member(0, tree)
