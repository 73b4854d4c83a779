"""Parser and options, with the types of their values."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ...options.conversions import TYPES
from ...options.option import Group, Option
from ...options.worker_options import WORKER
from ...orion.trial import storage_url
from ...workers import DEFAULT_URL, URL_VARIABLE
from ..commands.options import USAGE

MANY: dict[str, Any] = {"action": "append", "default": []}  # an option that may be repeated
NEGATIVE = re.compile(r"-\.?\d|-(inf|nan)")  # begins a negative number, perhaps with a unit or a second number
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

    def with_values(self, words: Sequence[str]) -> list[str]:
        """Return words of a command line with --budget=-3m for --budget -3m.

        argparse takes words with a minus for options, except plain numbers.
        """
        joined: list[str] = []
        for word in words:
            option = self._option_string_actions.get(joined[-1]) if joined else None
            if option is not None and option.nargs is None and NEGATIVE.match(word):
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        return joined

    def _match_argument(self, action: argparse.Action, arg_strings_pattern: str) -> int:
        try:
            return super()._match_argument(action, arg_strings_pattern)
        except argparse.ArgumentError:
            if action.nargs is not None:
                raise
            negative = f"one that begins with a minus is written {action.option_strings[0]}=VALUE"
            problem = f"takes a value, {action.metavar}, but none follows; add it ({negative})"
            raise argparse.ArgumentError(action, problem) from None

    def error(self, message: str) -> NoReturn:
        """Print the message on stderr and exit."""
        names = "; `rekindle status` names the studies" if message.endswith("required: STUDY") else ""
        print(f"rekindle: error: {message}{names} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(USAGE)


def command(commands: Any, name: str, text: str, run: str, doing: str = "") -> Parser:
    """Add a command with the options that all commands have.

    One that plays an environment says so, and has the option --stuck.

    Args:
        commands: subparsers of the main parser.
        name: name of the command.
        text: help text, which begins in lower case and has no full stop.
        run: function that runs the command, as "module.function" in `cli.commands`.
        doing: what an environment does in the command's own process, one of the texts in `watcher`; "" for nothing.
    """
    parser: Parser = commands.add_parser(
        name, help=text.replace("%", "%%"), description=text[0].upper() + text[1:] + ".", allow_abbrev=False
    )
    parser.set_defaults(run=run, doing=doing)
    option(
        parser,
        "--storage URL",
        f"sqlite:///file.db or postgresql://user:password@host/name (default: ${URL_VARIABLE}, or {DEFAULT_URL})",
        default=os.environ.get(URL_VARIABLE) or storage_url() or DEFAULT_URL,
    )
    declare(parser, WORKER, "patience")
    option(parser, "--json", "print the result as JSON")
    option(parser, "--debug", "print the traceback of an error")
    return parser


def declare(parser: Container, options: Mapping[str, Option], *names: str) -> None:
    """Add declared options."""
    for name in names:
        declaration, more = options[name], dict[str, Any]()
        if declaration.many:
            more |= MANY
        elif declaration.default not in (None, False) or (declaration.default == 0 and declaration.placeholder):
            more["default"] = declaration.default
        if declaration.parse is not None:
            more["type"] = declaration.parse
        option(parser, f"--{name.replace('_', '-')} {declaration.placeholder}".rstrip(), declaration.help, **more)


def or_off(declaration: Option) -> Callable[[str], Any]:
    """Return an option's conversion, which leaves "off" as it is."""
    parse = declaration.parse or TYPES.get(declaration.placeholder, str)
    return lambda text: text if text == "off" else parse(text)


def in_group(options: Mapping[str, Option], *groups: Group) -> list[str]:
    """Return the names of the options of these groups, in order."""
    return [name for name, declaration in options.items() if declaration.group in groups]


def weights(text: str) -> list[float]:
    """Return the numbers of W,W."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be numbers, separated by commas, such as 0.5,0.5, but got {text!r}"
        ) from None


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
