"""Arguments of a sampler that is an instance already.

Each worker makes its own sampler, so an instance is taken if its class makes an equal one from arguments that can be
written down. Attributes with an argument's name, or its name after an underscore, say what the arguments may have been.
All attributes of both are compared then, so a wrong guess is refused and never used. Random generators are left out:
each trial gets a seed of its own.
"""

from __future__ import annotations

import ast
import inspect
import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler

from ...tasks.runtime.warning_filters import changed_filters
from ..errors import BadConfig

KEPT = {  # Optuna's samplers that remember in attributes of a study, and those here that derive it from the results
    "CmaEsSampler": "cmaes",
    "GridSampler": "grid",
    "NSGAIISampler": "nsgaii",
    "NSGAIIISampler": "nsgaiii",
    "QMCSampler": "qmc",
}
SEED = "seed"
GENERATORS = ("LazyRandomState", "RandomState", "Generator", "Random")  # names of their classes
PARTS: Mapping[type, tuple[str, ...]] = {  # attributes of what Python itself makes
    FunctionType: ("__code__", "__closure__", "__defaults__", "__kwdefaults__"),
    CellType: ("cell_contents",),
    MethodType: ("__func__", "__self__"),
    partial: ("func", "args", "keywords"),
}


def arguments_of(sampler: BaseSampler) -> dict[str, Any]:
    """Return the arguments from which the class makes an equal sampler.

    Arguments that change nothing are left out, and so is the seed.

    Raises:
        BadConfig: no such arguments were found.
    """
    sampler_class, parameters = type(sampler), inspect.signature(type(sampler)).parameters
    arguments: dict[str, Any] = {}
    for attribute, value in _attributes(sampler):
        name = attribute.removeprefix("_")
        if name in parameters and name not in arguments and _is_literal(value):
            arguments[name] = value
    seed = arguments.pop(SEED, 0)
    seeding = {SEED: seed % 2**32 if isinstance(seed, int) else seed} if SEED in parameters else {}

    def lacks(arguments: Mapping[str, Any]) -> str:
        try:
            with changed_filters():
                warnings.simplefilter("ignore")  # the user has seen them
                return _difference(sampler, sampler_class(**arguments, **seeding), "", set())
        except Exception as error:  # noqa: BLE001 - a constructor may raise anything
            return f"arguments ({type(error).__name__}: {error})"

    if missing := lacks(arguments):
        name = sampler_class.__name__
        raise BadConfig(
            f"each worker makes its own sampler, but no arguments were found with which {name} has the {missing} of "
            f"this one; give one that has not been used, or functools.partial({name}, argument=value) with arguments "
            "that are data, or a class of your own in a module, whose constructor sets the others"
        )
    for name in [*arguments]:
        fewer = {other: value for other, value in arguments.items() if other != name}
        arguments = arguments if lacks(fewer) else fewer
    return arguments


def derived(sampler_class: type, arguments: Mapping[str, Any]) -> str:
    """Return the sampler here that stands for one of Optuna's, or ""."""
    is_optunas = getattr(optuna.samplers, sampler_class.__name__, None) is sampler_class
    return KEPT.get(sampler_class.__name__, "") if is_optunas and not arguments else ""


def _attributes(sampler: BaseSampler) -> Iterator[tuple[str, Any]]:
    """Yield all attributes of a sampler, its own first."""
    left, ids = deque[Any]([sampler]), {id(sampler)}
    while left:
        for name, value in _parts(left.popleft()).items():
            yield str(name), value
            if id(value) not in ids and not isinstance(value, BaseSampler | Mapping | list):
                ids.add(id(value))
                left.append(value)


def _parts(value: Any) -> dict[Any, Any]:
    """Return the parts of an object by name, key or index."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple):
        return dict(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    if isinstance(value, type | ModuleType):
        return {}
    slots = [name for part in type(value).__mro__ for name in vars(part).get("__slots__", ())]
    names = (*PARTS.get(type(value), ()), *slots, *getattr(value, "__dict__", ()))
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _difference(one: Any, other: Any, path: str, pairs: set[tuple[int, int]]) -> str:
    """Return the path at which two objects differ, or ""."""
    if one is other or (id(one), id(other)) in pairs or type(one).__name__ in GENERATORS:
        return ""
    pairs.add((id(one), id(other)))
    parts, others = _parts(one), _parts(other)
    if type(one) is not type(other) or parts.keys() != others.keys():
        return path or "attributes"
    if parts:
        names = [name for name in parts if name not in (SEED, f"_{SEED}")]
        below = (_difference(parts[name], others[name], f"{path}.{name}".lstrip("."), pairs) for name in names)
        return next(filter(None, below), "")
    is_empty = vars(object)["__eq__"] is getattr(type(one), "__eq__", None)  # such as a lock
    return path if not is_empty and not np.array_equal(one, other, equal_nan=isinstance(one, float)) else ""


def _is_literal(value: Any) -> bool:
    """Return whether a value is what its text denotes."""
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
