"""Warm starts: the options ``--warm-start`` and ``--demonstrations``.

The initial policy of a task is stored when the command first runs. If the source is gone in a rerun, the task starts
from the stored policy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from ....spaces import unflatten
from ....tasks.checkpoint.storage import policy_uid
from ....tasks.identity import TaskIdentity
from ....tasks.signals.demonstrations import Demonstrations, split_start
from ....tasks.task import Task
from ....tasks.warm_start import WarmStart, hyperparameters_of
from ...creation import Remake
from ...errors import UnknownStudy
from ...storage.branches import Start
from ...storage.store import Store
from ...storage.stored_policies import begun, find, load_policy
from ...study.config import Config
from ...study.starts import check_one_environment, check_shapes, decided, store_start
from . import options
from .storage import database_exists, existing_store, whole_uid

Say = Callable[[str], None]


class Sources(NamedTuple):
    """A policy, demonstrations or both, with a name for messages."""

    policy: WarmStart | None
    demonstrations: Demonstrations | None
    name: str

    @property
    def noun(self) -> str:
        return "demonstration" if self.policy is None else "policy"


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
    steps = None if path.exists() or not database_exists(arguments) else _stored_steps(arguments)
    return {**values, "demonstrated_steps": Demonstrations.load(path).steps if steps is None else steps}


def _stored_steps(arguments: argparse.Namespace) -> int | None:
    with existing_store(arguments) as store:
        digests = begun(store, arguments.warm_start, arguments.demonstrations)
        policies = [load_policy(store, policy_uid(digest), Start(policy_uid(digest), 0, digest)) for digest in digests]
    counts = {start.steps for policy in policies if (start := split_start(policy)[1]) is not None}
    return counts.pop() if len(counts) == 1 else None


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
    texts = arguments.warm_start, arguments.demonstrations
    uids = {digest: replace(identity, start=digest).uid for digest in begun(store, *texts)}
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
    digest = _store_start(store, task, identity.hyperparameters, sources, say)
    for uid in (uid for other, uid in uids.items() if other != digest):
        text = " with ".join(filter(None, texts))
        say(f"{text} is not the {sources.noun} that task {uid} started from, so this is another task")
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
    """Store and configure the common start of a study's trials.

    If the source is gone, the study keeps the start that it had before. Hyperparameters that decide the policy's arrays
    are fixed to those of its task; `remake` returns the configuration with them.

    Raises:
        BadConfig: the shape of the networks is searched, or the study has several environments.
    """
    check_one_environment(config)
    stored = _stored(store, name)
    sources, digest, values = None, None, dict[str, Any]()
    try:
        sources = _sources(store, arguments)
    except ValueError as error:
        digest = stored.options.get("warm_start") if stored else None
        if digest is None or digest not in begun(store, arguments.warm_start, arguments.demonstrations):
            raise
        assert stored is not None
        values = dict(stored.fixed)
        say(f"{error}; study {name} started from it, and resumes")
    else:
        values = {} if sources.policy is None else dict(hyperparameters_of(sources.policy.source))
    if arguments.warm_start is not None:
        if fixed := decided(config, algorithm, values, [*arguments.search, *options.priors_of(arguments.prior)]):
            say(f"the warm start decides {', '.join(f'{path}={value}' for path, value in fixed.items())}; not searched")
            config = remake(fixed)
        check_shapes(config, algorithm)
    if sources is not None:
        task = algorithm(config.env, seed=config.seed)
        digest = _store_start(store, task, unflatten(config.fixed), sources, say)
    return replace(config, options={**config.options, "warm_start": digest})


def _stored(store: Store, name: str) -> Config | None:
    try:
        return Config.from_json(store.study(name).config, name)
    except UnknownStudy:
        return None


def _sources(store: Store, arguments: argparse.Namespace) -> Sources:
    directory, policy, demonstrations = arguments.directory, None, None
    if arguments.warm_start is not None:
        policy = find(store, arguments.warm_start, whole_uid, directory)
    if arguments.demonstrations is not None:
        demonstrations = Demonstrations.load(directory / arguments.demonstrations)
    name = " with ".join(filter(None, [policy.name if policy else None, arguments.demonstrations]))
    return Sources(None if policy is None else replace(policy, partial=arguments.partial), demonstrations, name)


def _store_start(store: Store, task: Task, values: Mapping[str, Any], sources: Sources, say: Say) -> str:
    """Initialize the task and store its initial policy; return the digest."""
    task.warm_start, task.demonstrations = sources.policy, sources.demonstrations
    digest = store_start(store, task, values, sources.name)
    say(f"starts from the {sources.noun} {digest[:12]} of {sources.name}: {task.load_report}")
    return digest
