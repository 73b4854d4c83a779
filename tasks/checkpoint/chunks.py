"""Large tensors in chunks, of which a checkpoint packs only new ones.

A segment is about SEGMENT bytes of a tensor, cut along its first axis; its blob is named by its content. So of a memory
that a few thousand transitions were added to, one or two segments are new, and the others are known by name.
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

SEGMENT = 1 << 20  # bytes


@dataclass(frozen=True)
class Segmented:
    """A large tensor whose owner knows which parts changed.

    As a leaf it packs to the same bytes as the tensor.

    Segments whose digest is known are neither copied nor hashed again. It is a view of live data: it is to be packed,
    settled or loaded before its owner goes on.

    Attributes:
        digests: of the segments, as far as known; the owner keeps the list, `pack` fills it in.
        written: rows from here on were never written, and are zero.
    """

    tensor: Tensor
    digests: list[str | None]
    written: int

    def __post_init__(self) -> None:
        if not self.digests:
            self.digests.extend([None] * -(-len(self.tensor) // segment_rows(self.tensor)))

    def changed(self, rows: NDArray[np.int64]) -> None:
        """Forget the digests of the chunks of these rows."""
        for segment in np.unique(rows // segment_rows(self.tensor)).tolist():
            self.digests[segment] = None


def segment_rows(tensor: Tensor) -> int:
    """Return the number of rows of a large tensor in one chunk."""
    return max(1, SEGMENT * len(tensor) // max(1, tensor.nbytes))


class Blobs(Mapping[str, bytes]):
    """Blobs by their sha256.

    Those that were packed before are made again only if they are asked for.
    """

    def __init__(self, made: dict[str, bytes], known: dict[str, Tensor]):
        self.made, self.known = made, known

    def __getitem__(self, name: str) -> bytes:
        if name in self.made:
            return self.made[name]
        data = segment_bytes(self.known[name])
        if hashlib.sha256(data).hexdigest() != name:
            raise StateMismatch(f"blob {name[:12]} must be read before training goes on, but its rows have changed")
        return data

    def __iter__(self) -> Iterator[str]:
        return iter({**self.made, **self.known})

    def __len__(self) -> int:
        return len(self.made.keys() | self.known.keys())


def segment_bytes(part: Tensor) -> bytes:
    """Return a chunk as the blob that it is stored in."""
    return save_safetensors({"segment": part.clone()})


def pack_segmented(leaf: Segmented, add: Callable[[bytes], str], known: dict[str, Tensor]) -> list[str]:
    """Return the digests of all chunks, and pack those that are new.

    Chunks with a known digest are noted.
    """
    rows = segment_rows(leaf.tensor)
    blank: dict[int, str] = {}  # by their length: segments that were never written are all the same
    for i, part in enumerate(leaf.tensor.split(rows)):
        name = leaf.digests[i]
        if name is None:
            name = blank.get(len(part)) or add(segment_bytes(part))
            leaf.digests[i] = name
            if i * rows >= leaf.written:
                blank[len(part)] = name
        else:
            known[name] = part
    return [name for name in leaf.digests if name is not None]
