"""``rekindle worker``: join studies and train their trials."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Annotated

import optuna

from ...curves.beside import MIRROR_AFTER, MIRRORED, copied
from ...engine.optuna_mirror import mirror
from ...engine.snapshots import look
from ...engine.study_views import summary_view
from ...engine.views import SummaryView, View
from ...errors import StoreError
from ...storage.commands import cure_of, hold_of
from ...storage.store import Store
from ...workers.hangs import watched
from ...workers.sharing import run_worker
from ..output.terminal import log_json, new_console, note, print_json
from .storage import existing_store

ALL = ""  # stands for all studies in messages


class WorkedView(View):
    """Studies at the end of a worker of several studies."""

    storage: Annotated[str, "URL without password"]
    studies: Annotated[Sequence[SummaryView], "studies"]


def worker(arguments: argparse.Namespace) -> int:
    """Train trials of studies until completion or a signal."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    names: list[str] = arguments.study
    say = _sayer(arguments, several=len(names) != 1)
    with existing_store(arguments, first=True) as store:
        for name in names:
            store.study(name)
        until = "until it is complete" if len(names) == 1 else "by their weights until all are complete"
        say(ALL, f"works on {_described(names)} in {store.url} {until}; Ctrl-C saves and stops")
        mirrored = [] if arguments.with_parent else [MIRRORED]  # the parent makes a copy itself
        with ExitStack() as stack:
            for name in names:
                stack.enter_context(copied(arguments.url, name, mirrored, partial(say, name), MIRROR_AFTER))
            stack.enter_context(watched(arguments.url, arguments.stuck))
            status = run_worker(
                store,
                names,
                workers=arguments.workers,
                use_previous=arguments.use_previous,
                with_parent=arguments.with_parent,
                grace=arguments.grace,
                env_processes=arguments.env_processes,
                eval_envs=arguments.eval_envs,
                device=arguments.device,
                say=say,
            )
        names = names or [study.name for study in store.studies()]
        for name in names if mirrored else ():
            mirror(store, name, partial(say, name))
        if not status:
            _say_ends(store, names, say)
        if not arguments.json:
            return status
        studies = [summary_view(store, name) for name in names]
        one = studies[0] if len(arguments.study) == 1 else WorkedView(storage=store.url, studies=studies)
        return print_json(one, status)


def _sayer(arguments: argparse.Namespace, several: bool) -> Callable[[str, str], None]:
    """Return a function that prints a line about a study."""
    if arguments.quiet:
        return lambda name, text: None
    if arguments.log_format == "json":
        return lambda name, text: log_json(name or ", ".join(arguments.study), text)
    console = new_console(stderr=True)
    return lambda name, text: note(console, f"{name}: {text}" if name and several else text)


def _described(names: Sequence[str]) -> str:
    if not names:
        return "all studies"
    return f"study {names[0]}" if len(names) == 1 else f"studies {', '.join(names)}"


def _say_ends(store: Store, names: Sequence[str], say: Callable[[str, str], None]) -> None:
    for name in names:
        try:
            command, complete = hold_of(store.commands(name)), look(store, name).complete
        except StoreError as error:  # it was deleted, or is damaged
            say(ALL, f"study {name} is not trained: {error}")
            continue
        ended = f"had the {command}; {cure_of(name, command)}" if command else "is not complete; any worker resumes it"
        say(ALL, f"study {name} {'is complete' if complete else ended}")
