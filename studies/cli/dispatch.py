"""The entry of the command line: parses, runs a command, explains what went wrong in one line."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from itertools import islice

from ..redact import printable
from .commands import under_orion as orion_trial
from .parser import USAGE, make_parser

FAILED = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    arguments = make_parser().parse_args(_spelled_out(sys.argv[1:] if argv is None else argv))
    if arguments.debug:
        return _run(arguments)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _say("stopped", 130)
    except BrokenPipeError:  # of `rekindle trials x | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:  # noqa: BLE001 - people get one line; --debug shows the rest
        return _explain(error)


def _run(arguments: argparse.Namespace) -> int:
    if any(text.startswith("@") for text in getattr(arguments, "set", ())):
        from .assignments import spelled_out

        arguments.set = spelled_out(arguments.set)
    if arguments.command == "train" and orion_trial.is_under_orion():
        if arguments.no_better is not None:
            raise ValueError("under Orion its algorithm says how far trials are trained; leave --no-better out")
        return orion_trial.run(arguments)
    module = importlib.import_module(
        f".commands.{arguments.module}", __package__
    )  # takes a while, and --help does not need it
    run: Callable[[argparse.Namespace], int] = getattr(module, arguments.command)
    return run(arguments)


def _explain(error: Exception) -> int:
    """Says in one line what is wrong; the exit status."""
    from ...tasks.errors import Diverged, Stopped
    from ..errors import BadURL, DamagedCheckpoint, StoreError, StudyMismatch, UnknownStudy
    from ..workers.supervisor import Interrupted

    if isinstance(error, Interrupted):
        return _say(str(error), 128 + error.signal)
    if isinstance(error, Stopped):
        return _say(str(error), 143)
    if isinstance(error, DamagedCheckpoint):
        return _say(f"{error}; or run the same command with --use-previous", FAILED)
    asked = isinstance(error, BadURL | StudyMismatch | UnknownStudy | ValueError)
    if asked or isinstance(error, StoreError | Diverged):
        return _say(f"error: {error}", USAGE if asked else FAILED)
    return _say(f"error: {type(error).__name__}: {error} (the same command with --debug says where)", FAILED)


def _say(text: str, status: int) -> int:
    print("rekindle: " + printable(" ".join(text.split())), file=sys.stderr, flush=True)
    return status


def _spelled_out(argv: Sequence[str]) -> list[str]:
    """``--set:NAME VALUE`` as ``--set NAME=VALUE``.

    Orion's parser of a program's options takes each name once, and gives priors only to names.
    """
    spelled: list[str] = []
    words = iter(argv)
    for word in words:
        if word.startswith("--set:"):
            name, equals, value = word.removeprefix("--set:").partition("=")
            spelled += ["--set", *(f"{name}={text}" for text in ([value] if equals else islice(words, 1)))]
        else:
            spelled.append(word)
    return spelled
