"""What ``--warm-start``, ``--demonstrations`` and ``--snapshots`` mean for ``rekindle train`` and ``rekindle tune``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ....spaces import unflatten
from ....tasks.checkpoint.retention import snapshots
from ....tasks.checkpoint.storage import policy_uid
from ....tasks.identity import uid_of
from ....tasks.signals.demonstrations import Demonstrations, apart
from ....tasks.warm_start import WarmStart
from ...errors import UnknownStudy
from ...storage.branches import Start
from ...storage.store import Store
from ...storage.stored_policies import begun, find, load_policy, put_policy
from ...study.config import BadConfig, Config

if TYPE_CHECKING:
    from ....tasks.task import Task

Say = Callable[[str], None]


def keeping(config: Config, mode: str | None) -> Config:
    """The configuration of a study whose trials keep these checkpoints."""
    if mode is None:
        return config
    snapshots(mode)
    return replace(config, options={**config.options, "snapshots": mode})


def check_start(arguments: argparse.Namespace) -> None:
    """ValueError if half of a warm start is asked for."""
    if arguments.partial and arguments.warm_start is None:
        raise ValueError("--partial goes with --warm-start, which is not given")


class Given(NamedTuple):
    """What tasks are given to begin with."""

    source: WarmStart | None
    shown: Demonstrations | None
    name: str


def is_given(arguments: argparse.Namespace) -> bool:
    """Whether tasks are given anything to begin with."""
    return arguments.warm_start is not None or arguments.demonstrations is not None


def counted(values: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """The hyperparameters with how many steps are demonstrated, unless they say so.

    If the file is gone, as many as were stored; ValueError if there were none.
    """
    file = arguments.demonstrations
    if file is None or "demonstrated_steps" in values:
        return values
    steps = None if Path(file).exists() else _remembered(arguments)
    return {**values, "demonstrated_steps": Demonstrations.load(file).steps if steps is None else steps}


def _remembered(arguments: argparse.Namespace) -> int | None:
    """How many steps the file demonstrated when it was there."""
    from ..output.terminal import existing_store

    try:
        store = existing_store(arguments)
    except ValueError:
        return None
    with store:
        digests = begun(store, arguments.warm_start, arguments.demonstrations)
        stored = [load_policy(store, policy_uid(digest), Start(policy_uid(digest), 0, digest)) for digest in digests]
        counts = {shown.steps for policy in stored if (shown := apart(policy)[1]) is not None}
        return counts.pop() if len(counts) == 1 else None


def warm_start(store: Store, task: Task, values: Mapping[str, Any], arguments: argparse.Namespace, say: Say) -> str:
    """The digest of what a task is to start from, which is stored then; `task` is one not initialized yet.

    If the source is gone, it is what the task with these hyperparameters began with, if there is one.
    """
    cold = type(task)(task.env, seed=task.seed).init(**values).identity
    texts = arguments.warm_start, arguments.demonstrations
    known = {digest: uid_of({**cold, "start": digest}) for digest in begun(store, *texts)}
    there = {row.uid for row in store.tasks(list(known.values()))}
    known = {digest: uid for digest, uid in known.items() if uid in there}
    try:
        given = _found(store, arguments)
    except ValueError as error:
        if len(known) != 1:
            raise
        [(digest, uid)] = known.items()
        say(f"{error}; task {uid} began with it, and carries on")
        return digest
    digest = _stored(store, task, values, given, say)
    for uid in (uid for other, uid in known.items() if other != digest):
        text = " with ".join(filter(None, texts))
        say(f"{text} is another {_kind(given)} now than the one that task {uid} began with, so this is another task")
    return digest


def warmed(
    store: Store, name: str, config: Config, algorithm: type[Task], arguments: argparse.Namespace, say: Say
) -> Config:
    """The configuration of a study whose trials all start from a policy or demonstrations, which are stored then.

    BadConfig if what is searched decides the networks' form. If the source is gone, the study goes on with its own.
    """
    shapes = algorithm.learner.hyperparameters.flat()
    open = [each for each in config.open if each.startswith("model.") and shapes[each].structural]
    if open and arguments.warm_start is not None:
        raise BadConfig(
            f"a warm start decides the form of the networks, but {', '.join(open)} is searched; fix it to "
            f"what the policy has: --set {open[0]}=..."
        )
    try:
        given = _found(store, arguments)
    except ValueError as error:
        own = _own(store, name)
        if own is None or own not in begun(store, arguments.warm_start, arguments.demonstrations):
            raise
        say(f"{error}; study {name} began with it, and carries on")
        return _starting(config, own)
    task = algorithm(config.env, seed=config.seed)
    return _starting(config, _stored(store, task, unflatten(config.fixed), given, say))


def _starting(config: Config, digest: str) -> Config:
    return replace(config, options={**config.options, "warm_start": digest})


def _own(store: Store, name: str) -> str | None:
    """What a study's trials start from."""
    try:
        return Config.from_json(store.study(name).config, name).options.get("warm_start")
    except UnknownStudy:
        return None


def _found(store: Store, arguments: argparse.Namespace) -> Given:
    from ..output.terminal import whole_uid

    source = None if arguments.warm_start is None else find(store, arguments.warm_start, whole_uid)
    shown = None if arguments.demonstrations is None else Demonstrations.load(arguments.demonstrations)
    name = " with ".join(filter(None, [source.name if source else None, arguments.demonstrations]))
    return Given(None if source is None else replace(source, partial=arguments.partial), shown, name)


def _kind(given: Given) -> str:
    return "demonstration" if given.source is None else "policy"


def _stored(store: Store, task: Task, values: Mapping[str, Any], given: Given, say: Say) -> str:
    """Stores what is taken of what is given; ValueError if it does not fit."""
    task.warm_start, task.demonstrations = given.source, given.shown
    task.init(**values)
    digest = put_policy(store, task, given.name)
    say(f"starts from the {_kind(given)} {digest[:12]} of {given.name}: {task.taken}")
    return digest
