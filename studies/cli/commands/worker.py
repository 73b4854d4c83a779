"""``rekindle worker``: join a study and train its trials."""

from __future__ import annotations

import argparse
import signal
from contextlib import suppress
from functools import partial

import optuna
from sqlalchemy.exc import SQLAlchemyError

from ...curves.beside import MIRROR_AFTER, MIRRORED, copied
from ...engine.json_views import summary_json
from ...engine.optuna_mirror import mirror
from ...errors import StoreError
from ...storage.commands import cure_of, hold_of
from ...workers.hangs import watched
from ...workers.worker import run_worker
from ..output.terminal import log_json, new_console, note, print_json
from .storage import existing_store


def worker(arguments: argparse.Namespace) -> int:
    """Train trials of a study until completion or a signal."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    log = (
        partial(log_json, arguments.study)
        if arguments.log_format == "json"
        else partial(note, new_console(stderr=True))
    )
    say = (lambda text: None) if arguments.quiet else log
    with existing_store(arguments, first=True) as store:
        store.study(arguments.study)
        say(f"works on study {arguments.study} in {store.url} until it is complete; Ctrl-C saves and stops")
        mirrored = [] if arguments.with_parent else [MIRRORED]  # the parent has its own
        copier = copied(arguments.storage, arguments.study, mirrored, say, MIRROR_AFTER)
        with copier, watched(arguments.storage, arguments.stuck):
            status = run_worker(
                store,
                arguments.study,
                workers=arguments.workers,
                use_previous=arguments.use_previous,
                with_parent=arguments.with_parent,
                grace=arguments.grace,
                env_processes=arguments.env_processes,
                device=arguments.device,
                say=say,
                tell=say,
            )
        if mirrored:
            with suppress(StoreError, SQLAlchemyError, RuntimeError):
                mirror(store, arguments.storage, arguments.study)
        stopped = (
            f"stopped by {signal.Signals(status - 128).name}; everything is saved; any worker resumes" if status else ""
        )
        held = hold_of(store.commands(arguments.study))
        ended = f"had the {held}; {cure_of(arguments.study, held)}" if held else "is complete"
        say(stopped or f"study {arguments.study} {ended}")
        return print_json(summary_json(store, arguments.study), status) if arguments.json else status
