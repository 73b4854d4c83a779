"""``rekindle stop``, ``pause``, ``resume``, ``cancel``, ``exclude``, ``enqueue`` and ``extend``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from ....spaces import flatten
from ...engine.checked_config import load_task
from ...engine.views import View
from ...options.study_options import EXTENDED
from ...steering.steering import Steering
from ...storage.commands import Command
from ..output.terminal import new_console, note, print_json
from .options import expand_files, priors_of
from .storage import existing_store


class SteeringView(View):
    """A command that was given to a study."""

    merged = frozenset({"command"})

    study: Annotated[str, "name of the study"]
    command: Annotated[Command, "the command"]


def stop(arguments: argparse.Namespace) -> int:
    """Make all workers save and exit."""
    return _give(arguments, lambda steering: steering.stop(arguments.why))


def pause(arguments: argparse.Namespace) -> int:
    """Make all workers save and wait."""
    return _give(arguments, lambda steering: steering.pause(arguments.why))


def resume(arguments: argparse.Namespace) -> int:
    """Resume a study."""
    return _give(arguments, lambda steering: steering.resume(arguments.why))


def cancel(arguments: argparse.Namespace) -> int:
    """End a trial."""
    return _give(arguments, lambda steering: steering.cancel(arguments.trial, arguments.why))


def exclude(arguments: argparse.Namespace) -> int:
    """Hide a trial from samplers and schedulers."""
    return _give(arguments, lambda steering: steering.exclude(arguments.trial, arguments.why))


def enqueue(arguments: argparse.Namespace) -> int:
    """Try hyperparameters next."""
    texts = expand_files(arguments.set)
    for text in texts:
        if not text.partition("=")[1]:
            raise ValueError(f"--set must be written NAME=VALUE, such as gamma=0.98, but got {text!r}")
    return _give(arguments, lambda steering: steering.enqueue(_read(steering, texts), arguments.why))


def extend(arguments: argparse.Namespace) -> int:
    """Give a study more trials or epochs, or other ranges or bounds."""
    extension = {name: getattr(arguments, name) for name in ("trials", "epochs", "code", *EXTENDED)}
    extension["priors"] = priors_of(arguments.prior)
    return _give(arguments, lambda steering: steering.extend(**extension, why=arguments.why))


def _give(arguments: argparse.Namespace, give: Callable[[Steering], Command]) -> int:
    """Write a command and print it."""
    with existing_store(arguments) as store:
        command = give(Steering(store, arguments.study))
    if arguments.json:
        return print_json(SteeringView(study=arguments.study, command=command))
    note(new_console(), f"study {arguments.study}: {command}")
    return 0


def _read(steering: Steering, texts: Sequence[str]) -> dict[str, Any]:
    """Return the hyperparameters of NAME=VALUE texts, parsed as in `tune`."""
    return flatten(steering.config.space_in(load_task(steering.config)).parse(*texts))
