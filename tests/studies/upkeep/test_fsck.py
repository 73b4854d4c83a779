"""fsck: no finding in a sound database; any damage is found, named, and repaired on request."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import sample_study as sample
import sqlalchemy as sa
from rekindle.studies.storage.retention import Keep
from rekindle.studies.storage.sql.schema import (
    blob,
    checkpoint,
    checkpoint_blob,
    event,
    metric,
    segment,
    study,
    task,
    trial,
)
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep import fsck
from rekindle.studies.upkeep.findings import LAWS
from rekindle.studies.upkeep.fsck import check, repair
from rekindle.tasks.checkpoint.state import pack, unpack
from sample_study import execute, rows, uid, without_foreign_keys
from sample_study import filled as filled
from sample_study import filled_url as filled_url
from sample_study import templates as templates

Break = Callable[[Store], Any]
HOST = "elsewhere:boot:1:1"  # a process on another machine


def first_blob(store: Store, number: int = 0) -> str:
    """A blob that only the last checkpoint of a trial names."""
    return next(iter(store.checkpoints(uid(number))[-1].blobs))


def last_id(store: Store, number: int = 0) -> int:
    return store.checkpoints(uid(number))[-1].id


def cut_short(store: Store) -> None:
    name = first_blob(store)
    data = rows(store, sa.select(blob.c.data).where(blob.c.digest == name))[0][0]
    execute(store, blob.update().where(blob.c.digest == name).values(data=bytes(data)[:-1]))


def flip(store: Store) -> None:
    name = first_blob(store)
    data = bytearray(rows(store, sa.select(blob.c.data).where(blob.c.digest == name))[0][0])
    data[-1] ^= 1
    execute(store, blob.update().where(blob.c.digest == name).values(data=bytes(data)))


def lose(store: Store) -> None:
    without_foreign_keys(store, blob.delete().where(blob.c.digest == first_blob(store)))


def half_written(store: Store) -> None:
    execute(store, checkpoint_blob.delete().where(checkpoint_blob.c.checkpoint == last_id(store)))


def other_manifest(store: Store) -> None:
    execute(store, checkpoint.update().where(checkpoint.c.id == last_id(store)).values(manifest=b"{}"))


def no_manifest(store: Store) -> None:
    values = {"manifest": b"{]", "digest": hashlib.sha256(b"{]").hexdigest()}
    execute(store, checkpoint.update().where(checkpoint.c.id == last_id(store)).values(**values))


def orphan(store: Store) -> None:
    execute(store, blob.insert().values(digest=hashlib.sha256(b"x").hexdigest(), size=1, data=b"x"))


def wrong_size(store: Store) -> None:
    execute(store, blob.update().where(blob.c.digest == first_blob(store)).values(size=7))


def dead_lease(store: Store) -> None:
    sample.hold(store, uid(2), sample.dead_owner(), 60)


def silent_lease(store: Store) -> None:
    sample.hold(store, uid(2), HOST, -5)


def nameless(store: Store) -> None:
    execute(store, task.insert().values(uid="x", lease_epoch=0, lease_expires=0, epochs=0, created=0))


def lost_identity(store: Store) -> None:
    execute(store, task.update().where(task.c.uid == uid(0)).values(identity=None))


def wrong_epochs(store: Store) -> None:
    execute(store, task.update().where(task.c.uid == uid(0)).values(epochs=2))


def ahead(store: Store) -> None:
    execute(store, metric.insert().values(uid=uid(2), epoch=9, data={"return": 1.0}))


def no_task(store: Store) -> None:
    of = (table.delete().where(table.c.uid == uid(0)) for table in (metric, event))
    linked = checkpoint_blob.c.checkpoint.in_([row.id for row in store.checkpoints(uid(0))])
    names = [checkpoint_blob.delete().where(linked), checkpoint.delete().where(checkpoint.c.uid == uid(0))]
    without_foreign_keys(store, *of, *names, task.delete().where(task.c.uid == uid(0)))
    repair(store, check(store))  # what is orphaned by that


def no_trial(store: Store) -> None:
    without_foreign_keys(store, trial.delete().where(trial.c.number == 0))


def no_study(store: Store) -> None:
    without_foreign_keys(store, study.delete())


def rowless_metrics(store: Store) -> None:
    without_foreign_keys(store, metric.update().where(metric.c.uid == uid(0)).values(uid="nobody"))


def bad_json(store: Store) -> None:
    execute(store, sa.text("UPDATE rk_metric SET data = '[[' WHERE uid = :uid AND epoch = 1").bindparams(uid=uid(0)))


def bad_config(store: Store) -> None:
    execute(store, study.update().values(config={"version": 1, "nonsense": True}))


def change_segment(number: int, at: int, /, **values: Any) -> Break:
    condition = (segment.c.number == number) & (segment.c.rung == at)
    return lambda store: execute(store, segment.update().where(condition).values(**values))


def change_trial(number: int, **values: Any) -> Break:
    return lambda store: execute(store, trial.update().where(trial.c.number == number).values(**values))


BREAKS: list[tuple[Break, set[str]]] = [
    (cut_short, {"blob", "checkpoint"}),
    (flip, {"blob", "checkpoint"}),
    (lose, {"checkpoint"}),
    (half_written, {"checkpoint", "orphan"}),
    (other_manifest, {"checkpoint"}),
    (no_manifest, {"checkpoint", "segment-digest"}),
    (orphan, {"orphan"}),
    (wrong_size, {"blob-size"}),
    (dead_lease, {"lease"}),
    (silent_lease, {"lease"}),
    (nameless, {"task-identity"}),
    (lost_identity, {"task-lost"}),
    (wrong_epochs, {"task-epochs"}),
    (ahead, {"metrics"}),
    (no_task, {"trial-task"}),
    (no_trial, {"unreachable"}),
    (no_study, {"unreachable"}),
    (rowless_metrics, {"unreachable"}),
    (bad_json, {"json"}),
    (bad_config, {"study"}),
    (change_segment(0, 1, state="ready", score=None, digest=None), {"segment-open"}),
    (change_segment(0, 1, state="ready"), {"segment-result"}),
    (change_segment(0, 1, score=None), {"segment-result"}),
    (change_segment(2, 0, state="odd"), {"segment-result", "segment-order"}),
    (change_segment(0, 1, epochs=1), {"segment-order", "segment-digest"}),
    (change_segment(0, 1, rung=3), {"segment-order"}),
    (change_segment(0, 1, digest="0" * 64), {"segment-digest"}),
    (change_trial(1, state="running"), {"trial-failed"}),
    (change_trial(1, state="complete"), {"trial-state"}),
    (change_trial(0, state="lost"), {"trial-state"}),
]


def test_nothing_is_wrong_with_a_sound_database(filled: Store) -> None:
    assert check(filled) == []


def test_nothing_is_wrong_with_an_empty_database(store: Store) -> None:
    assert check(store) == []


# What the two databases hold, find or repair by statements or types of their own.
OWN = (flip, lose, orphan, silent_lease, nameless, ahead, no_trial, rowless_metrics, bad_json)


@pytest.mark.parametrize(
    ("filled_url", "break_", "kinds"),
    [
        pytest.param(
            url,
            break_,
            kinds,
            id=f"{url}-{break_.__name__}{i}",
            marks=[] if url == "sqlite" or break_ in OWN else pytest.mark.slow,
        )
        for url in ("sqlite", "postgresql")
        for i, (break_, kinds) in enumerate(BREAKS)
    ],
    indirect=["filled_url"],
)
def test_damage_is_found_and_repaired_only_on_request(filled: Store, break_: Break, kinds: set[str]) -> None:
    break_(filled)
    findings = check(filled)
    assert {finding.kind for finding in findings} == kinds
    assert all(finding.place and finding.what and finding.law in str(finding) for finding in findings)
    repairs = repair(filled, findings)
    assert [repair.note for repair in repairs if not repair.done] == []
    left = check(filled)
    assert {finding.kind for finding in left} <= {law for law in LAWS if not LAWS[law].repair}
    if all(LAWS[law_name].repair for law_name in kinds):
        assert left == []


def test_looking_changes_nothing(filled: Store) -> None:
    for break_ in (flip, orphan, dead_lease, ahead, bad_config):
        break_(filled)
    findings = check(filled)
    assert len(findings) > 5
    assert check(filled) == findings


@sample.on_sqlite
@pytest.mark.parametrize("break_", [cut_short, lose, other_manifest])
def test_a_task_goes_back_to_its_last_sound_checkpoint(filled: Store, break_: Break) -> None:
    break_(filled)
    repair(filled, check(filled))
    saved = filled.load(uid(0))
    assert saved is not None
    assert saved.epochs == 2
    assert unpack(saved.manifest, saved.fetch)["steps"] == 2
    assert [epoch for epoch, _ in filled.metrics(uid(0))] == [1, 2]
    assert "repaired" in [event.kind for event in filled.events(uid(0))]
    with filled.open(uid(0), {"task": "ppo", "number": 0}) as lease:  # the same state again is whole again
        digest = sample.save(filled, lease, 0, 3)
    saved = filled.load(uid(0))
    assert saved is not None
    assert saved.digest == digest == pack(unpack(saved.manifest, saved.fetch)).digest
    assert check(filled) == []


def test_a_task_without_a_sound_checkpoint_starts_anew(sqlite_url: str) -> None:
    with Store(sqlite_url, keep=Keep(latest=1)) as store:
        sample.fill(store)
        flip(store)
        repair(store, check(store))
        assert store.load(uid(0)) is None
        assert store.metrics(uid(0)) == []
        assert check(store) == []


@sample.on_sqlite
def test_only_the_damaged_older_checkpoint_is_dropped(filled: Store) -> None:
    first = filled.checkpoints(uid(0))[0]
    execute(filled, checkpoint.update().where(checkpoint.c.id == first.id).values(manifest=b"{}"))
    repair(filled, check(filled))
    assert [row.epochs for row in filled.checkpoints(uid(0))] == [2, 3]
    assert len(filled.metrics(uid(0))) == 3


@sample.on_sqlite
def test_a_finding_names_a_trial_by_the_number_that_trials_shows(filled: Store) -> None:
    change_trial(0, state="lost")(filled)
    change_trial(1, state="lost")(filled)
    change_segment(1, 0, digest="0" * 64)(filled)

    def places() -> set[str]:
        return {finding.place for finding in check(filled)}

    of = f"of study {sample.NAME!r}"
    assert {f"trial 0 {of}", f"trial 1 {of}", f"segment 0 of trial 1 {of}"} <= places()
    config = {**filled.study(sample.NAME).config, "options": {"seeds": 2, "aggregate": "mean"}}
    execute(filled, study.update().values(config=config))
    seeds = [f"trial 0, seed {n} of 2, {of}" for n in (1, 2)]
    assert {*seeds, f"segment 0 of {seeds[1]}"} <= places()


def test_a_task_that_was_trained_since_the_check_keeps_its_rows(filled: Store) -> None:
    nameless(filled)
    findings = check(filled)
    with filled.open("x", {"task": "ppo", "number": 9}) as lease:
        digest = sample.save(filled, lease, 9, 1)
    metrics, events = filled.metrics("x"), filled.events("x")
    assert metrics
    assert [(repair.finding.kind, repair.note) for repair in repair(filled, findings)] == [
        ("task-identity", "it no longer holds")
    ]
    assert (repr(filled.metrics("x")), filled.events("x")) == (repr(metrics), events)  # one of them is NaN
    saved = filled.load("x")
    assert saved is not None
    assert saved.digest == digest
    assert check(filled) == []


def test_leases_of_a_living_process_are_left_alone(filled: Store) -> None:
    flip(filled)
    ahead(filled)
    sample.hold(filled, uid(0), HOST, 60)
    sample.hold(filled, uid(2), HOST, 60)
    findings = check(filled)
    assert {finding.kind for finding in findings} == {"blob", "checkpoint"}
    repairs = repair(filled, findings)
    assert [repair.finding.kind for repair in repairs if not repair.done] == ["checkpoint"]
    assert len(filled.checkpoints(uid(0))) == 3


@sample.on_sqlite
def test_a_process_that_wakes_up_after_a_repair_is_refused(filled: Store) -> None:
    from rekindle.studies.errors import LeaseLost

    lease = filled.open(uid(2), {"task": "ppo", "number": 2})
    execute(filled, task.update().where(task.c.uid == uid(2)).values(lease_owner=sample.dead_owner()))
    assert [result.done for result in repair(filled, check(filled))] == [True]
    with pytest.raises(LeaseLost):
        sample.save(filled, lease, 2, 4)


@sample.on_sqlite
def test_a_claim_that_waits_for_its_worker_is_no_finding(filled: Store) -> None:
    from rekindle.studies.storage.rows import Trial

    filled.add_rows(sample.NAME, trials=[Trial(9, "claimed", {})])
    [(lease, _)] = filled.claim(sample.NAME, ["claimed"])
    lease.release()
    assert check(filled) == []


@sample.on_sqlite
@pytest.mark.parametrize("value", ["CAST(x'ff' AS TEXT)", "CAST(data AS TEXT)", "'x'", "7", "1 << 40", "1e300"])
def test_a_blob_of_another_storage_class_is_named_and_the_others_are_examined(filled: Store, value: str) -> None:
    name = first_blob(filled)
    other = first_blob(filled, 1)
    assert other != name
    execute(filled, blob.update().where(blob.c.digest == other).values(data=b"cut short"))
    execute(filled, sa.text(f"UPDATE rk_blob SET data = {value} WHERE digest = :name").bindparams(name=name))
    findings = {finding.key[0]: finding for finding in check(filled) if finding.kind == "blob"}
    assert findings.keys() == {name, other}
    assert "SQLite has its bytes as " in findings[name].what
    damaged = {finding.key[0] for finding in check(filled) if finding.kind == "checkpoint"}
    assert damaged == {uid(0), uid(1)}
    repair(filled, check(filled))
    assert check(filled) == []


@sample.on_sqlite
def test_a_manifest_that_is_no_bytes_is_named_and_the_others_are_examined(filled: Store) -> None:
    ids = [filled.checkpoints(uid(0))[0].id, last_id(filled, 0)]
    values = dict(zip(ids, ("CAST(x'ff' AS TEXT)", "CAST(manifest AS TEXT)"), strict=True))
    for id, value in values.items():
        execute(filled, sa.text(f"UPDATE rk_checkpoint SET manifest = {value} WHERE id = :id").bindparams(id=id))
    flip_number = last_id(filled, 1)
    execute(filled, checkpoint.update().where(checkpoint.c.id == flip_number).values(manifest=b"{}"))
    findings = {finding.key[1]: finding.what for finding in check(filled)}
    assert findings == dict.fromkeys(ids, "SQLite has the bytes of its manifest as text") | {
        flip_number: "its manifest has another sha256"
    }
    repair(filled, check(filled))
    assert check(filled) == []


def test_long_blobs_are_read_in_pieces(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsck, "LONGEST", 100)
    assert check(filled) == []
    flip(filled)
    assert {finding.kind for finding in check(filled)} == {"blob", "checkpoint"}


@pytest.mark.slow
def test_the_memory_that_it_takes_does_not_grow_with_the_blobs(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, batch = 1 << 18, 1 << 20
    with Store(sqlite_url) as store:
        for number in range(64):  # 16 MiB
            data = bytes([number]) * size
            values = {"digest": hashlib.sha256(data).hexdigest(), "size": size, "data": data}
            execute(store, blob.insert().values(**values))
        tracemalloc.start()
        findings = check(store)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert len(findings) == 64
    assert peak < 4 * batch
