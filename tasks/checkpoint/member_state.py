"""Parts of a learner that hold state for P members at once.

Every part answers two calls: ``member_state(i)``, one member's state as a tree of copies, and ``load_member(i, tree)``.
Nearly all parts are tensors with a leading member axis; for those the class below does both.

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
    """A part of a learner whose state splits member by member."""

    def member_state(self, member: int) -> Tree:
        """Return one member's state; a copy."""

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        """Load a state into one member's place, in the form of `member_state`."""


class Stacked:
    """A part whose whole state is tensors (P, ...).

    They change in place only, so that views stay true.
    """

    tensors: dict[str, Tensor]

    def member_state(self, member: int) -> Tree:
        return {name: tensor[member].detach().to("cpu", copy=True) for name, tensor in self.tensors.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, tensor in self.tensors.items():
                tensor[member].copy_(tree[name])


class Composite:
    """A part of several named parts.

    Attributes:
        parts: by name.
        tensors: those that must stay finite.
    """

    def __init__(self, **parts: Part | None):
        """Store the parts; None is left out."""
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
