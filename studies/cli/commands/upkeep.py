"""``rekindle fsck``, ``gc``, ``delete``, ``export`` and ``import``: maintenance.

With ``--json`` stdout is one JSON object:

    fsck    format, storage, findings [{kind, place, law, what, cure, repairable}]; with --repair also
            repairs [{kind, place, done, note}] and left [as findings]
    gc      format, storage, dry_run, bytes, checkpoints (number), tasks [{uid, trials [{study, number, state}],
            epochs, kept, bytes}], file (with --yes; null for PostgreSQL) {before, after (bytes), how}
    delete  format, storage, dry_run, study, confirmation (the first, or null), confirmations [names], trials,
            checkpoints (numbers), tasks [uid], kept [{uid, why}]
    export, import  format, storage, file, bytes, study, trials, tasks, checkpoints, blobs, new (number of checkpoints
            that the database did not have)

fsck exits with 1 if any finding is left.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...engine.confirmations import confirmations_of
from ...engine.optuna_mirror import forget
from ...redact import printable
from ...storage.store import Store
from ...study.number_text import counted
from ...upkeep.deleting import delete as remove
from ...upkeep.exporting import export_study
from ...upkeep.fsck import check, repair
from ...upkeep.gc import gc as collect
from ...upkeep.importing import import_study
from ...upkeep.shrinking import shrink
from ..output.terminal import new_console, note, print_json
from .options import FAILED
from .storage import existing_store, open_store


def fsck(arguments: argparse.Namespace) -> int:
    """Check and repair the storage; return 1 if any finding is left."""
    with existing_store(arguments) as store:
        findings = check(store)
        repairs = repair(store, findings) if arguments.repair else []
        left = check(store) if repairs else findings
        result: dict[str, Any] = {"storage": store.url, "findings": [finding.to_json() for finding in findings]}
        if arguments.repair:
            result["repairs"] = [
                {"kind": each.finding.kind, "place": each.finding.place, "done": each.done, "note": each.note}
                for each in repairs
            ]
            result["left"] = [finding.to_json() for finding in left]
    if arguments.json:
        return print_json(result, FAILED if left else 0)
    for finding in findings:
        _print(str(finding))
    for each in repairs:
        _print(f"{each.finding.place}: {'repaired' if each.done else f'not repaired: {each.note}'}")
    done = sum(each.done for each in repairs)
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
    size, count = sum(each.size for each in garbage), sum(len(each.epochs) for each in garbage)
    if arguments.json:
        result = {"storage": store.url, "dry_run": not arguments.yes, "bytes": size, "checkpoints": count}
        result["tasks"] = [each.to_json() for each in garbage]
        if arguments.yes:
            result["file"] = shrunk.to_json() if shrunk else None
        return print_json(result)
    for each in garbage:
        trials = ", ".join(f"trial {number} of {study} ({state})" for study, number, state in each.trials)
        trials = trials or "a policy that nothing starts from"
        kept = f"keeps {', '.join(map(str, each.kept))}" if each.kept else "keeps none"
        _print(f"{each.uid}  {trials}: drops epochs {', '.join(map(str, each.epochs))}, {kept}; {each.size:,} bytes")
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
        found = remove(store, arguments.name)
        if not arguments.json:
            names = found.confirmations
            kind = "confirmation" if len(names) == 1 else "confirmations"
            confirmed = f" and its {kind}, {', '.join(names)}: their" if names else ", its"
            what = f"study {found.study}{confirmed} {counted(found.trials, 'trial')}" if found.study else "no study"
            parts = f"{counted(len(found.tasks), 'task')} and {counted(found.checkpoints, 'checkpoint')}"
            _print(f"{what}, {parts} would be deleted")
            for uid, why in found.kept.items():
                _print(f"task {uid} stays: it {why}")
        agreed = arguments.yes or (not arguments.json and _agrees())
        if agreed:
            found = remove(store, arguments.name, dry_run=False)
            for name in filter(None, (found.study, *found.confirmations)):
                forget(store, name, partial(note, new_console(stderr=True)))
            shrink(store)
    if arguments.json:
        return print_json({"storage": store.url, "dry_run": not agreed, **found.to_json()})
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
    return _transferred(arguments, store, done.to_json(), "written to")


def load(arguments: argparse.Namespace) -> int:
    """Read a study from a file."""
    if not arguments.file.is_file():  # before a database is created
        raise ValueError(f"there is no file {arguments.file}; `rekindle export STUDY FILE` writes one")
    with open_store(arguments) as store:
        done = import_study(store, arguments.file)
    return _transferred(arguments, store, done.to_json(), "read from")


def _transferred(arguments: argparse.Namespace, store: Store, done: Mapping[str, Any], how: str) -> int:
    size = os.path.getsize(arguments.file)
    if arguments.json:
        return print_json({"storage": store.url, "file": str(arguments.file), "bytes": size, **done})
    new = f" ({done['new']} of them new)" if how == "read from" else ""
    _print(
        f"study {done['study']} {how} {arguments.file}: {counted(done['trials'], 'trial')}, "
        f"{counted(done['tasks'], 'task')}, {counted(done['checkpoints'], 'checkpoint')}{new}, {size:,} bytes"
    )
    return 0


def _print(text: str) -> None:
    print(printable(" ".join(text.split())))
