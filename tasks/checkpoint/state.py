"""State as data: trees of tensors and JSON, packed without pickle.

The leaves of a tree are tensors, None, booleans, integers, floats, strings and lists of these. ``pack`` turns a tree
into a manifest (canonical JSON) and blobs (safetensors), each named by its sha256. The digest of a state is the sha256
of its manifest, so equal digests mean equal bits everywhere.

A tensor above CHUNK bytes is cut along its first axis into chunks with one blob each. If a replay buffer only grew,
only its new chunks are new blobs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from ...spaces import unflatten
from ..errors import DamagedState, StateMismatch
from .chunks import CHUNK, Blobs, Chunked, chunk_bytes, chunk_rows, pack_chunked
from .manifests import FORMAT, canonical_json, check_paths, read_manifest

Tree = dict[str, Any]


def materialized(tree: Mapping[str, Any]) -> Tree:
    """Return the tree with copies instead of views of live data."""
    leaves = dict(flatten_tree(tree))
    return unflatten_tree({path: x.tensor.clone() if isinstance(x, Chunked) else x for path, x in leaves.items()})


def _tensor(leaf: Any) -> Any:
    return leaf.tensor if isinstance(leaf, Chunked) else leaf


def flatten_tree(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every leaf with its path, e.g. ``("optimizer/m", tensor)``.

    An empty dict is a leaf.

    Raises:
        TypeError: a name is not a string, or contains "/".
    """
    for name, value in tree.items():
        if not isinstance(name, str) or "/" in name:
            raise TypeError(f"a name in a state must be a string without '/', but {prefix}{name!r} is not")
        if isinstance(value, Mapping) and value:
            yield from flatten_tree(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", value


def unflatten_tree(leaves: Mapping[str, Any]) -> Tree:
    """Return the tree with these leaves."""
    return unflatten(leaves, "/")


def copy(tree: Mapping[str, Any]) -> Tree:
    """Return a deep copy that shares no tensor with the original."""
    leaves = {path: _tensor(leaf) for path, leaf in flatten_tree(tree)}
    return unflatten_tree({path: x.detach().clone() if isinstance(x, Tensor) else x for path, x in leaves.items()})


def difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """Return the paths at which two trees differ in any bit."""
    left, right = dict(flatten_tree(a)), dict(flatten_tree(b))
    return [
        path
        for path in sorted(left.keys() | right.keys())
        if path not in left or path not in right or not _same(left[path], right[path])
    ]


def _same(a: Any, b: Any) -> bool:
    a, b = _tensor(a), _tensor(b)
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and _bytes_of(a) == _bytes_of(b)
    return type(a) is type(b) and canonical_json(_plain("", a)) == canonical_json(_plain("", b))  # 0 is not -0 here


def check_same_form(expected: Mapping[str, Any], actual: Mapping[str, Any], subject: str) -> None:
    """Raise StateMismatch unless two trees have equal paths, shapes and types."""
    left, right = dict(flatten_tree(expected)), dict(flatten_tree(actual))
    for fault, names in (("lacks", left.keys() - right.keys()), ("has unknown", right.keys() - left.keys())):
        if names:
            some = ", ".join(sorted(names)[:5]) + (" ..." if len(names) > 5 else "")
            raise StateMismatch(f"{subject}: the state {fault} {some}")
    for path, want in left.items():
        want, have = _tensor(want), _tensor(right[path])
        if isinstance(want, Tensor) != isinstance(have, Tensor):
            raise StateMismatch(f"{subject}: {path} must be a {type(want).__name__}, but got a {type(have).__name__}")
        if isinstance(want, Tensor) and (want.shape != have.shape or want.dtype != have.dtype):
            raise StateMismatch(
                f"{subject}: {path} must be {want.dtype} of shape {tuple(want.shape)}, "
                f"but got {have.dtype} of shape {tuple(have.shape)}; a state fits tasks with the hyperparameters and "
                "the spaces that it was saved with"
            )


@dataclass(frozen=True)
class Packed:
    """A state as bytes: a manifest, and the blobs that it names."""

    manifest: bytes
    blobs: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """Sha256 of the manifest."""
        return hashlib.sha256(self.manifest).hexdigest()


def pack(tree: Mapping[str, Any]) -> Packed:
    """Return a state as bytes; equal states give equal bytes.

    Raises:
        TypeError: a leaf is not data; the message names it.
    """
    values: dict[str, Any] = {}
    small: dict[str, Tensor] = {}
    blobs: dict[str, bytes] = {}
    packed: dict[str, Tensor] = {}
    chunks: dict[str, list[str]] = {}

    def add(data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        blobs[name] = data
        return name

    for path, leaf in flatten_tree(tree):
        if not isinstance(leaf, Tensor | Chunked):
            values[path] = _plain(path, leaf)
            continue
        tensor = _tensor(leaf).detach().to("cpu").contiguous()
        if tensor.nbytes <= CHUNK or tensor.ndim == 0 or len(tensor) == 1:
            small[path] = tensor.clone()  # a copy: safetensors takes neither parts of a tensor nor one twice
        elif isinstance(leaf, Chunked):
            chunks[path] = pack_chunked(leaf, add, packed)
        else:
            chunks[path] = [add(chunk_bytes(part)) for part in tensor.split(chunk_rows(tensor))]
    tensors = add(save_safetensors(small)) if small else None
    manifest = {"format": FORMAT, "values": values, "segments": chunks, "tensors": tensors}
    return Packed(canonical_json(manifest), Blobs(blobs, packed) if packed else blobs)


def unpack(manifest: bytes, fetch: Callable[[str], bytes]) -> Tree:
    """Return the tree of a manifest.

    Args:
        manifest: canonical JSON.
        fetch: function that returns a blob by its sha256 and verifies it, see `verified`.

    Raises:
        DamagedState: the manifest or a blob lacks the form that `pack` gives it.
    """
    values, chunks, tensors = read_manifest(manifest)
    parts = [values, _load(tensors, fetch) if tensors is not None else {}]
    check_paths([*parts[1]])
    parts.append({path: _join(path, names, fetch) for path, names in chunks.items()})
    leaves = {path: leaf for part in parts for path, leaf in part.items()}
    above = {path[:end] for path in leaves for end, sign in enumerate(path) if sign == "/"}
    if len(leaves) < sum(map(len, parts)) or above & leaves.keys():
        raise DamagedState("a checkpoint's manifest must name every path once, and none inside a leaf, but it does not")
    return unflatten_tree(leaves)


def _join(path: str, names: list[str], fetch: Callable[[str], bytes]) -> Tensor:
    """Return a tensor from its chunks."""
    try:
        parts = {name: _load(name, fetch)["segment"] for name in dict.fromkeys(names)}  # equal chunks share a blob
        size, free = sum(parts[name].nbytes for name in names), psutil.virtual_memory().available
        if size > free:
            raise DamagedState(
                f"{path} must fit into memory, but has {size:,} bytes, and {free:,} are free; use a "
                "machine with more, if it is not damaged"
            )
        return torch.cat([parts[name] for name in names])
    except (KeyError, RuntimeError, TypeError) as error:
        raise DamagedState(f"the chunks of {path} must be parts of one tensor, but: {error}") from None


def verified(fetch: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """Return a `fetch` for `unpack` that verifies blobs by their names.

    It raises DamagedState for a blob whose sha256 is not its name.
    """

    def fetch_verified(name: str) -> bytes:
        data = fetch(name)
        if hashlib.sha256(data).hexdigest() != name:
            raise DamagedState(f"blob {name[:12]} must have the sha256 that names it, but its {len(data)} bytes do not")
        return data

    return fetch_verified


def _load(name: str, fetch: Callable[[str], bytes]) -> dict[str, Tensor]:
    data = fetch(name)
    try:
        return load_safetensors(data)
    except (SafetensorError, ValueError, KeyError, RuntimeError, TypeError, OverflowError) as error:
        raise DamagedState(f"blob {name[:12]} is not in safetensors form: {error}") from None


def _bytes_of(tensor: Tensor) -> bytes:
    if not tensor.numel():
        return b""  # an empty tensor cannot be viewed as bytes
    return bytes(tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _object(path: str, item: Mapping[str, Any]) -> dict[str, str]:
    try:
        return {"json": canonical_json(item).decode()}
    except (TypeError, ValueError) as error:
        raise TypeError(f"a state's lists hold JSON objects only, but {path} has {item!r}: {error}") from None


def _plain(path: str, leaf: Any) -> Any:
    """Return a leaf as JSON.

    Floats that JSON lacks become {"float": name}, and objects within a list become {"json": text}.
    """
    if isinstance(leaf, Mapping) and not leaf:
        return {}
    if isinstance(leaf, list):
        return [_object(path, item) if isinstance(item, Mapping) and item else _plain(path, item) for item in leaf]
    if isinstance(leaf, float) and not math.isfinite(leaf):
        return {"float": str(leaf)}
    if leaf is None or isinstance(leaf, bool | int | float | str):
        return leaf
    raise TypeError(f"a state holds tensors and JSON values only, but {path} is a {type(leaf).__name__}")
