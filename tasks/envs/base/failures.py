"""Errors for what an environment's own code raises, or lacks."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from ...errors import EnvironmentFailed, class_and_text, is_lack_of_memory, text_of
from ...runtime.deadlines import TooLong, interrupted_after
from ...runtime.progress import at_work, limit
from .spec import EnvSpec, EnvSpecError

CLOSING, AGAIN = 60.0, 0.2  # seconds that a close() may take, and those of later ones if it never returned
endless: set[str] = set()  # ids of environments whose close() did not return


def attribute(holder: Any, name: str) -> Any:
    """Return an attribute of others' object; None where there is none.

    A `__getattr__` of theirs may raise anything for a name that it does not know.
    """
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - code of others may raise anything
        return None


def refusal(failure: str, error: Exception, kwargs: Mapping[str, Any], remedy: str = "") -> Exception:
    """Return the error to raise for an exception in a constructor.

    EnvSpecError means that the arguments are wrong. EnvironmentFailed may pass, and is retried.

    Args:
        failure: what failed.
        error: the exception.
        kwargs: arguments of the constructor.
        remedy: what to do if the arguments are wrong.
    """
    if is_lack_of_memory(error):
        return error
    if isinstance(error, TypeError | ValueError | LookupError | AttributeError | AssertionError | NotImplementedError):
        has_lists = any(isinstance(value, list) for value in kwargs.values())
        remedy = remedy or ('; if a list should be a NumPy array, write {"array": [...]}' if has_lists else "")
        return EnvSpecError(f"{failure}: {text_of(error) or _place_of(error)}{remedy}")
    return EnvironmentFailed(f"{failure}: its constructor raised {class_and_text(error)}")


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
    """Close an environment, and warn if that does not end.

    Raises:
        EnvironmentFailed: its own code fails.
    """
    seconds = AGAIN if spec.id in endless else min(CLOSING, (limit() or math.inf) / 2)
    try:
        with at_work(), interrupted_after(seconds):
            env.close()
    except TooLong:
        if spec.id not in endless:
            endless.add(spec.id)
            warnings.warn(
                f"{spec.id}: its close() must return, but did not in {seconds:g} s, and was left; fix it, or what it "
                "waits for",
                stacklevel=2,
            )
    except Exception as error:
        raise EnvironmentFailed(f"{spec.id}: its close() raised {class_and_text(error)}") from error


def close_or_warn(env: Any, spec: EnvSpec) -> None:
    """Close an environment on which nothing depends any more."""
    try:
        close_env(env, spec)
    except EnvironmentFailed as error:
        warnings.warn(str(error), stacklevel=3)
