"""The state that users' subclasses add to that of their models.

A subclass may set attributes of its own, and change its arguments while it trains. What the libraries' classes set is
stored with the rest of the model, see `model_state`.
"""

from __future__ import annotations

import copy
import dis
import inspect
import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
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

from ..errors import NotData
from .data import encode

KNOWN = ("stable_baselines3", "sb3_contrib", "sbx", "rekindle", "abc", "typing", "builtins")  # others' classes aside
FIXED = (type, ModuleType, torch.device, torch.dtype, np.dtype, Enum, gym.Space, gym.Env, logging.Logger, PurePath)


def is_subclass(model: BaseAlgorithm) -> bool:
    """Return whether a model is of a class of the user's."""
    return not all(map(_is_known, type(model).__mro__))


def arguments_of(model: BaseAlgorithm) -> dict[str, Any]:
    """Return arguments of a user's class, which training may change."""
    names = parameters_of(type(model).__mro__) if is_subclass(model) else ()
    return {name: copy.deepcopy(vars(model)[name]) for name in names if _is_encoded(vars(model).get(name, ...))}


def changed_from(model: BaseAlgorithm, arguments: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the arguments that training has changed, each with its present value."""
    present = vars(model)
    return {name: [value, present[name]] for name, value in arguments.items() if not are_equal(value, present[name])}


def additions_of(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the attributes that the user's classes alone have set."""
    if not is_subclass(model):
        return {}
    names = {"horizon", *parameters_of(type(model).__mro__), *_set_by_libraries(type(model))}
    return {name: value for name, value in vars(model).items() if name not in names}


@cache
def _set_by_libraries(model_class: type) -> frozenset[str]:
    """Return the attributes that the libraries' classes set."""
    parts = (value for part in model_class.__mro__ if _is_known(part) for value in vars(part).values())
    functions = (getattr(part, "__func__", part) for part in parts)
    steps = (step for part in functions if isinstance(part, FunctionType) for step in dis.get_instructions(part))
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR")


def _is_known(part: type) -> bool:
    return part.__module__.partition(".")[0] in KNOWN


def added_data(value: Any) -> Any:
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


def are_equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal, as far as they are data."""
    if not (_is_encoded(one) and _is_encoded(other)):
        return True
    trees = [encode(value, "a value") for value in (one, other)]
    arrays, others = (tree["arrays"] for tree in trees)
    return bool(
        trees[0]["form"] == trees[1]["form"] and all(torch.equal(x, others[name]) for name, x in arrays.items())
    )


def is_fixed(value: Any) -> bool:
    """Return whether a value is code, or kept elsewhere."""
    if isinstance(value, tuple):
        return all(is_fixed(part) or _is_encoded(part) for part in value)
    if is_dataclass(value) and type(value).__setattr__ is not object.__setattr__:  # frozen, as flax's modules are
        return True
    return callable(value) or isinstance(value, FIXED) or _is_known(type(value))


def load_additions(model: BaseAlgorithm, content: Mapping[str, Any]) -> None:
    """Load the data of added attributes."""
    for name, kept in content.items():
        value = getattr(model, name, None)
        if "generator" in kept:
            _set_generator(value, kept["generator"])
        else:
            data = kept["data"]
            setattr(model, name, deque(data, maxlen=value.maxlen) if isinstance(value, deque) else data)


def parameters_of(line: Sequence[type]) -> set[str]:
    """Return the names of the arguments of a class and its bases."""
    signatures = [inspect.signature(part) for part in line if "__init__" in vars(part) and part is not object]
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name for one in signatures for name, x in one.parameters.items() if x.kind not in several}
