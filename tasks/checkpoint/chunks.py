"""Large tensors in chunks; a checkpoint packs only the new ones.

A chunk is about CHUNK bytes of a tensor, cut along its first axis, and its blob is named by its content. After a few
thousand transitions were added to a replay buffer, one or two chunks are new, and the others are known by name. Stored
manifests call chunks segments.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import save as save_safetensors
from torch import Tensor

from ..errors import StateMismatch

CHUNK = 1 << 20  # bytes


@dataclass(frozen=True)
class Chunked:
    """A large tensor whose owner knows which parts changed.

    As a leaf it packs to the same bytes as the tensor. Chunks whose digest is known are neither copied nor hashed
    again. It is a view of live data, so it must be packed, materialized or loaded before its owner continues.

    Attributes:
        tensor: the tensor.
        digests: digests of the chunks as far as known; the owner keeps the list, and `pack` fills it in.
        written: number of rows written so far; later rows are zero.
    """

    tensor: Tensor
    digests: list[str | None]
    written: int

    def __post_init__(self) -> None:
        if not self.digests:
            self.digests.extend([None] * -(-len(self.tensor) // chunk_rows(self.tensor)))

    def changed(self, rows: NDArray[np.int64]) -> None:
        """Forget the digests of the chunks that contain these rows."""
        for chunk in np.unique(rows // chunk_rows(self.tensor)).tolist():
            self.digests[chunk] = None


def chunk_rows(tensor: Tensor) -> int:
    """Return the number of rows of a large tensor in one chunk."""
    return max(1, CHUNK * len(tensor) // max(1, tensor.nbytes))


class Blobs(Mapping[str, bytes]):
    """Blobs by their sha256.

    Blobs that were packed before are only created again if they are read.
    """

    def __init__(self, created: dict[str, bytes], packed: dict[str, Tensor]):
        self.created, self.packed = created, packed

    def __getitem__(self, name: str) -> bytes:
        if name in self.created:
            return self.created[name]
        data = chunk_bytes(self.packed[name])
        if hashlib.sha256(data).hexdigest() != name:
            raise StateMismatch(f"blob {name[:12]} must be read before training continues, but its rows have changed")
        return data

    def __iter__(self) -> Iterator[str]:
        return iter({**self.created, **self.packed})

    def __len__(self) -> int:
        return len(self.created.keys() | self.packed.keys())


def chunk_bytes(part: Tensor) -> bytes:
    """Return a chunk as the blob in which it is stored."""
    return save_safetensors({"segment": part.clone()})  # stored manifests and blobs keep this older name


def pack_chunked(leaf: Chunked, add: Callable[[bytes], str], packed: dict[str, Tensor]) -> list[str]:
    """Return the digests of all chunks, and pack those that are new.

    Args:
        leaf: the tensor.
        add: function that stores a blob and returns its name.
        packed: receives the chunks whose digest was known, by name.
    """
    rows = chunk_rows(leaf.tensor)
    blank: dict[int, str] = {}  # names of chunks of zeros by their length, so that each is hashed once
    for i, part in enumerate(leaf.tensor.split(rows)):
        name = leaf.digests[i]
        if name is None:
            name = blank.get(len(part)) or add(chunk_bytes(part))
            leaf.digests[i] = name
            if i * rows >= leaf.written:
                blank[len(part)] = name
        else:
            packed[name] = part
    return [name for name in leaf.digests if name is not None]
