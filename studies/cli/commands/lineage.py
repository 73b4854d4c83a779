"""``rekindle replay`` and ``rekindle fork``: a lineage trained once more, and one that takes another turn."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ....spaces import flatten
from ....tasks import load
from ....tasks.checkpoint.state import unpack
from ....tasks.checkpoint.storage import Saved
from ....tasks.identity import uid_of
from ...engine.lineage import Link, NotEqual, lineage, retrain, task_of
from ...storage.branches import Start
from ...storage.store import Store
from ...workers.training import TaskStorage
from ..output import json_views as report
from ..output import tables
from ..output.terminal import FAILED, existing_store, new_console, note, print_json, whole_uid
from .study import fit_task


class BadFork(ValueError):
    """What was asked of a fork or a replay means nothing."""


def replay(arguments: argparse.Namespace) -> int:
    """Trains a lineage again from its root; 0 if it ends with the digest on record."""
    errors = new_console(stderr=True)
    with existing_store(arguments) as store:
        uid = whole_uid(store, arguments.uid)
        result = replayed(store, uid, lambda row: note(errors, _said(row)))
    if arguments.json:
        print_json(result)
    else:
        equal = "equal" if result["equal"] else "not equal"
        why = f": {result['reason']}" if result["reason"] else ""
        note(
            new_console(),
            f"{equal}: task {uid} after {result['epochs']} epochs has the digest {result['digest']}, "
            f"and trained again {result['replayed'] or 'it did not come so far'}{why}",
        )
    return 0 if result["equal"] else FAILED


def replayed(store: Store, uid: str, passed: Callable[[Mapping[str, Any]], None] = lambda row: None) -> dict[str, Any]:
    """The JSON of a replay; `passed` is called with each row of its lineage as soon as it is trained."""
    saved = _last_whole(store, uid)
    rows: list[dict[str, Any]] = []

    def note(link: Link, epochs: int, digest: str) -> None:
        begins = link.start.epochs if link.start else 0
        rows.append({"uid": link.uid, "from": begins, "to": epochs, "digest": digest})
        passed(rows[-1])

    reason, digest = None, None
    try:
        digest = retrain(lineage(store, uid), saved.epochs, passed=note).digest
    except NotEqual as error:
        reason = str(error)
    return {
        "format": report.FORMAT,
        "uid": uid,
        "equal": digest == saved.digest,
        "epochs": saved.epochs,
        "digest": saved.digest,
        "replayed": digest,
        "reason": reason,
        "lineage": rows,
    }


def _said(row: Mapping[str, Any]) -> str:
    return f"task {row['uid']}, epochs {row['from']} to {row['to']}: {row['digest'][:12]}"


def _last_whole(store: Store, uid: str) -> Saved:
    """The newest checkpoint of an epoch's end."""
    for row in reversed(store.checkpoints(uid)):
        saved = store.load(uid, row.epochs)
        if saved is not None and _at_epoch_end(saved):
            return saved
    raise BadFork(f"a replay is compared with a checkpoint at an epoch's end, but none of task {uid} is stored")


def _at_epoch_end(saved: Saved) -> bool:
    """Whether a checkpoint was not written in the middle of an epoch, when its process was asked to stop."""
    return json.loads(saved.manifest)["values"].get("learner/tally/count", 0) == 0


def fork(arguments: argparse.Namespace) -> int:
    """Trains a task that starts from a stored checkpoint with other hyperparameters, as far as the one it left."""
    errors = new_console(stderr=True)
    with existing_store(arguments) as store:
        uid = whole_uid(store, arguments.uid)
        [row] = store.tasks([uid])
        source, start = _state_at(store, lineage(store, uid), arguments.at, row.epochs)
        identity, changed = forked(source.identity, arguments.set, start.digest)
        new = uid_of(identity)
        store.branch(new, identity, start)
        before = _return_of(store, uid, row.epochs)
        task = task_of(identity, TaskStorage(store, arguments.use_previous))
        try:
            result = fit_task(task, row.epochs, errors)
        finally:
            task.release()
    result |= {"from": uid, "at": arguments.at, "changed": changed, "return_before": before}
    if arguments.json:
        return print_json(result)
    shown = {name: f"{tables.number(old)} -> {tables.number(value)}" for name, (old, value) in changed.items()}
    table = {
        "uid": new,
        "from": f"{uid} at epoch {arguments.at}",
        **shown,
        "epochs": result["epochs"],
        "return": result["return"],
        "return without the change": before,
        "digest": result["digest"],
    }
    new_console().print(tables.pairs_table(str(task), table))
    return 0


def forked(
    identity: Mapping[str, Any], assignments: Sequence[str], start: str
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The identity of a task that goes on from a state with other hyperparameters, and what is other: [old, new].

    BadFork if nothing changes, or what is structural does; the space's errors for values that it does not allow.
    """
    learner = load(identity["task"]).learner
    space, old = learner.hyperparameters, dict(identity["hyperparameters"])
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


def _state_at(store: Store, links: Sequence[Link], epoch: int, end: int) -> tuple[Link, Start]:
    """The state of a lineage at an epoch, and the task that went on from it."""
    kept: dict[int, Link] = {}
    for link, following in zip(links, [*links[1:], None], strict=True):
        last = following.start.epochs if following and following.start else end - 1
        kept |= {row.epochs: link for row in store.checkpoints(link.uid) if row.epochs <= last}
    saved = store.load(kept[epoch].uid, epoch) if epoch in kept else None
    if saved is None or not _at_epoch_end(saved):
        epochs = ", ".join(map(str, sorted(set(kept) - {epoch}))) or "none"
        raise BadFork(
            f"a fork starts from a checkpoint before the task's last one (at {end} epochs), but the one at {epoch} is "
            f"not kept; those that are: {epochs}"
        )
    link = kept[epoch]
    if link.start is not None and link.start.digest == saved.digest:
        return link, link.start  # its hyperparameters, but the state of the one before it
    return link, Start(link.uid, epoch, saved.digest)


def _return_of(store: Store, uid: str, epochs: int) -> float:
    """The evaluation return of a task at its last checkpoint."""
    measured = dict(store.metrics(uid)).get(epochs, {})
    if report.RETURN in measured:
        return measured[report.RETURN]
    saved = store.load(uid)
    assert saved is not None
    state = unpack(saved.manifest, saved.fetch)
    task = task_of(state["identity"])
    task.load_state_dict(state)
    return task.evaluate()
