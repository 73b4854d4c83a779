"""State as data: round trips, names by digest, and refusal of anything else."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import nursery
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rekindle.tasks.checkpoint import state
from rekindle.tasks.checkpoint.manifests import canonical_json
from rekindle.tasks.checkpoint.state import copy, difference, flatten_tree, pack, unflatten_tree, unpack, verified
from rekindle.tasks.errors import DamagedState, StateMismatch, TaskError
from safetensors.torch import save


def digest(tree: Mapping[str, Any]) -> str:
    """The digest of a packed tree."""
    return pack(tree).digest


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool]

scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=5)
names = st.text("abcxyz.é ", max_size=4)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**30)))
    size = math.prod(shape) * dtype.itemsize
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator).view(dtype).reshape(shape)


leaves = scalars | st.lists(scalars, max_size=3) | tensors()
trees = st.dictionaries(
    names, st.recursive(leaves, lambda inner: st.dictionaries(names, inner, max_size=3)), max_size=4
)


def there_and_back(tree: dict[str, Any]) -> dict[str, Any]:
    packed = pack(tree)
    return unpack(packed.manifest, packed.blobs.__getitem__)


def example() -> dict[str, Any]:
    return {
        "counters": {"env_steps": 128, "epochs": 1},
        "tally": {
            "loss": 0.1,
            "nan": math.nan,
            "low": -math.inf,
            "none": None,
            "list": [1, 2.5, "x", [True, math.inf]],
        },
        "policy": {"vector": torch.linspace(0, 1, 64), "steps": torch.tensor(3)},
        "empty": {},
        "no rows": torch.zeros(0, 4),
    }


# There and back


@given(trees)
def test_any_tree_survives_a_round_trip_bit_for_bit(tree: dict[str, Any]) -> None:
    back = there_and_back(tree)
    assert difference(back, tree) == []
    assert digest(back) == digest(tree)


@given(trees)
def test_flatten_is_undone_by_unflatten(tree: dict[str, Any]) -> None:
    assert difference(unflatten_tree(dict(flatten_tree(tree))), tree) == []


@given(trees)
def test_a_copy_is_equal_and_shares_no_memory(tree: dict[str, Any]) -> None:
    other = copy(tree)
    assert difference(other, tree) == []
    kept = digest(tree)
    for _, leaf in flatten_tree(other):
        if isinstance(leaf, torch.Tensor):
            leaf.zero_()
    assert digest(tree) == kept


def test_the_types_of_leaves_are_kept() -> None:
    back = there_and_back({"i": 1, "f": 1.0, "b": True, "s": "1", "z": -0.0, "big": 2**80, "t": torch.tensor(1.0)})
    assert [type(back[name]) for name in "ifbs"] == [int, float, bool, str]
    assert math.copysign(1, back["z"]) == -1
    assert back["big"] == 2**80
    assert back["t"].shape == ()


def test_one_tensor_under_two_names_is_two_tensors() -> None:
    tensor = torch.arange(4.0)
    back = there_and_back({"a": tensor, "b": tensor, "c": tensor.view(2, 2)})
    assert difference(back, {"a": tensor, "b": tensor, "c": tensor.view(2, 2)}) == []


def test_a_view_is_stored_without_the_rest_of_its_tensor() -> None:
    whole = torch.arange(10_000.0)
    packed = pack({"part": whole[3:5], "transposed": whole.view(100, 100).T[:2]})
    assert sum(map(len, packed.blobs.values())) < 2000
    assert there_and_back({"part": whole[3:5]})["part"].tolist() == [3, 4]


def test_the_bits_of_a_nan_are_kept() -> None:
    odd = torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32)
    assert there_and_back({"x": odd})["x"].view(torch.int32).item() == 0x7FC12345


# The digest


def test_the_digest_never_changes() -> None:
    # Digests are compared across runs and machines: a change here needs a new FORMAT.
    assert digest(example()) == "4f7da4870065f0e5f0f80a9e1be0ee89387d81c484ba0d5307da1a8de5084868"


def test_the_digest_is_the_sha256_of_the_manifest() -> None:
    packed = pack(example())
    assert packed.digest == hashlib.sha256(packed.manifest).hexdigest()
    assert all(hashlib.sha256(blob).hexdigest() == name for name, blob in packed.blobs.items())


def test_the_digest_does_not_depend_on_the_order_of_names() -> None:
    tree = example()
    assert digest(dict(reversed(tree.items()))) == digest(tree)


def test_the_digest_does_not_depend_on_strides() -> None:
    x = torch.arange(12.0).view(3, 4)
    assert digest({"x": x.T.contiguous().T}) == digest({"x": x})
    assert digest({"x": x.clone().requires_grad_()}) == digest({"x": x})


def test_the_digest_is_the_same_in_another_process() -> None:
    tree = "{'x': torch.arange(5.0), 'y': [0.1, None]}"
    code = f"import torch; from rekindle.tasks.checkpoint import state; print(state.pack({tree}).digest)"
    printed = nursery.run([sys.executable, "-c", code]).stdout.strip()
    assert printed == digest({"x": torch.arange(5.0), "y": [0.1, None]})


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ("1", 1),
        (None, "None"),
        ([1], [1.0]),
        ([], {}),
        ([0.0], [-0.0]),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2), torch.zeros(1, 2)),
        (torch.zeros(2), -torch.zeros(2)),
        (torch.tensor([math.nan]), -torch.tensor([math.nan])),
        (torch.zeros(0), torch.zeros(0, 1)),
        (torch.tensor(1.0), 1.0),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_a_flipped_bit_changes_the_digest(one: Any, other: Any) -> None:
    assert digest({"x": one}) != digest({"x": other})
    assert difference({"x": one}, {"x": other}) != []


@given(tensors(), st.data())
def test_a_flipped_bit_of_a_tensor_changes_the_digest(tensor: torch.Tensor, data: st.DataObject) -> None:
    if tensor.numel() == 0 or tensor.dtype is torch.bool:
        return
    other = tensor.clone()
    flat = other.reshape(-1).view(torch.uint8)
    flat[data.draw(st.integers(0, len(flat) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    assert digest({"x": other.reshape(tensor.shape)}) != digest({"x": tensor})


def test_equal_trees_differ_nowhere_even_where_they_hold_nan() -> None:
    tree = {"x": math.nan, "list": [math.nan, 1.0], "t": torch.tensor([math.nan])}
    assert difference(tree, there_and_back(tree)) == []


# Segments


def rows(count: int) -> torch.Tensor:
    return torch.arange(count * 1000.0).view(count, 1000)  # 4000 bytes a row


def test_a_large_tensor_is_cut_into_segments_and_put_together_again() -> None:
    tree = {"buffer": rows(1000), "small": torch.arange(3)}
    packed = pack(tree)
    assert len(packed.blobs) == 5
    assert max(map(len, packed.blobs.values())) < state.CHUNK + 1000
    assert difference(unpack(packed.manifest, packed.blobs.__getitem__), tree) == []


def test_of_a_buffer_that_grew_only_the_new_segments_are_new() -> None:
    before, after = pack({"buffer": rows(1000)}), pack({"buffer": rows(2000)})
    assert len(after.blobs.keys() - before.blobs.keys()) <= 5
    assert len(after.blobs.keys() & before.blobs.keys()) == 3


@pytest.mark.parametrize("shape", [(1, 2**19), (2**19,), (2, 2**19), (2**19, 1), (3, 2**17 + 1)])
def test_large_tensors_of_any_shape_come_back(shape: tuple[int, ...]) -> None:
    tree = {"x": torch.arange(math.prod(shape), dtype=torch.float32).view(shape)}
    assert difference(there_and_back(tree), tree) == []


# What is refused


@pytest.mark.parametrize(
    "leaf", [object(), {1, 2}, (1, 2), b"bytes", 1j, [object()], [torch.zeros(1)], [{"a": object()}]]
)
def test_a_value_that_is_no_data_is_refused_by_its_path(leaf: Any) -> None:
    with pytest.raises(TypeError, match="optimizer/thing"):
        pack({"optimizer": {"thing": leaf}})


@pytest.mark.parametrize("name", ["a/b", 1, None])
def test_names_that_cannot_be_paths_are_refused(name: Any) -> None:
    with pytest.raises(TypeError, match="must be a string without '/'"):
        pack({"x": {name: 1}})


def test_canonical_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": math.nan})


# Damage


def fetcher(blobs: dict[str, bytes]) -> Any:
    def fetch(name: str) -> bytes:
        if name not in blobs:
            raise DamagedState(f"there is no blob {name}")
        return blobs[name]

    return fetch


@given(st.data())
def test_a_flipped_bit_in_a_blob_is_found(data: st.DataObject) -> None:
    packed = pack(example())
    (name, blob), *_ = packed.blobs.items()
    damaged = bytearray(blob)
    damaged[data.draw(st.integers(0, len(blob) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(DamagedState, match=name[:12]):
        unpack(packed.manifest, verified({name: bytes(damaged)}.__getitem__))
    assert difference(unpack(packed.manifest, verified(packed.blobs.__getitem__)), example()) == []


@pytest.mark.parametrize("cut", [0, 1, 8, 100, -1])
def test_a_truncated_blob_is_found(cut: int) -> None:
    packed = pack(example())
    (blob,) = packed.blobs.values()
    with pytest.raises(DamagedState, match="sha256"):
        unpack(packed.manifest, verified(lambda _: blob[:cut]))


def test_no_flipped_bit_in_a_manifest_passes_unseen() -> None:
    """Every bit of a manifest that has values of all kinds, tensors and segments."""
    packed = pack(example())
    parts = [named(save({"segment": torch.full((2, 3), float(i))})) for i in range(2)]
    blobs = {**packed.blobs, **parts[0][1], **parts[1][1]}
    content = json.loads(packed.manifest) | {"segments": {"buffer": [name for name, _ in parts]}}
    manifest = canonical_json(content)
    kept = digest(unpack(manifest, fetcher(blobs)))
    same = []
    for bit in range(8 * len(manifest)):
        damaged = bytearray(manifest)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            tree = unpack(bytes(damaged), fetcher(blobs))
        except (DamagedState, StateMismatch):
            continue
        if digest(tree) == kept:
            same.append(bytes(damaged))
    assert same == []


@given(st.data())
def test_a_truncated_manifest_is_found(data: st.DataObject) -> None:
    packed = pack(example())
    cut = data.draw(st.integers(0, len(packed.manifest) - 1))
    with pytest.raises(DamagedState, match="must be JSON"):
        unpack(packed.manifest[:cut], fetcher(packed.blobs))


@pytest.mark.parametrize("format", [0, 2, "1", None, [1], {"a": 1}])
def test_another_format_is_refused_with_its_cure(format: Any) -> None:
    manifest = canonical_json({"format": format, "values": {}, "segments": {}, "tensors": None})
    with pytest.raises(StateMismatch, match="use the Rekindle that wrote it"):
        unpack(manifest, {}.__getitem__)


def good(**changes: Any) -> dict[str, Any]:
    return {"format": 1, "values": {}, "segments": {}, "tensors": None, **changes}


HOSTILE = [
    [],
    1,
    "x",
    None,
    {"format": 1},
    good(values=[]),
    good(values=None),
    good(values="abc"),
    good(values={"x": {"float": "1.5"}}),
    good(values={"x": {"nan": "float"}}),
    good(values={"x": {"float": [1]}}),
    good(values={"x": [{"float": "zero"}]}),
    good(values={"a": 1, "a/b": 2}),
    good(values={"a": {}, "a/b": 2}),
    good(segments=[]),
    good(segments={"x": "abc"}),
    good(segments={"x": []}),
    good(segments={"x": [1]}),
    good(segments={"x": None}),
    good(segments={"x": ["0" * 64]}),
    good(tensors=1),
    good(tensors=["0" * 64]),
    good(tensors={"a": 1}),
    good(tensors="../../etc/passwd"),
]


@pytest.mark.parametrize("content", HOSTILE, ids=lambda content: json.dumps(content)[:60])
def test_hostile_json_is_damage(content: Any) -> None:
    with pytest.raises(DamagedState):
        unpack(json.dumps(content).encode(), fetcher({}))


DEEP = b"[" * 700 + b"]" * 700


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"\xff\xfe",
        b"nul",
        b'{"a":1}{"b":2}',
        b'{"format":1' + b"0" * 10_000 + b"}",
        b"[" * 100_000,
        canonical_json(good(values={"x": "DEEP"})).replace(b'"DEEP"', DEEP),
    ],
    ids=lambda manifest: repr(manifest[:20]),
)
def test_invalid_json_is_damage(manifest: bytes) -> None:
    with pytest.raises(DamagedState):
        unpack(manifest, fetcher({}))


def named(data: bytes) -> tuple[str, dict[str, bytes]]:
    name = hashlib.sha256(data).hexdigest()
    return name, {name: data}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not safetensors",
        b"\xff" * 8,
        (2**62).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (66).to_bytes(8, "little") + b'{"x":{"dtype":"F32","shape":[1000000000],"data_offsets":[0,4000]}}',
    ],
)
def test_a_blob_with_the_right_name_and_the_wrong_form_is_damage(data: bytes) -> None:
    name, blobs = named(data)
    for content in (good(tensors=name), good(segments={"x": [name]})):
        with pytest.raises(DamagedState):
            unpack(canonical_json(content), fetcher(blobs))


def test_segments_that_do_not_belong_together_are_damage() -> None:
    one, blobs = named(save({"segment": torch.zeros(2, 3)}))
    for other in ({"segment": torch.zeros(2, 4)}, {"other": torch.zeros(2, 3)}, {"segment": torch.tensor(1.0)}):
        name, more = named(save(other))
        with pytest.raises(DamagedState):
            unpack(canonical_json(good(segments={"x": [one, name]})), fetcher(blobs | more))


def test_a_path_that_is_given_twice_is_damage() -> None:
    name, blobs = named(save({"x": torch.zeros(2)}))
    for content in (good(values={"x": 1}, tensors=name), good(values={"x/y": 1}, tensors=name)):
        with pytest.raises(DamagedState):
            unpack(canonical_json(content), fetcher(blobs))


def test_no_blob_is_unpickled(tmp_path: Any) -> None:
    import pickle

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return open, (str(tmp_path / "boom"), "w")

    for data in (pickle.dumps(Bomb()), pickle.dumps({"x": Bomb()}, 0)):
        name, blobs = named(data)
        with pytest.raises(DamagedState):
            unpack(canonical_json(good(tensors=name)), fetcher(blobs))
    assert list(tmp_path.iterdir()) == []


# Comparing forms


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "lacks a, b/c"),
        ({"a": 1, "b": {"c": torch.zeros(2)}, "d": 2}, "unknown d"),
        ({"a": torch.zeros(1), "b": {"c": torch.zeros(2)}}, "a must be a int, but got a Tensor"),
        ({"a": 1, "b": {"c": torch.zeros(3)}}, r"b/c must be torch.float32 of shape \(2,\).*\(3,\)"),
        ({"a": 1, "b": {"c": torch.zeros(2, dtype=torch.int64)}}, "b/c must be torch.float32.*torch.int64"),
        ({"a": 1, "b": {"c": [0.0, 0.0]}}, "b/c must be a Tensor, but got a list"),
    ],
)
def test_another_form_is_refused_by_path(given: dict[str, Any], message: str) -> None:
    with pytest.raises(StateMismatch, match=f"here: .*{message}"):
        state.check_same_form({"a": 1, "b": {"c": torch.zeros(2)}}, given, "here")


def test_the_errors_of_states_are_errors_of_tasks() -> None:
    assert issubclass(DamagedState, TaskError)
    assert issubclass(StateMismatch, TaskError)
    assert issubclass(StateMismatch, ValueError)


def test_objects_in_a_list_come_back() -> None:
    tree = {"wrappers": [{"entry_point": "a:B", "kwargs": {"x": [1, 2.5, None]}}, {}, 3]}
    packed = pack(tree)
    assert unpack(packed.manifest, packed.blobs.__getitem__) == tree


def test_an_object_in_a_list_that_is_no_json_is_refused() -> None:
    with pytest.raises(TypeError, match="wrappers has"):
        pack({"wrappers": [{"x": object()}]})
