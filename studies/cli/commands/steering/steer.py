"""``rekindle stop``, ``pause``, ``resume``, ``cancel``, ``exclude``, ``enqueue`` and ``extend``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from ....steering.steering import Steering
from ....storage.commands import BOUNDS, Command
from ...output.terminal import new_console, note, print_json
from ..options import expand_files, priors_of
from ..storage import existing_store


def stop(arguments: argparse.Namespace) -> int:
    """Let all workers save and end."""
    return _give(arguments, lambda steering: steering.stop(arguments.why))


def pause(arguments: argparse.Namespace) -> int:
    """Let all workers save and wait."""
    return _give(arguments, lambda steering: steering.pause(arguments.why))


def resume(arguments: argparse.Namespace) -> int:
    """Resume a study."""
    return _give(arguments, lambda steering: steering.resume(arguments.why))


def cancel(arguments: argparse.Namespace) -> int:
    """End a trial."""
    return _give(arguments, lambda steering: steering.cancel(arguments.trial, arguments.why))


def exclude(arguments: argparse.Namespace) -> int:
    """Let samplers and schedulers forget a trial."""
    return _give(arguments, lambda steering: steering.exclude(arguments.trial, arguments.why))


def enqueue(arguments: argparse.Namespace) -> int:
    """Try hyperparameters next."""
    values = dict(_assignment(text) for text in expand_files(arguments.set))
    return _give(arguments, lambda steering: steering.enqueue(values, arguments.why))


def extend(arguments: argparse.Namespace) -> int:
    """Give a study more trials or epochs, other ranges or bounds."""
    given = {name: getattr(arguments, name) for name in ("trials", "epochs", "weight", *BOUNDS)}
    given["priors"] = priors_of(arguments.prior)
    return _give(arguments, lambda steering: steering.extend(**given, why=arguments.why))


def _give(arguments: argparse.Namespace, give: Callable[[Steering], Command]) -> int:
    """Write a command, and print it."""
    with existing_store(arguments) as store:
        given = give(Steering(store, arguments.study))
    if arguments.json:
        return print_json({"study": arguments.study} | given.to_json())
    note(new_console(), f"study {arguments.study}: {given}")
    return 0


def _assignment(text: str) -> tuple[str, Any]:
    """Return the name and the value of NAME=VALUE."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not name:
        raise ValueError(f"--set must be written NAME=VALUE, such as gamma=0.98, but got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value  # a word, such as adam
