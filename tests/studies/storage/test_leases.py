"""Leases between real processes: killed, paused, forked, racing, and without their database for a while."""

from __future__ import annotations

import dataclasses
import gc
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import nursery
import pytest
import sqlalchemy as sa
from rekindle.studies.engine.runner import start_study
from rekindle.studies.errors import TaskBusy
from rekindle.studies.storage.locks.leases import Heartbeat
from rekindle.studies.storage.locks.owner import Owner
from rekindle.studies.storage.rows import Trial
from rekindle.studies.storage.sql.schema import blob, checkpoint, task
from rekindle.studies.storage.store import Store
from studying import sqlite_first, tiny

HOLD = """
import sys
from rekindle.studies.storage.store import Store
from rekindle.tasks.checkpoint.storage import Write
store = Store(sys.argv[1], lease_seconds=float(sys.argv[2]))
lease = store.open("a", {})
store.save([Write(lease, 1, b"1", {}, metrics=[(1, {"return": 1.0})])])
print("held", flush=True)
"""


def count(store: Store, table: sa.Table) -> int:
    return store.database.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_an_owner_is_read_back_from_its_name() -> None:
    me = Owner.current()
    assert Owner.parse(str(me)) == me
    assert (me.pid, me.is_dead()) == (os.getpid(), False)


def test_a_dead_process_is_known_by_pid_and_start_time_on_this_machine_only() -> None:
    me = Owner.current()
    assert dataclasses.replace(me, started="1").is_dead()  # the pid was given to another process since
    assert not dataclasses.replace(me, host="elsewhere", started="1").is_dead()
    assert not dataclasses.replace(me, boot="before", started="1").is_dead()
    assert not dataclasses.replace(me, boot="").is_dead()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # it is a zombie now: ended, not yet buried
    assert dataclasses.replace(me, pid=ended.pid).is_dead()
    ended.wait()
    assert dataclasses.replace(me, pid=ended.pid).is_dead()


def test_a_task_of_a_killed_process_is_taken_over_at_once(url: str, child: Callable[..., Any]) -> None:
    with Store(url) as store:
        worker = child(HOLD + "import time; time.sleep(600)", url, 60)
        assert worker.hear() == "held"
        with pytest.raises(TaskBusy, match=rf"process {worker.pid} on ") as busy:
            store.open("a", {})
        assert (busy.value.pid, busy.value.uid) == (worker.pid, "a")
        assert 50 < busy.value.seconds <= 60
        worker.signal(signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        assert store.workers() == []
        saved = store.open("a", {}).load()
        assert saved is not None
        assert saved.epochs == 1
        takeover = store.events("a")[-1]
        assert (takeover.kind, takeover.data["why"], takeover.data["epochs"]) == ("takeover", "dead", 1)
        assert Owner.parse(takeover.data["previous"]).pid == worker.pid
        assert takeover.data["saved"] == store.checkpoints("a")[0].created
        assert 0.0 <= takeover.data["lost"] <= takeover.created - takeover.data["saved"]


def test_a_process_killed_within_a_write_leaves_nothing_of_it(url: str, child: Callable[..., Any]) -> None:
    within = """
from rekindle.studies.storage import store as module
def put_metrics(connection, rows):
    print("within", flush=True)
    sys.stdin.readline()
module.put_metrics = put_metrics
store.save([Write(lease, 2, b"2", {"0" * 64: b"blob"})])
"""
    with Store(url) as store:
        worker = child(HOLD + within, url, 60)
        assert [worker.hear(), worker.hear()] == ["held", "within"]
        assert count(store, blob) == 0
        worker.signal(signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        saved = store.open("a", {}).load()
        assert saved is not None
        assert saved.epochs == 1
        assert (count(store, checkpoint), count(store, blob)) == (1, 0)


def test_a_process_that_was_paused_past_its_lease_cannot_write(
    url: str, child: Callable[..., Any], write: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    late = """
from rekindle.studies.errors import LeaseLost
sys.stdin.readline()
try:
    store.save([Write(lease, 2, b"late", {"0" * 64: b"late"}, metrics=[(2, {"return": 0.0})], events=[("late", {})])])
except LeaseLost as lost:
    print(*lost.uids, flush=True)
"""
    with Store(url) as store:
        worker = child(HOLD + late, url, 1.0)
        assert worker.hear() == "held"
        worker.signal(signal.SIGSTOP)
        taken: list[Any] = []

        def take() -> bool:
            with suppress(TaskBusy):
                taken.append(store.open("a", {}))
            return bool(taken)

        wait_until(take)
        store.save([write(taken[0], 2)])
        worker.signal(signal.SIGCONT)
        worker.say()
        assert worker.hear() == "a"  # LeaseLost, for task a
        assert count(store, blob) == 1
        assert [(row.epochs, row.token) for row in store.checkpoints("a")] == [(1, 1), (2, 2)]
        assert store.metrics("a") == [(1, {"return": 1.0}), (2, {"return": 2.0})]
        assert [event.kind for event in store.events("a")] == ["start", "takeover"]
        takeover = store.events("a")[1].data
        assert (takeover["why"], takeover["alive"]) == ("expired", True)
        assert store.histories(["a"])["a"].killed == 0  # nobody died of it


def test_a_heartbeat_keeps_a_lease_while_its_process_lives(
    url: str, child: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    with Store(url, lease_seconds=3.0) as store:
        lease = store.open("a", {})
        first = store.database.read(lambda c: c.scalar(sa.select(task.c.lease_expires)))
        wait_until(lambda: store.database.read(lambda c: c.scalar(sa.select(task.c.lease_expires))) > first + 0.5)
        assert not lease.lost
        worker = child(HOLD, url, 1.0)
        worker.process.wait()
        assert worker.hear() == ""  # it found the task busy, and ended


def test_a_heartbeat_sees_that_a_lease_is_lost(url: str, wait_until: Callable[..., None]) -> None:
    with Store(url, lease_seconds=0.2) as store:
        lease = store.open("a", {})
        store.database.write(lambda c: c.execute(task.update().values(lease_epoch=9, lease_owner="x:y:1:z")))
        wait_until(lambda: lease.lost)
        assert repr(lease) == "<lease 1 on task a, lost>"
        lease.release()
        assert store.tasks()[0].owner == "x:y:1:z"


@sqlite_first
def test_a_lease_that_was_dropped_without_release_is_let_go(url: str, wait_until: Callable[..., None]) -> None:
    with Store(url, lease_seconds=0.2) as store:
        lease = store.open("a", {})
        del lease
        gc.collect()
        wait_until(lambda: store.tasks()[0].owner is None)


def test_leases_of_one_task_in_two_databases_are_independent(sqlite_url: str, tmp_path: Any) -> None:
    with Store(sqlite_url) as one, Store(f"sqlite:///{tmp_path / 'other.db'}") as other:
        held, theirs = one.open("a", {}), other.open("a", {})
        assert held.token == theirs.token
        theirs.release()
        with pytest.raises(TaskBusy, match="that is this process, where another object has it"):
            one.open("a", {})
        held.release()
        idle, theirs = one.open("a", {}), other.open("a", {})
        idle.give_up = lambda: not idle.release()  # type: ignore[func-returns-value]
        assert one.open("a", {}).token == idle.token + 1  # its idle holder gives it up
        assert not theirs.lost


def test_a_release_within_a_transaction_is_left_to_the_heartbeat(url: str, wait_until: Callable[..., None]) -> None:
    def collect(connection: sa.Connection) -> None:
        connection.execute(task.update().values(epochs=0))
        lease.release()  # as the finalizer of a task would, if a garbage collection came just now

    with Store(url, lease_seconds=0.2) as store:
        lease = store.open("a", {})
        store.database.write(collect)
        assert lease.lost
        wait_until(lambda: store.tasks()[0].owner is None)


def test_a_heartbeat_ends_with_its_object(wait_until: Callable[..., None]) -> None:
    beats: list[None] = []

    class Beating:
        def beat(self) -> None:
            beats.append(None)

    beating = Beating()
    heartbeat = Heartbeat(beating.beat, 0.01)
    wait_until(lambda: len(beats) > 2)
    del beating
    gc.collect()
    wait_until(lambda: not heartbeat._thread.is_alive())


def test_a_fork_inherits_no_lease_and_hurts_none(url: str, child: Callable[..., Any]) -> None:
    fork = """
import os
from rekindle.studies.errors import LeaseLost, TaskBusy
if (pid := os.fork()) == 0:
    try:
        store.save([Write(lease, 2, b"2", {})])
    except LeaseLost as lost:
        print("forked process does not inherit" in str(lost), flush=True)
    try:
        store.open("a", {})
    except TaskBusy as busy:
        print(busy.pid == os.getppid(), flush=True)
    with store.open("b", {}):
        print(len(store.workers()), flush=True)
    store.close()
    os._exit(0)
os.waitpid(pid, 0)
store.save([Write(lease, 2, b"2", {})])
print(store.load("a").epochs, [row.owner is None for row in store.tasks()], flush=True)
store.close()
"""
    worker = child(HOLD + fork, url, 60)
    assert [worker.hear() for _ in range(5)] == ["held", "True", "True", "2", "2 [False, True]"]


CLAIM = """
import sys
from rekindle.studies.storage.store import Store
with Store(sys.argv[1], retry=120) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    mine = []
    while True:
        free = [trial.uid for trial in store.trials("s") if trial.state == "running"]
        if not free:
            break
        for lease, _ in store.claim("s", free, limit=3):
            number = int(lease.uid)
            if store.trials("s")[number].state == "running":
                store.add_rows("s", finished=[(number, "complete")])
                mine.append(lease.uid)
            lease.release()
    print(*mine, flush=True)
"""


def test_four_processes_claim_from_one_pool_and_nothing_twice(url: str, child: Callable[..., Any]) -> None:
    with Store(url) as store:
        store.change_study("s", lambda _: {})
        store.add_rows("s", trials=[Trial(number, str(number), {}) for number in range(16)])
        workers = [child(CLAIM, url) for _ in range(4)]
        assert [worker.hear() for worker in workers] == ["ready"] * 4
        for worker in workers:
            worker.say()
        done = Counter(uid for worker in workers for uid in worker.hear().split())
        assert done == Counter(str(number) for number in range(16))
        for uid in done:
            tokens = [event.data["token"] for event in store.events(uid)]
            assert tokens == list(range(1, len(tokens) + 1))  # every taking of the lease has a token of its own
            assert {event.kind for event in store.events(uid)} == {"start"}  # none took what another held


def test_leases_outlive_a_database_that_is_gone_for_a_while(own_postgres: Any, write: Callable[..., Any]) -> None:
    with Store(own_postgres.new_database(), lease_seconds=0.5) as store:
        lease = store.open("a", {})
        own_postgres.server.stop()
        timer = threading.Timer(1.0, own_postgres.server.ensure_postgres_running)
        timer.start()
        store.save([write(lease, 1)])  # waits for the server
        timer.join()
        assert not lease.lost
        assert [row.epochs for row in store.checkpoints("a")] == [1]


def test_a_process_paused_within_a_write_on_a_server_does_not_block_the_others(
    postgres_url: str, child: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    within = """
from rekindle.studies.storage import store as module
module.put_metrics = lambda *given: (print("within", flush=True), sys.stdin.readline())
try:
    store.save([Write(lease, 2, b"2", {"0" * 64: b"blob"})])
except LeaseLost as lost:
    print(*lost.uids, flush=True)
"""
    with Store(postgres_url) as store:
        worker = child(HOLD + "from rekindle.studies.errors import LeaseLost\n" + within, postgres_url, 1.0)
        assert [worker.hear(), worker.hear()] == ["held", "within"]
        worker.signal(signal.SIGSTOP)
        taken: list[Any] = []

        def take() -> bool:
            with suppress(TaskBusy):
                taken.append(store.open("a", {}))
            return bool(taken)

        wait_until(take)
        worker.signal(signal.SIGCONT)
        worker.say()
        assert worker.hear() == "a"
        assert count(store, blob) == 0


DIE_AT_RELEASE = """
import os
import signal
import sys
from rekindle.studies.cli.dispatch import main
from rekindle.studies.storage.store import Store
def die(store, leases):
    if leases := list(leases):
        os.kill(os.getpid(), signal.SIGKILL)
Store.release = die
sys.exit(main(sys.argv[1:]))
"""


def test_no_lease_is_left_of_a_process_that_died_after_its_last_result(url: str, cli: Callable[..., Any]) -> None:
    with Store(url) as store:
        start_study(store, "s", tiny(1, (1, 1, 2)))
        command = [sys.executable, "-c", DIE_AT_RELEASE, "worker", "--study", "s", "--storage", url]
        assert nursery.run(command).returncode == -signal.SIGKILL
        assert [segment.state for segment in store.segments("s")] == ["done"]
        assert len(store.claims()) == 1
        assert cli("worker", "--study", "s", "--storage", url)[0] == 0
        assert store.claims() == []
