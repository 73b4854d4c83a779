"""Parts of a learner, which hold the state of P members.

Every part has two methods: ``member_state(i)`` returns one member's state as a tree, and ``load_member(i, tree)`` loads
it. Nearly all parts are tensors with a leading member axis; `Stacked` implements both for those.

Notation used for tensor shapes: P members, T steps, N environments, B batch, D numbers in a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .state import Tree


@runtime_checkable
class Part(Protocol):
    """A part of a learner whose state splits by member.

    A part whose state changes its form during training has the attribute ``checks_form = True``, and checks the
    form of a state that it loads.
    """

    def member_state(self, member: int) -> Tree:
        """Return one member's state.

        Tensors are copies, or views of live data as `chunks.Chunked`.
        """

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        """Load a state, in the form of `member_state`, into one member."""


class Stacked:
    """A part whose whole state is tensors (P, ...).

    They only change in place, so views of them stay valid.
    """

    tensors: dict[str, Tensor]

    def member_state(self, member: int) -> Tree:
        return {name: tensor[member].detach().to("cpu", copy=True) for name, tensor in self.tensors.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor[member].copy_(tree[name])


class Composite:
    """A part that consists of several named parts.

    Attributes:
        parts: parts by name.
        tensors: tensors that must stay finite.
    """

    def __init__(self, **parts: Part | None):
        """Store the parts, except those that are None."""
        self.parts = {name: part for name, part in parts.items() if part is not None}
        stacked = {name: part for name, part in self.parts.items() if isinstance(part, Stacked | Composite)}
        self.tensors: dict[str, Tensor] = {
            f"{name}.{path}": x for name, part in stacked.items() for path, x in part.tensors.items()
        }

    def member_state(self, member: int) -> Tree:
        return {name: part.member_state(member) for name, part in self.parts.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_member(member, tree[name])
