"""The state of a model of Stable-Baselines3 or sbx as data."""

from __future__ import annotations

import copy
import dis
import inspect
import logging
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor, nn

from ..errors import NotData
from .data import encode
from .jax_trees import is_tree, leaves_of, with_leaves

KNOWN = ("stable_baselines3", "sb3_contrib", "sbx", "rekindle", "abc", "typing", "builtins")  # others' classes aside
ADDED, CHANGED = "added attributes", "changed arguments"  # entries of the state of a user's class
FIXED = (type, ModuleType, torch.device, torch.dtype, np.dtype, Enum, gym.Space, gym.Env, logging.Logger, PurePath)


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
    additions = added_to(model) if is_subclass(model) else {}
    # a branch has its own values of what it is given
    supplied = {"start_time", "horizon", *parameters_of(type(model).__mro__)} - {"policy"}
    for name, value in vars(model).items():
        if name in supplied or isinstance(additions.get(name), deque):
            continue
        if (content := _data(value)) is not ...:
            options[name] = content
    options["action_space"] = model.action_space.np_random.bit_generator.state
    if is_subclass(model):
        added = {name: x for name, part in additions.items() if name not in options and (x := _added(part)) is not ...}
        changed = {name: [x, vars(model)[name]] for name, x in arguments.items() if not _same(x, vars(model)[name])}
        options |= {name: part for name, part in ((ADDED, added), (CHANGED, changed)) if part}
    return options


def is_subclass(model: BaseAlgorithm) -> bool:
    """Return whether a model is of a class of the user's."""
    return not all(_is_known(part) for part in type(model).__mro__)


def arguments_of(model: BaseAlgorithm) -> dict[str, Any]:
    """Return arguments of a user's class, which training may change."""
    names = parameters_of(type(model).__mro__) if is_subclass(model) else ()
    return {name: copy.deepcopy(vars(model)[name]) for name in names if _is_encoded(vars(model).get(name, ...))}


def added_to(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the attributes that the user's classes alone have set."""
    names = {"horizon", *parameters_of(type(model).__mro__), *_set_by_libraries(type(model))}
    return {name: value for name, value in vars(model).items() if name not in names}


def lost_from(model: BaseAlgorithm) -> dict[str, Any]:
    """Return a user's attributes that may change and cannot be stored."""
    if not is_subclass(model):
        return {}
    values = added_to(model).items()
    return {name: x for name, x in values if _data(x) is ... and _added(x) is ... and not _is_fixed(x)}


@cache
def _set_by_libraries(model_class: type) -> frozenset[str]:
    """Return the attributes that the libraries' classes set."""
    parts = (value for part in model_class.__mro__ if _is_known(part) for value in vars(part).values())
    functions = (getattr(part, "__func__", part) for part in parts)
    steps = (step for part in functions if isinstance(part, FunctionType) for step in dis.get_instructions(part))
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR")


def _is_known(part: type) -> bool:
    return part.__module__.partition(".")[0] in KNOWN


def _added(value: Any) -> Any:
    """Return the data of an added attribute; ... if it has none."""
    if (state := _generator_state(value)) is not ...:
        return {"generator": state}
    return {"data": [*value] if isinstance(value, deque) else value} if _is_encoded(value) else ...


def _generator_state(value: Any) -> Any:
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState | torch.Generator):
        return value.get_state()
    return value.getstate() if isinstance(value, random.Random) else ...


def _set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.RandomState | torch.Generator):
        generator.set_state(state)
    else:
        generator.setstate(state)


def _is_encoded(value: Any) -> bool:
    """Return whether a value is data."""
    try:
        encode([*value] if isinstance(value, deque) else value, "a value")
    except NotData:
        return False
    return True


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal, as far as they are data."""
    if not (_is_encoded(one) and _is_encoded(other)):
        return True
    trees = [encode(value, "a value") for value in (one, other)]
    arrays, others = (tree["arrays"] for tree in trees)
    return bool(
        trees[0]["form"] == trees[1]["form"] and all(torch.equal(x, others[name]) for name, x in arrays.items())
    )


def _is_fixed(value: Any) -> bool:
    """Return whether a value is code, or kept elsewhere."""
    if isinstance(value, tuple):
        return all(_is_fixed(part) or _is_encoded(part) for part in value)
    if is_dataclass(value) and type(value).__setattr__ is not object.__setattr__:  # frozen, as flax's modules are
        return True
    return callable(value) or isinstance(value, FIXED) or _is_known(type(value))


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


def parameters_of(line: Sequence[type]) -> set[str]:
    """Return the names of the arguments of a class and its bases."""
    signatures = [inspect.signature(part) for part in line if "__init__" in vars(part) and part is not object]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name for one in signatures for name, x in one.parameters.items() if x.kind not in several}


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
            _load_added(model, content)
        elif name == CHANGED:
            vars(model).update(
                {key: now for key, (x, now) in content.items() if key in arguments and _same(x, arguments[key])}
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


def _load_added(model: BaseAlgorithm, content: Mapping[str, Any]) -> None:
    for name, kept in content.items():
        value = getattr(model, name, None)
        if "generator" in kept:
            _set_generator(value, kept["generator"])
        else:
            data = kept["data"]
            setattr(model, name, deque(data, maxlen=value.maxlen) if isinstance(value, deque) else data)


def _like(value: Any, content: Any) -> Any:
    """Return data with the types of a nested tuple, and its devices."""
    if isinstance(value, tuple):
        parts = [_like(one, other) for one, other in zip(value, content, strict=True)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    return content.to(value.device) if isinstance(value, Tensor) else content
