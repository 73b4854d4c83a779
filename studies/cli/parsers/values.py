"""Parser and options, with the types of their values."""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

from ...orion.trial import storage_url
from ...study.durations import parse_duration
from ...workers import URL_VARIABLE
from ..commands.options import USAGE

DEFAULT_URL = "sqlite:///rekindle.db"
MOST = 10_000_000  # largest count
MOST_PROCESSES = 1000
MANY: dict[str, Any] = {"action": "append", "default": []}  # an option that may be repeated
Container = argparse._ActionsContainer  # a parser, or a group of its options


class Parser(argparse.ArgumentParser):
    """A parser that prints an error as one line.

    Attributes:
        commands: parsers of the commands, by name.
        sections: commands as listed by the help, by heading.
    """

    commands: dict[str, Parser]

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.sections: dict[str, list[argparse.Action]] = {}

    def format_help(self) -> str:
        """Return the help, with the commands under their headings."""
        if not self.sections:
            return super().format_help()
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, commands in self.sections.items():
            formatter.start_section(title)
            formatter.add_arguments(commands)
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def error(self, message: str) -> NoReturn:
        """Print the message on stderr and exit."""
        print(f"rekindle: error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE)


def command(commands: Any, name: str, text: str, run: str) -> Parser:
    """Add a command with the options that all commands have.

    Args:
        commands: subparsers of the main parser.
        name: name of the command.
        text: help text, which begins in lower case and has no full stop.
        run: function that runs the command, as "module.function" in `cli.commands`.
    """
    parser: Parser = commands.add_parser(
        name, help=text.replace("%", "%%"), description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(run=run)
    option(
        parser,
        "--storage URL",
        f"sqlite:///file.db or postgresql://user:password@host/name (default: ${URL_VARIABLE}, or {DEFAULT_URL})",
        default=os.environ.get(URL_VARIABLE) or storage_url() or DEFAULT_URL,
    )
    option(
        parser, "--patience SECONDS", "how long to wait for a database that is busy, full or unreachable", default=600
    )
    option(parser, "--json", "print the result as JSON")
    option(parser, "--debug", "print the traceback of an error")
    return parser


def option(parser: Container, form: str, text: str, **more: Any) -> None:
    """Add an option "--name PLACEHOLDER" or "--name|--other PLACEHOLDER", or a flag "--name".

    The placeholder determines the type, unless `more` has one. The default is appended to the text, unless the text
    already names it.
    """
    names, _, placeholder = form.partition(" ")
    value = {"metavar": placeholder, "type": TYPES.get(placeholder, str)} if placeholder else {"action": "store_true"}
    if more.get("default", []) != [] and "(default" not in text:
        text += " (default: %(default)s)"
    parser.add_argument(*names.split("|"), help=text, **(value | more))


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or not text.strip("0"):
        raise argparse.ArgumentTypeError(f"must be a number of at least 1, but got {text!r}")
    return bounded(text)


def bounded(text: str, most: int = MOST) -> int:
    """Parse an integer of at most `most`."""
    if len(text.lstrip("0")) > len(str(most)) or int(text) > most:  # int() of very many digits is an error
        raise argparse.ArgumentTypeError(f"must be {most} at most, but got {text[:40]}")
    return int(text)


def few(text: str) -> int:
    """Parse a number of processes."""
    return bounded(str(positive(text)), MOST_PROCESSES)


def nonnegative(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number of at least 0, but got {text!r}")
    return bounded(text, MOST_PROCESSES)


def port(text: str) -> int:
    """Parse a port number."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 65535, but got {text!r}")
    return bounded(text, 65535)


def amount(text: str) -> float:
    """Parse a number above 0."""
    value = float(text) if text.replace(".", "", 1).isdecimal() else 0.0
    if not 0 < value <= MOST:
        raise argparse.ArgumentTypeError(
            f"must be a number above 0, such as 1 or 0.5, and {MOST} at most, but got {text[:40]!r}"
        )
    return value


def seed(text: str) -> int:
    """Parse a seed."""
    if not text.isdecimal() or len(text) > 19 or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to 2**63 - 1, but got {text[:40]!r}")
    return int(text)


def output(text: str) -> Path:
    """Return the whole path of a file to be written.

    An environment may change the working directory before.
    """
    return Path(text).absolute()


def seconds(text: str) -> float:
    """Parse seconds, in the range of all clocks and waits."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"must be seconds, a number from 0 to {MOST}, but got {text[:40]!r}")
    return value


def duration(text: str) -> float | None:
    """Parse a duration; a number is in seconds, and "off" is None."""
    if text == "off":
        return None
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).replace(", but", ", or off, but", 1)) from None


def device(text: str) -> str:
    """Check the form of a device's name.

    Torch, which is slow to import, checks later that the device exists.
    """
    kind, colon, index = text.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (colon and (kind != "cuda" or not index.isdecimal())):
        raise argparse.ArgumentTypeError(
            f"must be auto, cpu, cuda, cuda:1 (or another number) or mps, but got {text!r}"
        )
    return text


def retention(text: str) -> str:
    """Check the value of --snapshots."""
    from ....tasks.checkpoint.retention import keep_of

    try:
        keep_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


TYPES = {
    "N": positive,
    "SECONDS": seconds,
    "EPOCH": positive,
    "DURATION": duration,
    "MODE": retention,
    "DEVICE": device,
}  # types of values, by placeholder
