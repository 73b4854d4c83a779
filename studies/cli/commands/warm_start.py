"""Warm starts: the options ``--warm-start`` and ``--demonstrations``.

The initial policy of a task is stored when the command first runs. If the source is gone in a rerun, the task starts
from the stored policy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ....tasks.identity import TaskIdentity
from ....tasks.signals.demonstrations import Demonstrations
from ....tasks.task import Task
from ...creation import Remake
from ...starts import SourceNames, Sources, started, store_start, stored_steps
from ...storage.store import Store
from ...storage.stored_policies import begun, find
from ...study.config import Config
from . import options
from .storage import database_exists, existing_store, whole_uid

Say = Callable[[str], None]


def check_options(arguments: argparse.Namespace) -> None:
    """Raise ValueError for --partial without --warm-start."""
    if arguments.partial and arguments.warm_start is None:
        raise ValueError("--partial needs --warm-start, which is not given")


def is_given(arguments: argparse.Namespace) -> bool:
    """Return whether tasks start from a policy or from demonstrations."""
    return arguments.warm_start is not None or arguments.demonstrations is not None


def with_demonstrated_steps(values: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Add the number of demonstrated steps to hyperparameters without it.

    The number comes from the file or, if the file is gone, from the demonstrations that were stored from it.

    Raises:
        ValueError: neither exists.
    """
    file = arguments.demonstrations
    if file is None or "demonstrated_steps" in values:
        return values
    path = arguments.directory / file
    steps = None
    if not path.exists() and database_exists(arguments):
        with existing_store(arguments) as store:
            steps = stored_steps(store, _names(arguments))
    return {**values, "demonstrated_steps": Demonstrations.load(path).steps if steps is None else steps}


def start_one(store: Store, task: Task, identity: TaskIdentity, arguments: argparse.Namespace, say: Say) -> str | None:
    """Store a task's initial policy; return its digest.

    If the source is gone, the digest is that of the policy from which the same task started before.

    Args:
        store: store of the task.
        task: the task, not initialized yet.
        identity: identity of the task without a start.
        arguments: arguments of the command.
        say: function that takes a line for the user.

    Returns:
        Digest; None for a task without a warm start.
    """
    if not is_given(arguments):
        return None
    names = _names(arguments)
    uids = {digest: replace(identity, start=digest).uid for digest in begun(store, *names)}
    stored = {row.uid for row in store.tasks(list(uids.values()))}
    uids = {digest: uid for digest, uid in uids.items() if uid in stored}
    try:
        sources = _sources(store, arguments)
    except ValueError as error:
        if len(uids) != 1:
            raise
        [(digest, uid)] = uids.items()
        say(f"{error}; task {uid} started from it, and resumes")
        return digest
    digest = store_start(store, task, identity.hyperparameters, sources, say)
    for uid in (uid for other, uid in uids.items() if other != digest):
        say(f"{names} is not the {sources.noun} that task {uid} started from, so this is another task")
    return digest


def start_all(
    store: Store,
    name: str,
    algorithm: type[Task],
    arguments: argparse.Namespace,
    say: Say,
    config: Config,
    remake: Remake,
) -> Config:
    """Store and configure the common start of a study's trials."""
    searched = [*arguments.search, *options.priors_of(arguments.prior)]
    read = partial(_sources, store, arguments)
    return started(store, name, config, algorithm, _names(arguments), read, remake, searched, say)


def _names(arguments: argparse.Namespace) -> SourceNames:
    return SourceNames(arguments.warm_start, arguments.demonstrations)


def _sources(store: Store, arguments: argparse.Namespace) -> Sources:
    directory, policy, demonstrations = arguments.directory, None, None
    if arguments.warm_start is not None:
        policy = find(store, arguments.warm_start, whole_uid, directory)
    if arguments.demonstrations is not None:
        demonstrations = Demonstrations.load(directory / arguments.demonstrations)
    policy = policy and replace(policy, partial=arguments.partial)
    return Sources(policy, demonstrations, arguments.demonstrations)
