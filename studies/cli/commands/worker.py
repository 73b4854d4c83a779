"""``rekindle worker``: join a study and train its trials."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ..output.terminal import new_console, note
from . import options
from .storage import existing_store


def add_parser(commands: Any) -> None:
    """Add the command."""
    text = "join a study, from any machine that reaches its storage"
    parser = options.add_command(commands, "worker", text, worker, json=False)
    parser.add_argument("--study", required=True, metavar="NAME")
    parser.add_argument(
        "--workers",
        default=1,
        **options.COUNT,
        help="number of workers that share the study (default: as many as hold trials)",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)  # stop when stdin ends
    options.add_lease(parser)
    options.add_env_processes(parser)
    options.add_use_previous(parser)


def worker(arguments: argparse.Namespace) -> int:
    """Train trials of a study until completion or a signal."""
    import optuna

    from ...workers.worker import run_worker

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    say = (lambda text: None) if arguments.quiet else partial(note, new_console(stderr=True))
    with existing_store(arguments, first=True) as store:
        store.study(arguments.study)
        say(f"works on study {arguments.study} in {store.url} until it is complete; Ctrl-C saves and stops")
        return run_worker(
            store,
            arguments.study,
            workers=arguments.workers,
            use_previous=arguments.use_previous,
            with_parent=arguments.with_parent,
            env_processes=arguments.env_processes,
            say=say,
        )
