"""All commands and their options.

This package imports nothing slow. The module of a command is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...._version import __version__
from .looking import add_answers, add_other_tools, add_probe, add_readers, add_space
from .parser import Parser
from .single_tasks import add_check, add_lineage, add_policy, add_train, add_upkeep
from .studies import add_confirm, add_steering, add_tune, add_worker

COMMANDS = {
    "search and train": (add_space, add_probe, add_tune, add_worker, add_confirm, add_train),
    "inspect": (add_readers, add_answers),
    "steer a study": (add_steering,),
    "branch and repeat": (add_lineage, add_check),
    "policies": (add_policy,),
    "files of other tools": (add_other_tools,),
    "maintain the storage": (add_upkeep,),
}


def make_parser(only: Callable[[Any], None] | None = None) -> Parser:
    """Return the parser of all commands, or of one function's."""
    parser = Parser(
        prog="rekindle",
        description="Hyperparameter optimization for reinforcement learning, where every trial can be stopped and "
        "resumed exactly.",
        epilog="`rekindle COMMAND --help` explains a command. Start with: rekindle tune ppo CartPole-v1",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rekindle {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    parser.commands = commands.choices
    for title, adders in COMMANDS.items():
        before = set(commands.choices)
        for add in adders:
            if only in (None, add):
                add(commands)
        parser.sections[title] = [action for action in commands._get_subactions() if action.dest not in before]
    return parser
