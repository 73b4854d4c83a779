"""Errors for what an environment's own code raises, or lacks."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from ...errors import EnvironmentFailed, is_lack_of_memory
from .spec import EnvSpec, EnvSpecError


def refusal(what: str, error: Exception, kwargs: Mapping[str, Any], remedy: str = "") -> Exception:
    """Return the error to raise for an exception in a constructor.

    EnvSpecError means that the arguments are wrong. EnvironmentFailed may pass, and is retried.

    Args:
        what: what failed.
        error: the exception.
        kwargs: arguments of the constructor.
        remedy: what to do if the arguments are wrong.
    """
    if is_lack_of_memory(error):
        return error
    if isinstance(error, TypeError | ValueError | LookupError | AttributeError | AssertionError | NotImplementedError):
        has_lists = any(isinstance(value, list) for value in kwargs.values())
        remedy = remedy or ('; if a list should be a NumPy array, write {"array": [...]}' if has_lists else "")
        return EnvSpecError(f"{what}: {str(error) or _place_of(error)}{remedy}")
    return EnvironmentFailed(f"{what}: its constructor raised {type(error).__name__}: {error}")


def _place_of(error: Exception) -> str:
    """Return the type of an error, and the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} ({frame.filename}, line {frame.lineno}: {frame.line})"


def check_reset(env: Any, spec: EnvSpec, usual: str, cure: str) -> None:
    """Raise EnvSpecError unless an environment's reset takes a seed and options.

    Args:
        env: the environment.
        spec: its spec.
        usual: whose reset it should be, and its arguments.
        cure: what to do with the seed.
    """
    arguments = signature(env.reset).parameters.values()
    names = {argument.name for argument in arguments}
    for name in ("seed", "options"):
        if name not in names and not any(argument.kind is Parameter.VAR_KEYWORD for argument in arguments):
            raise EnvSpecError(
                f"{spec.id}: environments have {usual}, which makes episodes repeatable, but that of "
                f"{type(env).__name__} has no {name}; add it, and {cure}"
            )


def close_env(env: Any, spec: EnvSpec) -> None:
    """Close an environment; raise EnvironmentFailed if its own code fails."""
    try:
        env.close()
    except Exception as error:
        raise EnvironmentFailed(f"{spec.id}: its close() raised {type(error).__name__}: {error}") from error
