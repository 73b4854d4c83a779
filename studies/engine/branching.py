"""Replays of lineages, and forks with other hyperparameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from ...spaces import flatten
from ...tasks import load
from ...tasks.checkpoint.storage import Saved
from ...tasks.envs import EnvSpec
from ..storage.branches import Start
from ..storage.retention import INIT
from ..storage.store import Store
from .lineage import LineageTask, NotEqual, lineage, restore, retrain
from .views import View


class BadFork(ValueError):
    """A fork or replay that is not possible."""


class ReplayedView(View):
    """A task of a lineage that was trained again."""

    uid: Annotated[str, "uid"]
    from_: Annotated[int, "epochs at its start"]
    to: Annotated[int, "epochs at its end"]
    digest: Annotated[str, "digest of the state there"]


class ReplayView(View):
    """Comparison of a lineage with its storage."""

    uid: Annotated[str, "uid of the last task"]
    equal: Annotated[bool, "whether the digests are equal"]
    epochs: Annotated[int, "epochs of the compared checkpoint"]
    digest: Annotated[str, "its digest"]
    replayed: Annotated[str | None, "digest of the state that was trained again; null if it did not get that far"]
    reason: Annotated[str | None, "why it did not"]
    lineage: Annotated[Sequence[ReplayedView], "tasks that were trained again"]


def replay(
    store: Store, uid: str, at_task_end: Callable[[ReplayedView], None] = lambda row: None, device: str = "cpu"
) -> ReplayView:
    """Train a lineage again, and compare the last digest with storage.

    Args:
        store: store of the lineage.
        uid: last task of the lineage.
        at_task_end: called with each of the result's tasks as soon as it is trained.
        device: see `Task`.

    Raises:
        BadFork: no complete checkpoint at the end of an epoch is stored.
    """
    saved = _last_at_epoch_end(store, uid)
    inits = [event.data.get("snapshots") for event in store.events(uid) if event.kind == INIT]
    if any(isinstance(mode, Mapping) and mode.get("replay") is False for mode in inits):
        raise BadFork(
            f"a replay is compared with a whole checkpoint, but those of task {uid} leave the replay memory out; train "
            "it without --snapshots no-replay, in another storage"
        )
    rows: list[ReplayedView] = []

    def add_row(link: LineageTask, epochs: int, digest: str) -> None:
        begins = link.start.epochs if link.start else 0
        rows.append(ReplayedView(uid=link.uid, from_=begins, to=epochs, digest=digest))
        at_task_end(rows[-1])

    reason, digest = None, None
    try:
        digest = retrain(lineage(store, uid), saved.epochs, at_task_end=add_row, device=device).digest
    except NotEqual as error:
        reason = str(error)
    return ReplayView(
        uid=uid,
        equal=digest == saved.digest,
        epochs=saved.epochs,
        digest=saved.digest,
        replayed=digest,
        reason=reason,
        lineage=rows,
    )


def _last_at_epoch_end(store: Store, uid: str) -> Saved:
    for row in reversed(store.checkpoints(uid)):
        if not row.within_epoch and (saved := store.load(uid, row.epochs)) is not None:
            return saved
    raise BadFork(f"a replay is compared with a checkpoint at an epoch's end, but none of task {uid} is stored")


def fork_identity(
    identity: Mapping[str, Any], assignments: Sequence[str], start: str
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return a fork's identity, and its changed hyperparameters as [old, new].

    Args:
        identity: identity of the task that is forked.
        assignments: ``NAME=VALUE`` texts.
        start: digest of the state that the fork starts from.

    Raises:
        BadFork: nothing changes, or a structural hyperparameter does.
        ValueError: the space does not allow a value.
    """
    learner = load(identity["task"]).learner
    space, old = learner.space_in(EnvSpec.of(identity["env"])), dict(identity["hyperparameters"])
    nested = space.validate({**old, **flatten(space.parse(*assignments))})
    new = space.identifying(nested)
    learner.check(nested)
    before, after = space.structure(old), space.structure(new)
    if structural := sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name)):
        name = structural[0]
        raise BadFork(
            f"a fork changes what may change while a task trains, but {name} is structural: it decides shapes or loop "
            f"counts, and the checkpoint has {before.get(name)!r}; train a new task with it: rekindle train --set "
            f"{name.removesuffix('.enabled')}=..."
        )
    changed = {name: [old.get(name), value] for name, value in new.items() if old.get(name) != value}
    if not changed:
        raise BadFork("a fork changes a hyperparameter, but the task has these values already; give --set name=value")
    return {**identity, "hyperparameters": new, "start": start}, changed


def state_at(store: Store, links: Sequence[LineageTask], epoch: int, end: int) -> tuple[LineageTask, Start]:
    """Return the task and the state of a lineage at an epoch.

    Args:
        store: store of the lineage.
        links: the lineage.
        epoch: epoch of the state.
        end: epochs of the lineage's last task; `epoch` must be smaller.

    Raises:
        BadFork: no checkpoint of that epoch is kept, or it is not before `end`.
    """
    kept: dict[int, LineageTask] = {}
    for link, following in zip(links, [*links[1:], None], strict=True):
        last = following.start.epochs if following and following.start else end - 1
        ends = (row for row in store.checkpoints(link.uid) if row.epochs <= last and not row.within_epoch)
        kept |= {row.epochs: link for row in ends}
    saved = store.load(kept[epoch].uid, epoch) if epoch in kept else None
    if saved is None:
        epochs = ", ".join(map(str, sorted(set(kept) - {epoch}))) or "none"
        raise BadFork(
            f"a fork starts from a checkpoint before the task's last one (at {end} epochs), but the one at {epoch} is "
            f"not kept; those that are: {epochs}"
        )
    link = kept[epoch]
    if link.start is not None and link.start.digest == saved.digest:
        return link, link.start  # this task's hyperparameters, and the state that it took from the task before it
    return link, Start(link.uid, epoch, saved.digest)


def score_at(store: Store, uid: str, epochs: int, device: str = "cpu") -> float:
    """Return the objective of a task at its last checkpoint.

    It is evaluated unless it is stored, as measured in the usual episodes.
    """
    saved = store.load(uid)
    assert saved is not None
    task = restore(saved, device)
    stored = task.score_in(dict(store.metrics(uid)).get(epochs, {}))
    return task.evaluate() if stored is None else stored
