"""All commands and their options.

It imports nothing slow: the module of a command is imported once the command runs.
"""

from __future__ import annotations

from importlib.metadata import version

from .looking import add_answers, add_readers, add_report
from .single_tasks import add_lineage, add_policy, add_train, add_upkeep
from .studies import add_confirm, add_steering, add_tune, add_worker
from .values import Parser


def make_parser() -> Parser:
    """Return the parser of all commands."""
    parser = Parser(
        prog="rekindle",
        description="Hyperparameter optimization for reinforcement learning, where every trial can be stopped and "
        "resumed exactly.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"rekindle {version('rekindle')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    add_tune(commands)
    add_confirm(commands)
    add_report(commands)
    add_train(commands)
    add_worker(commands)
    add_steering(commands)
    add_readers(commands)
    add_answers(commands)
    add_lineage(commands)
    add_upkeep(commands)
    add_policy(commands)
    parser.commands = commands.choices
    return parser
