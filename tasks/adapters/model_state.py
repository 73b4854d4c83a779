"""The state of a model of Stable-Baselines3 or sbx as data."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from ..errors import NotData
from .jax_trees import is_tree, leaves_of, with_leaves
from .subclass_state import added_data, additions_of, are_equal, changed_from, is_fixed, load_additions, parameters_of

ADDED, CHANGED = "added attributes", "changed arguments"  # entries of the state of a user's class


def moments_of(venv: VecEnv) -> dict[str, Any]:
    """Return what VecNormalize has learned, and its environments' running sums."""
    values: dict[str, Any] = {}
    for name, value in vars(venv).items():
        if isinstance(value, RunningMeanStd):
            values[name] = [value.mean, value.var, value.count]
        elif isinstance(value, np.ndarray):
            values[name] = value
    return values


def set_moments(venv: VecEnv, name: str, values: Any) -> None:
    if isinstance(moments := getattr(venv, name, None), RunningMeanStd):
        moments.mean, moments.var, moments.count = values
    else:
        setattr(venv, name, values)


def state_of(model: BaseAlgorithm, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything in a model that is data, by attribute.

    Args:
        model: the model.
        arguments: its arguments, see `arguments_of`.
    """
    options: dict[str, Any] = {}
    additions = additions_of(model)
    # a branch has its own values of what it is given
    supplied = {"start_time", "horizon", *parameters_of(type(model).__mro__)} - {"policy"}
    for name, value in vars(model).items():
        if name in supplied or isinstance(additions.get(name), deque):
            continue
        if (content := _data(value)) is not ...:
            options[name] = content
    options["action_space"] = model.action_space.np_random.bit_generator.state
    parts = {name: added_data(value) for name, value in additions.items() if name not in options}
    added = {name: part for name, part in parts.items() if part is not ...}
    changed = changed_from(model, arguments)
    options |= {name: part for name, part in ((ADDED, added), (CHANGED, changed)) if part}
    return options


def lost_from(model: BaseAlgorithm) -> dict[str, Any]:
    """Return a user's attributes that may change and cannot be stored."""
    additions = additions_of(model).items()
    return {name: x for name, x in additions if _data(x) is ... and added_data(x) is ... and not is_fixed(x)}


def _data(value: Any) -> Any:
    """Return an attribute's data; ... if it has none."""
    if is_tree(value):
        return {"tree": leaves_of(value)}
    if isinstance(value, nn.Module):
        optimizers = {f"optimizer of {path}": x.state_dict() for path, x in _optimizers(value)}
        trees = {name: _data(part) for name, part in vars(value).items() if is_tree(part)}
        return {"module": value.state_dict(), **optimizers, **trees}
    if isinstance(value, torch.optim.Optimizer):
        return value.state_dict()
    if isinstance(value, ReplayBuffer):
        return _content(value)
    if isinstance(value, deque) or (isinstance(value, list) and all(isinstance(part, Mapping) for part in value)):
        return [*value]  # results of episodes
    if isinstance(value, tuple) and all(_data(part) is not ... for part in value):  # such as the states of an LSTM
        return tuple(_data(part) for part in value)
    if _is_record(value):  # such as an adaptive learning rate
        return {name: x for name, part in vars(value).items() if (x := _data(part)) is not ...}
    if value is None or isinstance(value, Tensor | np.ndarray | np.generic | bool | int | float):
        return value
    return ...


def _is_record(value: Any) -> bool:
    """Return whether a value is a dataclass whose fields can be set.

    Those of flax's modules cannot.
    """
    return is_dataclass(value) and not isinstance(value, type) and type(value).__setattr__ is object.__setattr__


def _content(buffer: ReplayBuffer) -> dict[str, Any]:
    """Return what a replay buffer has gathered, by attribute.

    Raises:
        NotData: it holds something else than data.
    """
    content = {}
    for name, value in vars(buffer).items():
        if name in ("obs_shape", "action_dim", *parameters_of(type(buffer).__mro__)):
            continue
        content[name] = _data(value)
        if content[name] is ...:
            raise NotData(
                f"a replay buffer holds arrays, numbers and tensors, but {type(buffer).__name__} has a "
                f"{type(value).__name__} as {name}; keep its numbers in arrays"
            )
    return content


def _optimizers(module: nn.Module) -> Iterator[tuple[str, torch.optim.Optimizer]]:
    """Yield the optimizers that a policy and its networks hold."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, torch.optim.Optimizer):
                yield f"{path}.{name}".lstrip("."), value


def load_state(model: BaseAlgorithm, state: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
    """Load what `state_of` returned.

    An argument that training has changed is loaded unless another one is given.

    Raises:
        LookupError, RuntimeError, TypeError, ValueError: it is of another model.
    """
    for name, content in state.items():
        value = getattr(model, name, None)
        if name == ADDED:
            load_additions(model, content)
        elif name == CHANGED:
            vars(model).update(
                {key: now for key, (x, now) in content.items() if key in arguments and are_equal(x, arguments[key])}
            )
        elif name == "action_space":
            model.action_space.np_random.bit_generator.state = content
        elif isinstance(value, nn.Module):
            value.load_state_dict(content["module"])
            for path, optimizer in _optimizers(value):
                optimizer.load_state_dict(content[f"optimizer of {path}"])
            for part in [part for part, tree in vars(value).items() if is_tree(tree)]:
                setattr(value, part, with_leaves(getattr(value, part), content[part]["tree"]))
        elif isinstance(value, torch.optim.Optimizer):
            value.load_state_dict(content)
        elif isinstance(value, ReplayBuffer):
            vars(value).update(content)
        elif isinstance(content, list) and name.startswith("ep_"):
            setattr(model, name, deque(content, maxlen=model._stats_window_size))
        elif isinstance(value, Tensor):
            with torch.no_grad():
                value.copy_(content)
        elif isinstance(content, Mapping) and [*content] == ["tree"]:
            setattr(model, name, with_leaves(value, content["tree"]))
        elif _is_record(value):
            vars(value).update(content)
        elif isinstance(value, tuple):
            setattr(model, name, _like(value, content))
        else:
            setattr(model, name, content)


def _like(value: Any, content: Any) -> Any:
    """Return data with the types of a nested tuple, and its devices."""
    if isinstance(value, tuple):
        parts = [_like(one, other) for one, other in zip(value, content, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return content.to(value.device) if isinstance(value, Tensor) else content
