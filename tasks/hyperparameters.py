"""Hyperparameters of P members as a learner computes with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from ..spaces import Space, SpaceError, flatten, unflatten
from ..spaces.dimension import Maybe


def stack_hyperparameters(
    space: Space, values: Sequence[Mapping[str, Any]], device: torch.device | str, batched: bool = True
) -> SimpleNamespace:
    """Stack the hyperparameters of P members.

    Structural ones stay plain values; the others become (P, 1) tensors. The record has every hyperparameter of the
    space, nested; those that do not apply are None.

    Args:
        space: the hyperparameters.
        values: complete values of each member.
        device: torch device.
        batched: whether members train in one computation; else values that are no numbers stay plain.

    Raises:
        SpaceError: a hyperparameter that is not structural has values that are no numbers.
    """
    space = space.of(values[0])
    columns = [space.dynamic(member) for member in values]
    flat: dict[str, Any] = {**dict.fromkeys(space.flat()), **flatten(values[0])}
    for name in columns[0]:
        dimension = space.flat()[name]
        dimension = dimension.dimension if isinstance(dimension, Maybe) else dimension
        others = [value for value in getattr(dimension, "values", ()) if not isinstance(value, bool | int | float)]
        if others and not batched:
            continue
        if others:
            raise SpaceError(
                f"{name} must have numbers as values, or be declared with structural=True, since members whose values "
                f"are in one tensor train together, but one of its values is {others[0]!r}"
            )
        flat[name] = torch.tensor([column[name] for column in columns], dtype=torch.float32, device=device).unsqueeze(1)
    return _namespace(unflatten(flat))


def _namespace(values: Mapping[str, Any]) -> SimpleNamespace:
    return SimpleNamespace(**{name: _namespace(x) if isinstance(x, dict) else x for name, x in values.items()})
