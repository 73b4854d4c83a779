"""Layers of an environment: wrappers, itself, and what it wraps."""

from __future__ import annotations

import sys
from typing import Any

from ..base.failures import attribute

UNREAD = ("rekindle", "gymnasium", "builtins")  # packages whose environments are known
INNER = ("env", "aec_env")  # attributes of wrappers and conversions


def layers_of(env: Any) -> list[Any]:
    """Return an environment and what it wraps, the outermost first."""
    layers = [env]
    while True:
        names = attribute(layers[-1], "__dict__") or {}
        inner = next((names[name] for name in INNER if attribute(names.get(name), "step")), None)
        if inner is None or any(inner is layer for layer in layers):
            return layers
        layers.append(inner)


def modules_of(env: Any) -> list[Any]:
    """Return the modules of the classes of an environment's layers."""
    names = {base.__module__ for layer in layers_of(env) for base in type(layer).__mro__}
    return [sys.modules[name] for name in sorted(names) if is_of_environment(name) and name in sys.modules]


def is_of_environment(module: str) -> bool:
    """Return whether a module may be the environment's."""
    top = module.partition(".")[0]
    return top not in UNREAD and top not in sys.stdlib_module_names
