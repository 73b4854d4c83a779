"""Tasks in the store, on SQLite and PostgreSQL: checkpoints, metrics, events, retention, damage."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from rekindle.studies.errors import DamagedCheckpoint, IdentityMismatch, LeaseLost, TaskBusy
from rekindle.studies.storage.retention import Keep
from rekindle.studies.storage.sql.schema import blob, checkpoint, checkpoint_blob, task
from rekindle.studies.storage.store import Store
from rekindle.tasks.checkpoint.storage import Write
from rekindle.tasks.errors import DamagedState
from studying import sqlite_first

Writer = Callable[..., Write]
IDENTITY = {"algorithm": "ppo", "env": "CartPole-v1", "seed": 1}


def count(store: Store, table: sa.Table) -> int:
    return store.database.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def change(store: Store, statement: Any) -> None:
    store.database.write(lambda c: c.execute(statement))


def test_a_saved_policy_can_be_loaded(store: Store, write: Writer) -> None:
    lease = store.open("a", IDENTITY)
    assert lease.load() is None
    given = write(lease, 3, metrics=[(1, {"return": 1.5}), (2, {"return": math.nan}), (3, {"loss": -math.inf})])
    store.save([given])
    saved = lease.load()
    assert saved is not None
    assert (saved.epochs, saved.manifest) == (3, given.manifest)
    assert saved.digest == hashlib.sha256(given.manifest or b"").hexdigest()
    assert {name: saved.fetch(name) for name in given.blobs} == given.blobs
    assert [epoch for epoch, _ in saved.metrics] == [1, 2, 3]
    assert math.isnan(saved.metrics[1][1]["return"])
    assert saved.metrics[2][1] == {"loss": -math.inf}


def test_another_process_sees_the_same(url: str, write: Writer) -> None:
    with Store(url) as store:
        store.save([write(store.open("a", IDENTITY), 1)])
    with Store(url) as store:
        saved = store.load("a")
        assert saved is not None
        assert saved.epochs == 1
        assert store.tasks()[0].identity == IDENTITY
        assert store.load("unknown") is None


def test_saving_the_same_twice_changes_nothing(store: Store, write: Writer) -> None:
    lease = store.open("a", IDENTITY)
    for _ in range(2):
        store.save([write(lease, 1)])
    assert [row.epochs for row in store.checkpoints("a")] == [1]
    assert store.metrics("a") == [(1, {"return": 1.0})]
    assert count(store, blob) == 1


def test_a_write_without_a_manifest_adds_metrics_and_events_only(store: Store) -> None:
    lease = store.open("a", IDENTITY)
    store.save([Write(lease, 2, metrics=[(2, {"return": 9.0})], events=[("mode", {"exact": True})])])
    assert lease.load() is None
    assert store.metrics("a") == [(2, {"return": 9.0})]
    assert [(event.kind, event.data) for event in store.events("a")][-1] == ("mode", {"exact": True})


def test_members_are_saved_together_or_not_at_all(store: Store, write: Writer) -> None:
    leases = [store.open(uid, IDENTITY) for uid in "abc"]
    store.save([write(lease, 1, lease.uid.encode()) for lease in leases])
    change(store, task.update().where(task.c.uid.in_(["b", "c"])).values(lease_epoch=7))  # as if taken over
    with pytest.raises(
        LeaseLost, match="only the process that holds a task may write it, but the lease on b, c"
    ) as lost:
        store.save([write(lease, 2, lease.uid.encode()) for lease in leases])
    assert lost.value.uids == ("b", "c")
    assert [row.epochs for row in store.tasks()] == [1, 1, 1]
    assert (count(store, checkpoint), count(store, blob)) == (3, 3)
    store.save([write(leases[0], 2)])


def test_nothing_is_written_after_release(store: Store, write: Writer) -> None:
    lease = store.open("a", IDENTITY)
    lease.release()
    lease.release()
    with pytest.raises(LeaseLost, match="open it again to resume"):
        store.save([write(lease, 1)])
    with pytest.raises(LeaseLost):
        lease.load()
    assert (count(store, checkpoint), count(store, blob)) == (0, 0)


def test_a_task_is_held_once_also_within_a_process(url: str, store: Store) -> None:
    lease = store.open("a", IDENTITY)
    with pytest.raises(
        TaskBusy, match=r"held by process \d+ on .* until \d\d:\d\d:\d\d UTC \((59|60) s from now\)"
    ) as busy:
        store.open("a", IDENTITY)
    assert busy.value.uid == "a"
    with Store(url) as other, pytest.raises(TaskBusy):
        other.open("a", IDENTITY)
    lease.release()
    with store.open("a", IDENTITY) as again:
        assert again.token == lease.token + 1


@sqlite_first
def test_a_lease_that_was_dropped_is_free_for_its_own_process(store: Store) -> None:
    lease = store.open("a", IDENTITY)
    del lease
    gc.collect()
    assert store.open("a", IDENTITY).token == 2


def test_a_uid_belongs_to_one_identity(store: Store) -> None:
    store.open("a", IDENTITY).release()
    with pytest.raises(IdentityMismatch, match="the env, seed of task a differ"):
        store.open("a", {**IDENTITY, "env": "Acrobot-v1", "seed": 2})
    store.open("a", {**IDENTITY})


def test_events_tell_every_start_and_resume(store: Store, write: Writer) -> None:
    with store.open("a", IDENTITY) as lease:
        store.save([write(lease, 4)])
    store.open("a", IDENTITY).release()
    assert [(event.kind, event.data["epochs"], event.data["token"]) for event in store.events("a")] == [
        ("start", 0, 1),
        ("resume", 4, 2),
    ]


def test_a_blob_is_stored_once_and_dropped_with_its_last_checkpoint(store: Store) -> None:
    a, b = store.open("a", IDENTITY), store.open("b", {})
    shared, private = b"the same for both", b"of a alone"
    names = {hashlib.sha256(data).hexdigest(): data for data in (shared, private)}
    store.save([Write(a, 1, b"1", names), Write(b, 1, b"1", {hashlib.sha256(shared).hexdigest(): shared})])
    assert count(store, blob) == 2
    a.discard()
    assert (count(store, blob), count(store, checkpoint_blob)) == (1, 1)
    saved = b.load()
    assert saved is not None
    assert saved.fetch(hashlib.sha256(shared).hexdigest()) == shared
    assert a.load() is None
    assert [event.kind for event in store.events("a")] == ["start", "discarded"]


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (Keep(), [4, 5]),
        (Keep(latest=1), [5]),
        (Keep(latest=None), [1, 2, 3, 4, 5]),
        (Keep(latest=1, best=2), [2, 3, 5]),
        (Keep(latest=2, best=1, metric="missing"), [4, 5]),
    ],
)
def test_retention_keeps_the_latest_and_the_best(url: str, write: Writer, keep: Keep, kept: list[int]) -> None:
    returns = {1: 1.0, 2: 7.0, 3: 8.0, 4: math.nan, 5: 2.0}
    with Store(url, keep=keep) as store:
        lease = store.open("a", IDENTITY)
        for epoch, value in returns.items():
            store.save([write(lease, epoch, metrics=[(epoch, {"return": value})])])
        assert [row.epochs for row in store.checkpoints("a")] == kept
        assert count(store, blob) == len(kept)
        assert len(store.metrics("a")) == 5


def test_a_checkpoint_of_the_past_replaces_those_after_it(store: Store, write: Writer) -> None:
    lease = store.open("a", IDENTITY)
    store.save([write(lease, 2), write(lease, 4)])
    store.save([write(lease, 3)])
    assert [row.epochs for row in store.checkpoints("a")] == [2, 3]
    saved = lease.load()
    assert saved is not None
    assert saved.epochs == 3


FLIPPED, CUT = b"stbte at 2 epochs", b"state at"


@pytest.mark.parametrize(
    ("data", "what"),
    [(FLIPPED, r"blob \w{12} \(17 bytes\) does not have the sha256 that names it"), (CUT, r"has 8 of its 17 bytes")],
)
def test_a_damaged_blob_is_named_and_the_one_before_is_used_only_when_told(
    store: Store, write: Writer, data: bytes, what: str
) -> None:
    lease = store.open("a", IDENTITY)
    store.save([write(lease, 1), write(lease, 2)])
    (bad,) = write(lease, 2).blobs
    change(store, blob.update().where(blob.c.digest == bad).values(data=data))
    damaged = lease.load()
    assert damaged is not None
    with pytest.raises(
        DamagedCheckpoint, match=rf"task a at 2 epochs is damaged: .*{what}.* at 1 epochs is sound"
    ) as e:
        damaged.fetch(bad)
    assert isinstance(e.value, DamagedState)
    saved = lease.load(allow_previous=True)
    assert saved is not None
    assert saved.epochs == 1
    assert store.metrics("a") == saved.metrics == [(1, {"return": 1.0})]
    assert [event.kind for event in store.events("a")] == ["start", "damaged"]
    store.save([write(lease, 2)])  # training is exact, so it makes the same blob again
    healed = lease.load()
    assert healed is not None
    assert healed.fetch(bad) == b"state at 2 epochs"


def test_a_shared_damaged_blob_is_healed_by_the_next_writer(store: Store) -> None:
    a, b = store.open("a", IDENTITY), store.open("b", {})
    data = b"shared"
    name = hashlib.sha256(data).hexdigest()
    store.save(
        [
            Write(lease, epochs, b"%d" % epochs, blobs)
            for lease, epochs, blobs in [(a, 1, {}), (a, 2, {name: data}), (b, 1, {name: data})]
        ]
    )
    change(store, blob.update().values(data=b"shbred"))
    assert a.load(allow_previous=True) is not None
    with pytest.raises(DamagedCheckpoint, match=r"No sound one is left: .*discard"):
        b.load(allow_previous=True)
    store.save([Write(a, 2, b"2", {name: data})])
    saved = b.load()
    assert saved is not None
    assert saved.fetch(name) == data


def within(write: Writer, lease: Any, epochs: int, content: bytes) -> Write:
    """Return a checkpoint that a signal caused, during the epoch after `epochs`."""
    [(name, data)] = write(lease, epochs, content).blobs.items()
    manifest = json.dumps({"tensors": name, "values": {"learner/tally/count": 3}}).encode()
    return Write(lease, epochs, manifest, {name: data})


def damage(store: Store, checkpoint: Write) -> None:
    change(store, blob.update().where(blob.c.digest.in_(checkpoint.blobs)).values(data=b"x"))


def test_a_damaged_checkpoint_within_an_epoch_is_left_for_the_one_before_it(store: Store, write: Writer) -> None:
    lease = store.open("a", IDENTITY)
    later = within(write, lease, 2, b"later state")
    store.save([write(lease, 2)])
    store.save([later])
    damage(store, later)
    saved = lease.load(allow_previous=True)
    assert saved is not None
    assert saved.fetch(*write(lease, 2).blobs) == b"state at 2 epochs"
    assert [(row.epochs, row.within_epoch) for row in store.checkpoints("a")] == [(2, False)]
    again = store.load("a")  # of a process that is killed before it saves
    assert again is not None
    assert again.digest == saved.digest


@pytest.mark.parametrize("signalled", [False, True])
def test_a_task_starts_again_if_its_untrained_state_is_damaged(store: Store, write: Writer, signalled: bool) -> None:
    a, b = store.open("a", IDENTITY), store.open("b", {})
    first = within(write, a, 0, b"state") if signalled else write(a, 0)
    store.save([first, Write(b, 0, first.manifest, first.blobs)])
    damage(store, first)
    with pytest.raises(DamagedCheckpoint, match=r"No sound one is left: .*discard"):
        a.load(allow_previous=True)
    a.discard()
    assert (a.load(), store.checkpoints("a")) == (None, [])
    store.save([first])  # training is exact, so it makes the same blob again, which b has kept
    for lease in (a, b):
        saved = lease.load()
        assert saved is not None
        assert saved.fetch(*first.blobs) == b"state at 0 epochs"


def test_a_damaged_manifest_and_a_missing_blob_are_found(store: Store, write: Writer) -> None:
    lease = store.open("a", IDENTITY)
    store.save([write(lease, 1)])
    saved = lease.load()
    assert saved is not None
    with pytest.raises(DamagedCheckpoint, match="blob 000000000000 is missing"):
        saved.fetch("0" * 64)
    change(store, checkpoint.update().values(manifest=b"{}"))
    with pytest.raises(DamagedCheckpoint, match=r"its manifest \(2 bytes\) does not have the sha256 on record"):
        lease.load()
    with pytest.raises(DamagedCheckpoint):
        store.load("a")


def test_a_digest_that_is_not_of_its_manifest_is_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="a digest is the sha256 of its manifest"):
        store.save([Write(store.open("a", IDENTITY), 1, b"{}", {}, digest="0" * 64)])
    assert count(store, checkpoint) == 0


def test_writers_that_share_blobs_and_drop_them_do_not_hurt_each_other(url: str, write: Writer) -> None:
    def train(uid: str) -> None:
        with Store(url, keep=Keep(latest=1)) as store_of_writer:
            with store_of_writer.open(uid, IDENTITY) as lease:
                for epoch in range(1, 16):
                    store_of_writer.save([write(lease, epoch)])
                    saved = lease.load()
                    assert saved is not None
                    assert saved.epochs == epoch
            done.append(uid)

    done: list[str] = []
    threads = [threading.Thread(target=train, args=[uid]) for uid in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ["a", "b", "c", "d"]
    with Store(url) as store:
        assert count(store, blob) == 1
        assert [store.load(uid) is not None for uid in "abcd"] == [True] * 4


def test_a_store_that_is_closed_twice_and_its_name_are_no_trouble(url: str) -> None:
    store = Store(url)
    assert repr(store) == f"Store({store.url!r})"
    store.open("a", IDENTITY)
    store.close()
    store.close()
    with Store(url) as other:
        assert other.tasks()[0].owner is None


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, 1e20])
def test_a_lease_lasts_some_time(sqlite_url: str, seconds: float) -> None:
    with pytest.raises(ValueError, match="lease_seconds must be above 0, and 10000000 at most, but got"):
        Store(sqlite_url, lease_seconds=seconds)


def test_keeping_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="latest must be at least 1, or None for all, but got 0"):
        Keep(latest=0)
    with pytest.raises(ValueError, match="best must be at least 0, but got -1"):
        Keep(best=-1)
