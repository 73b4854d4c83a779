"""``rekindle fsck``, ``gc``, ``delete``, ``export`` and ``import``: maintenance.

fsck exits with 1 if any finding is left.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from ...engine.confirmations import confirmations_of
from ...engine.optuna_mirror import forget
from ...engine.views import EMPTY, View
from ...redact import printable
from ...storage.store import Store
from ...study.number_text import counted
from ...upkeep.deleting import delete as remove
from ...upkeep.exporting import Transferred, export_study
from ...upkeep.findings import Fault
from ...upkeep.fsck import check, repair
from ...upkeep.gc import gc as collect
from ...upkeep.importing import import_study
from ...upkeep.shrinking import Shrunk, shrink
from ..output.terminal import new_console, note, print_json
from .options import FAILED
from .storage import existing_store, open_store


class FaultView(View):
    """A finding of a check of the storage."""

    kind: Annotated[str, "name of the law that is broken"]
    place: Annotated[str, "row"]
    what: Annotated[str, "wrong value or state"]
    law: Annotated[str, "the law"]
    cure: Annotated[str, "cure"]
    repairable: Annotated[bool, "whether --repair applies it"]

    @classmethod
    def of(cls, finding: Fault) -> FaultView:
        """Return a view of a finding."""
        return cls(**{name: getattr(finding, name) for name in cls.fields})


class RepairView(View):
    """A repair."""

    kind: Annotated[str, "name of the law that was broken"]
    place: Annotated[str, "row"]
    done: Annotated[bool, "whether it was repaired"]
    note: Annotated[str, "why not"]


class FsckView(View):
    """Findings of a check of the storage."""

    storage: Annotated[str, "URL without password"]
    findings: Annotated[Sequence[FaultView], "findings"]
    repairs: Annotated[Sequence[RepairView] | None, "repairs, with --repair"] = None
    left: Annotated[Sequence[FaultView] | None, "findings that are left, with --repair"] = None


class OfTrialView(View):
    """A trial that trains a task."""

    study: Annotated[str, "name of its study"]
    number: Annotated[int, "number"]
    state: Annotated[str, "state"]


class GarbageView(View):
    """Checkpoints of a task that no trial needs."""

    uid: Annotated[str, "uid of the task"]
    trials: Annotated[Sequence[OfTrialView], "trials that train it"]
    epochs: Annotated[Sequence[int], "epochs of the dropped checkpoints"]
    kept: Annotated[Sequence[int], "epochs of the kept ones"]
    bytes: Annotated[int, "size of the dropped ones"]


class GcView(View):
    """Dropped checkpoints."""

    storage: Annotated[str, "URL without password"]
    dry_run: Annotated[bool, "whether nothing was changed"]
    bytes: Annotated[int, "size of the dropped checkpoints"]
    checkpoints: Annotated[int, "their number"]
    tasks: Annotated[Sequence[GarbageView], "by task"]
    file: Annotated[Shrunk | Mapping[str, Any] | None, "sizes of the database's files, with --yes"] = EMPTY


class KeptView(View):
    """A task that stays."""

    uid: Annotated[str, "uid"]
    why: Annotated[str, "why it stays"]


class DeleteView(View):
    """Extent of a deletion."""

    storage: Annotated[str, "URL without password"]
    dry_run: Annotated[bool, "whether nothing was changed"]
    study: Annotated[str | None, "name of the study"]
    confirmation: Annotated[str | None, "its first confirmation"]
    confirmations: Annotated[Sequence[str], "its confirmations"]
    trials: Annotated[int, "number of trials"]
    tasks: Annotated[Sequence[str], "uids of the tasks"]
    checkpoints: Annotated[int, "number of checkpoints"]
    kept: Annotated[Sequence[KeptView], "tasks that stay"]


class TransferView(View):
    """A study in a file."""

    merged = frozenset({"rows"})

    storage: Annotated[str, "URL without password"]
    file: Annotated[str, "path"]
    bytes: Annotated[int, "size"]
    rows: Annotated[Transferred, "number of rows"]


def fsck(arguments: argparse.Namespace) -> int:
    """Check and repair the storage; return 1 if any finding is left."""
    with existing_store(arguments) as store:
        findings = check(store)
        repairs = repair(store, findings) if arguments.repair else []
        left = check(store) if repairs else findings
    if arguments.json:
        view = FsckView(storage=store.url, findings=[*map(FaultView.of, findings)])
        if arguments.repair:
            repaired = [
                RepairView(kind=repair.finding.kind, place=repair.finding.place, done=repair.done, note=repair.note)
                for repair in repairs
            ]
            view = view.replace(repairs=repaired, left=[*map(FaultView.of, left)])
        return print_json(view, FAILED if left else 0)
    for finding in findings:
        _print(str(finding))
    for result in repairs:
        _print(f"{result.finding.place}: {'repaired' if result.done else f'not repaired: {result.note}'}")
    done = sum(repair.done for repair in repairs)
    _print(
        f"{store.url}: {len(findings)} findings, {done} repaired, {len(left)} left"
        if findings
        else f"{store.url} is sound"
    )
    if findings and not arguments.repair and any(finding.repairable for finding in findings):
        _print("nothing was changed; the same command with --repair repairs what can be repaired")
    return FAILED if left else 0


def gc(arguments: argparse.Namespace) -> int:
    """List unneeded checkpoints, and drop them with --yes."""
    with existing_store(arguments) as store:
        garbage = collect(store, studies=arguments.study, dry_run=not arguments.yes)
        shrunk = shrink(store) if arguments.yes else None
    size, count = sum(row.size for row in garbage), sum(len(row.epochs) for row in garbage)
    if arguments.json:
        tasks = [
            GarbageView(
                uid=row.uid,
                trials=[OfTrialView(study=study, number=number, state=state) for study, number, state in row.trials],
                epochs=[*row.epochs],
                kept=[*row.kept],
                bytes=row.size,
            )
            for row in garbage
        ]
        result = GcView(storage=store.url, dry_run=not arguments.yes, bytes=size, checkpoints=count, tasks=tasks)
        return print_json(result.replace(file=shrunk) if arguments.yes else result)
    for row in garbage:
        trials = ", ".join(f"trial {number} of {study} ({state})" for study, number, state in row.trials)
        trials = trials or "a policy that nothing starts from"
        kept = f"keeps {', '.join(map(str, row.kept))}" if row.kept else "keeps none"
        _print(f"{row.uid}  {trials}: drops epochs {', '.join(map(str, row.epochs))}, {kept}; {row.size:,} bytes")
    verb = "dropped" if arguments.yes else "could be dropped"
    _print(f"{count} checkpoints of {len(garbage)} tasks {verb}, {size:,} bytes in all")
    if shrunk is not None:
        _print(f"the database's files: {shrunk.before:,} bytes before, {shrunk.after:,} now ({shrunk.how})")
    if garbage and not arguments.yes:
        _print("nothing was changed; the same command with --yes drops them")
    return 0


def delete(arguments: argparse.Namespace) -> int:
    """List what would be deleted, and delete it if the user agrees."""
    with existing_store(arguments) as store:
        removed = remove(store, arguments.name)
        if not arguments.json:
            names = removed.confirmations
            noun = "confirmation" if len(names) == 1 else "confirmations"
            confirmed = f" and its {noun}, {', '.join(names)}: their" if names else ", its"
            subject = (
                f"study {removed.study}{confirmed} {counted(removed.trials, 'trial')}" if removed.study else "no study"
            )
            parts = f"{counted(len(removed.tasks), 'task')} and {counted(removed.checkpoints, 'checkpoint')}"
            _print(f"{subject}, {parts} would be deleted")
            for uid, why in removed.kept.items():
                _print(f"task {uid} stays: it {why}")
        agreed = arguments.yes or (not arguments.json and _agrees())
        if agreed:
            removed = remove(store, arguments.name, dry_run=False)
            for name in filter(None, (removed.study, *removed.confirmations)):
                forget(store, name, partial(note, new_console(stderr=True)))
            shrink(store)
    if arguments.json:
        kept = [KeptView(uid=uid, why=why) for uid, why in removed.kept.items()]
        first = next(iter(removed.confirmations), None)
        extent = {**vars(removed), "confirmation": first, "kept": kept}
        return print_json(DeleteView(storage=store.url, dry_run=not agreed, **extent))
    _print("deleted" if agreed else "nothing was changed; the same command with --yes deletes")
    return 0


def _agrees() -> bool:
    return sys.stdin.isatty() and input("delete? [y/N] ").strip().lower() in ("y", "yes")


def export(arguments: argparse.Namespace) -> int:
    """Write a study to a file."""
    with existing_store(arguments) as store:
        done = export_study(store, arguments.study, arguments.file)
        for name in confirmations_of(store, arguments.study):
            note(new_console(stderr=True), f"its confirmation, the study {name}, is not in the file; export it, too")
    return _transferred(arguments, store, done, "written to")


def load(arguments: argparse.Namespace) -> int:
    """Read a study from a file."""
    if not arguments.file.is_file():  # before a database is created
        raise ValueError(f"there is no file {arguments.file}; `rekindle export STUDY FILE` writes one")
    with open_store(arguments) as store:
        done = import_study(store, arguments.file)
    return _transferred(arguments, store, done, "read from")


def _transferred(arguments: argparse.Namespace, store: Store, done: Transferred, how: str) -> int:
    size = os.path.getsize(arguments.file)
    if arguments.json:
        return print_json(TransferView(storage=store.url, file=str(arguments.file), bytes=size, rows=done))
    new = f" ({done.new} of them new)" if how == "read from" else ""
    _print(
        f"study {done.study} {how} {arguments.file}: {counted(done.trials, 'trial')}, "
        f"{counted(done.tasks, 'task')}, {counted(done.checkpoints, 'checkpoint')}{new}, {size:,} bytes"
    )
    return 0


def _print(text: str) -> None:
    print(printable(" ".join(text.split())))
