"""State of torch's own modules and optimizers, for one member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import StateMismatch
from .member_state import Part
from .state import Tree


class ModulePart:
    """A `torch.nn.Module` as a part: its parameters and buffers.

    Attributes:
        tensors: tensors that must stay finite, (1, ...).
    """

    def __init__(self, module: nn.Module):
        self.module = module

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor.detach()[None] for name, tensor in self.module.state_dict().items()}

    def member_state(self, member: int) -> Tree:
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in self.module.state_dict().items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        self.module.load_state_dict(tree)


class OptimizerPart:
    """A `torch.optim.Optimizer` as a part: its state for each parameter.

    Its hyperparameters belong to the task, not to the state, since a branch trains with its own.
    """

    checks_form = True

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer

    def member_state(self, member: int) -> Tree:
        moments = self.optimizer.state_dict()["state"]
        return {str(index): {name: _copy(value) for name, value in row.items()} for index, row in moments.items()}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        shapes = {str(index): parameter.shape for index, parameter in enumerate(parameters)}
        for index, row in tree.items():
            sizes = {tuple(value.shape) for value in row.values() if isinstance(value, Tensor)}
            if index not in shapes or not sizes <= {(), tuple(shapes[index])}:
                raise StateMismatch(
                    f"{type(self.optimizer).__name__}: what an optimizer remembers has its parameter's shape, but "
                    f"parameter {index} of {len(parameters)} has {sorted(sizes)}"
                )
        groups = self.optimizer.state_dict()["param_groups"]
        state = {int(index): {name: _copy(value) for name, value in row.items()} for index, row in tree.items()}
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})


def part_of(value: Any) -> Part | None:
    """Return an attribute as a part; None if it has no state."""
    if isinstance(value, nn.Module):
        return ModulePart(value)
    if isinstance(value, torch.optim.Optimizer):
        return OptimizerPart(value)
    return value if isinstance(value, Part) else None


def _copy(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
