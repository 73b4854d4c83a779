"""What ``--warm-start`` and ``--snapshots`` mean for ``rekindle train`` and ``rekindle tune``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..spaces import unflatten
from ..tasks.identity import uid_of
from ..tasks.snapshots import snapshots
from ..tasks.warm_start import WarmStart
from .config import BadConfig, Config
from .errors import UnknownStudy
from .storage.policies import begun, find, put_policy
from .storage.store import Store

if TYPE_CHECKING:
    from ..tasks.task import Task

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


def warm_start(store: Store, task: Task, values: Mapping[str, Any], arguments: argparse.Namespace, say: Say) -> str:
    """The digest of the policy that a task is to start from, which is stored then; `task` is one not initialized yet.

    If the source is gone, it is the policy that the task with these hyperparameters began with, if there is one.
    """
    text = arguments.warm_start
    cold = type(task)(task.env, seed=task.seed).init(**values).identity
    known = {digest: uid_of({**cold, "start": digest}) for digest in begun(store, text)}
    there = {row.uid for row in store.tasks(list(known.values()))}
    known = {digest: uid for digest, uid in known.items() if uid in there}
    try:
        source = _found(store, arguments)
    except ValueError as error:
        if len(known) != 1:
            raise
        [(digest, uid)] = known.items()
        say(f"{error}; task {uid} began with it, and carries on")
        return digest
    digest = _stored(store, task, values, source, say)
    for uid in (uid for other, uid in known.items() if other != digest):
        say(f"{text} is another policy now than the one that task {uid} began with, so this is another task")
    return digest


def warmed(
    store: Store, name: str, config: Config, algorithm: type[Task], arguments: argparse.Namespace, say: Say
) -> Config:
    """The configuration of a study whose trials all start from a policy, which is stored then.

    BadConfig if what is searched decides the networks' form. If the source is gone, the study goes on with its own.
    """
    shapes = algorithm.learner.hyperparameters.flat()
    if open := [each for each in config.open if each.startswith("model.") and shapes[each].structural]:
        raise BadConfig(f"a warm start decides the form of the networks, but {', '.join(open)} is searched; fix it to "
                        f"what the policy has: --set {open[0]}=...")  # fmt: skip
    try:
        source = _found(store, arguments)
    except ValueError as error:
        own = _own(store, name)
        if own is None or own not in begun(store, arguments.warm_start):
            raise
        say(f"{error}; study {name} began with it, and carries on")
        return _starting(config, own)
    task = algorithm(config.env, seed=config.seed)
    return _starting(config, _stored(store, task, unflatten(config.fixed), source, say))


def _starting(config: Config, digest: str) -> Config:
    return replace(config, options={**config.options, "warm_start": digest})


def _own(store: Store, name: str) -> str | None:
    """The policy that a study's trials start from."""
    try:
        return Config.from_json(store.study(name).config, name).options.get("warm_start")
    except UnknownStudy:
        return None


def _found(store: Store, arguments: argparse.Namespace) -> WarmStart:
    from .terminal import whole_uid

    return replace(find(store, arguments.warm_start, whole_uid), partial=arguments.partial)


def _stored(store: Store, task: Task, values: Mapping[str, Any], source: WarmStart, say: Say) -> str:
    """Stores what is taken of a source; StateMismatch if it does not fit."""
    task.warm_start = source
    task.init(**values)
    digest = put_policy(store, task, source.name)
    say(f"starts from the policy {digest[:12]} of {source.name}: {task.taken}")
    return digest
