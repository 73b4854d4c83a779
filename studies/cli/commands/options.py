"""Shared options, types of their values, and exit statuses."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from ...orion.trial import storage_url
from ...workers import URL_VARIABLE

FAILED = 1  # a sound request did not succeed
USAGE = 2  # the request makes no sense
DEFAULT_URL = "sqlite:///rekindle.db"


NAMES: dict[str, Any] = {"action": "append", "default": [], "metavar": "NAME"}  # an option that may be repeated
ASSIGNMENTS: dict[str, Any] = {**NAMES, "metavar": "NAME=VALUE"}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Print the message on stderr and exit."""
        print(f"rekindle: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE)


def add_command(
    commands: Any, name: str, text: str, run: Callable[[argparse.Namespace], int], json: bool = True
) -> Parser:
    """Add a command with the options that all commands have."""
    parser: Parser = commands.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(run=run)
    parser.add_argument(
        "--storage",
        default=os.environ.get(URL_VARIABLE) or storage_url() or DEFAULT_URL,
        metavar="URL",
        help=f"sqlite:///file.db or postgresql://user:password@host/name (default: ${URL_VARIABLE}, or {DEFAULT_URL})",
    )
    parser.add_argument(
        "--patience",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="how long to wait for a database that is busy, full or unreachable (default: 600)",
    )
    if json:
        parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    return parser


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, but got {text!r}")
    return value


COUNT: dict[str, Any] = {"type": positive, "metavar": "N"}


def nonnegative(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, but got {text!r}")
    return int(text)


def amount(text: str) -> float:
    """Parse a number above 0."""
    value = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be a number above 0, such as 1 or 0.5, but got {text!r}")
    return value


def seed(text: str) -> int:
    """Parse a seed."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**63 - 1, but got {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Parse a finite duration."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be seconds, a number of at least 0, but got {text!r}")
    return value


def retention(text: str) -> str:
    """Check which checkpoints to keep."""
    from ....tasks.checkpoint.retention import snapshots

    try:
        snapshots(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def add_task(parser: Parser, epochs: str, default: str, setting: str) -> None:
    """Add the arguments that define tasks."""
    parser.add_argument("task", metavar="TASK", help="the algorithm, such as ppo")
    parser.add_argument("env", metavar="ENV", help="a Gymnasium id, such as CartPole-v1, or an EnvSpec as JSON")
    parser.add_argument("--epochs", default=default, metavar="EPOCHS", help=f"{epochs} (default: {default})")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="seed of all randomness (default: 0)")
    parser.add_argument(
        "--set",
        **ASSIGNMENTS,
        help=f"{setting}; may be repeated; @FILE reads them from JSON as `rekindle show --json` prints it",
    )


def add_training(parser: Parser) -> None:
    """Add options of commands that train new tasks."""
    add_env_processes(parser)
    parser.add_argument(
        "--warm-start",
        metavar="POLICY",
        help="copy network weights from a task (UID, UID@EPOCH or UID@best) or a file (.safetensors, .npz or .npy); "
        "they are stored, so that a rerun does not need the source",
    )
    parser.add_argument(
        "--partial", action="store_true", help="with --warm-start: copy the weights that fit, and report the others"
    )
    parser.add_argument(
        "--demonstrations",
        metavar="FILE",
        help="demonstrations written by `rekindle evaluate --record FILE`, for tasks that learn from them (--set "
        "cloning.use=true, --set gail.use=true); they are stored as a warm start is",
    )
    parser.add_argument(
        "--snapshots",
        type=retention,
        metavar="MODE",
        help="checkpoints to keep: latest (two); best (also the one with the best return, evaluated after each "
        "epoch), or best:5 (after each fifth); every:5 (also those of each fifth epoch); all; no; or how many of the "
        "latest; no result depends on it (default: latest)",
    )
    add_use_previous(parser)


def add_lease(parser: Parser) -> None:
    """Add the duration of leases."""
    parser.add_argument(
        "--lease",
        type=seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long a silent worker keeps its trials from other workers (default: 60)",
    )


def add_env_processes(parser: Parser) -> None:
    """Add the number of processes that step environments."""
    parser.add_argument(
        "--env-processes",
        type=nonnegative,
        default=0,
        metavar="N",
        help="processes that step slow environments; no result depends on it (default: 0, the trainer's own process)",
    )


def add_use_previous(parser: Parser) -> None:
    """Add the fallback for damaged checkpoints."""
    parser.add_argument(
        "--use-previous",
        action="store_true",
        help="replace a damaged checkpoint by the last sound one, or by a fresh start",
    )


def add_uid(parser: Parser) -> None:
    """Add the uid of a task."""
    parser.add_argument("uid", metavar="UID", help="as `rekindle trials` prints it; a unique prefix is enough")


def parse_env(text: str) -> Any:
    """Return a Gymnasium id, or the mapping that an EnvSpec's JSON holds."""
    return json.loads(text) if text.lstrip().startswith("{") else text


def expand_files(assignments: Sequence[str]) -> list[str]:
    """Replace each ``@FILE`` by assignments of its hyperparameters; direct assignments win.

    A file holds hyperparameters, nested or by dotted name, or an object with them under "hyperparameters", as
    ``rekindle show --json`` and ``train --json`` print it. A later file overrides an earlier one.

    Raises:
        ValueError: a file holds no hyperparameters.
    """
    direct = [text for text in assignments if not text.startswith("@")]
    names = {text.partition("=")[0].strip() for text in direct}
    values: dict[str, Any] = {}
    for text in assignments:
        if text.startswith("@"):
            values |= _read_hyperparameters(Path(text[1:]))
    return [*(f"{name}={json.dumps(value)}" for name, value in values.items() if name not in names), *direct]


def _read_hyperparameters(path: Path) -> dict[str, Any]:
    from ....spaces import SpaceError, flatten

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"--set @{path} must be a file of JSON, but: {error}") from None
    if isinstance(content, Mapping) and isinstance(content.get("hyperparameters"), Mapping):
        content = content["hyperparameters"]
    try:
        return flatten(content)
    except SpaceError as error:
        raise ValueError(f"--set @{path} must hold hyperparameters by name, but: {error}") from None
