"""Orion's storage with owners: hunts of the released Orion with killed and paused workers."""

from __future__ import annotations

import copy
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import nursery
import orion.core.cli
import pytest
from hunting import FORK, database_of, experiment_of, orion_says, run_killed
from orion.client import build_experiment
from orion.client.experiment import ExperimentClient
from orion.core.io.database import DatabaseError, DuplicateKeyError
from orion.core.utils.exceptions import WaitingForTrials
from orion.core.worker.trial import Trial
from orion.storage.base import FailedUpdate, LockAcquisitionTimeout, setup_storage
from rekindle.studies.orion.algorithm_state import UnreadableState, dump_state, load_state
from rekindle.studies.orion.db import RekindleSQL
from rekindle.studies.orion.lock import AlgorithmLockLost
from rekindle.studies.orion.storage import RekindleStorage
from rekindle.studies.orion.trial_rows import note_failure
from studying import sqlite_first

OPEN: list[RekindleStorage] = []  # to be closed after each test
ELSEWHERE = "far.away:boot:1:1#0"  # the token of a process on another machine
REALS = {"x": "uniform(0, 1, precision=9)", "y": "loguniform(1e-3, 1.0)"}
RUNGS = {**REALS, "epochs": "fidelity(1, 4, 2)"}
ALGORITHMS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "random": ({"random": {"seed": 1}}, REALS),
    "tpe": ({"tpe": {"seed": 1, "n_initial_points": 4}}, REALS),
    "asha": ({"asha": {"seed": 1}}, RUNGS),
    "hyperband": ({"hyperband": {"seed": 1, "repetitions": 1}}, RUNGS),
    "evolutiones": ({"evolutiones": {"seed": 1, "nums_population": 4}}, RUNGS),
    "pbt": ({"pbt": {"seed": 1, "population_size": 5}}, RUNGS),
    "gridsearch": ({"gridsearch": {"n_values": 3}}, REALS),
}


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A worker that gives no sign of life for five seconds has lost its trial; all workers use one directory."""
    monkeypatch.setenv("ORION_HEARTBEAT", "1")  # Orion reads these where nothing else is configured
    monkeypatch.setenv("ORION_WORKING_DIR", str(tmp_path / "trials"))
    yield
    while OPEN:
        storage = OPEN.pop()
        storage.leased_rows.rows().clear()
        database_of(storage).close_connection()


class Ahead(datetime):
    """The clock of a machine whose time is wrong by an hour."""

    @classmethod
    def utcnow(cls) -> datetime:
        return datetime.utcnow() + timedelta(hours=1)


def config(url: str, **options: Any) -> dict[str, Any]:
    return {
        "type": "rekindlestorage",
        "database": {"type": "rekindlesql", "host": url},
        "lock_seconds": 10.0,
        **options,
    }


def client(url: str, name: str = "random", max_trials: int = 10, **options: Any) -> ExperimentClient:
    algorithm, space = copy.deepcopy(ALGORITHMS[name])
    storage = config(url, **options)
    worker = build_experiment(name, space=space, algorithm=algorithm, max_trials=max_trials, storage=storage)
    OPEN.append(worker.storage)
    return worker


def objective(x: float, y: float, epochs: float = 1) -> list[dict[str, Any]]:
    return [{"name": "loss", "type": "objective", "value": x * y / epochs}]


def hunt(worker: ExperimentClient, function: Callable[..., Any] = objective, **options: Any) -> None:
    with worker.tmp_executor("singleexecutor"):
        worker.workon(function, idle_timeout=600, **options)


def change(storage: RekindleStorage, collection: str, **data: Any) -> None:
    """What another machine's worker might have written."""
    assert database_of(storage).write(collection, data, {}) > 0


# Whose trial it is


@sqlite_first
def test_a_trial_whose_program_was_killed_is_not_broken_and_one_that_failed_is(url: str) -> None:
    worker = client(url)

    def end(trial: Trial, failed: bool = False) -> str:
        if failed:
            note_failure(url, worker.id, trial.id)  # as `rekindle train` does, unless it is killed
        worker.release(trial, status="broken")  # as Orion does when a program's exit status is not 0
        return str(worker.get_trial(trial).status)

    assert end(worker.suggest()) == "broken"  # a function of Python's, which raised
    change(worker.storage, "experiments", metadata={**worker.metadata, "user_args": ["/bin/rekindle", "train", "ppo"]})
    assert end(worker.suggest(), failed=True) == "broken"
    seen = []
    for _ in range(5):
        trial = worker.suggest()
        seen.append((trial.id, end(trial)))
    assert seen == [(trial.id, "interrupted")] * 4 + [(trial.id, "broken")]


def test_a_result_of_a_trial_that_was_given_to_another_is_refused(url: str) -> None:
    late, other = client(url), client(url)
    trial = late.suggest()
    change(late.storage, "trials", worker=ELSEWHERE, heartbeat=datetime(2020, 1, 1))  # as if paused for long elsewhere
    trial.worker = ELSEWHERE
    [lost] = experiment_of(other).fetch_lost_trials()
    assert lost.id == trial.id
    taken = experiment_of(other).reserve_trial()
    assert taken.id == trial.id
    with pytest.raises(RuntimeError, match="has been lost"):
        late.observe(trial, objective(0.5, 0.5))
    other._maintain_reservation(taken)
    other.observe(taken, objective(0.25, 1.0))
    [row] = other.fetch_trials()
    assert (row.status, row.objective.value, row.worker) == ("completed", 0.25, taken.worker)


def test_a_trial_that_was_lost_is_neither_released_nor_kept_alive_by_its_old_worker(url: str) -> None:
    storage, experiment = (worker := client(url)).storage, experiment_of(worker)
    trial = worker.suggest()
    old = Trial(**trial.to_dict())
    change(storage, "trials", worker=ELSEWHERE)
    assert storage.update_heartbeat(storage.get_trial(old)) == 0, "it now belongs to another"
    assert storage.update_heartbeat(old) == 0, "it is no longer this worker's"
    for status in ("completed", "interrupted", "broken"):
        with pytest.raises(FailedUpdate, match="another worker has it"):
            storage.set_trial_status(old, status, was="reserved")
    with pytest.raises(FailedUpdate, match="released, given to another worker, or deleted"):
        storage.push_trial_results(old)
    assert experiment.fetch_trials_by_status("reserved") == [old]
    worker._release_reservation(trial)


RAISES = """
import sys
from orion.client import build_experiment
from orion.core.worker.trial_pacemaker import TrialPacemaker

TrialPacemaker.__init__.__defaults__ = (0.1,)  # seconds between two signs of life; Orion has 60
client = build_experiment("e", space={"x": "uniform(0, 1)"}, storage={
    "type": "rekindlestorage", "database": {"type": "rekindlesql", "host": sys.argv[1]}
})
trial = client.suggest()
raise ValueError("a mistake of the user's")
"""


def test_a_program_that_fails_with_a_trial_in_hand_ends_and_another_gets_it(sqlite_url: str) -> None:
    program = nursery.Popen([sys.executable, "-c", RAISES, sqlite_url], stderr=subprocess.PIPE, text=True)
    assert "a mistake of the user's" in program.communicate(timeout=120)[1]  # Orion's thread would keep it for ever
    assert program.returncode == 1
    other = build_experiment("e", storage=config(sqlite_url))
    OPEN.append(other.storage)
    [lost] = other.fetch_trials()
    assert lost.status == "reserved"
    assert other.suggest().id == lost.id


def test_a_worker_that_shows_life_in_time_keeps_its_trial(url: str) -> None:
    storage = (worker := client(url)).storage
    trial = worker.suggest()
    change(storage, "trials", worker=ELSEWHERE, heartbeat=datetime(2020, 1, 1))
    [lost] = storage.fetch_lost_trials(experiment_of(worker))
    change(storage, "trials", heartbeat=database_of(storage).now())
    with pytest.raises(FailedUpdate):
        storage.set_trial_status(lost, "interrupted")
    assert storage.fetch_lost_trials(experiment_of(worker)) == []
    worker._release_reservation(trial)


def test_trials_are_kept_alive_at_the_pace_of_the_configuration(
    sqlite_url: str, wait_until: Callable[..., None]
) -> None:
    worker = client(sqlite_url)
    trial = worker.suggest()
    before = worker.get_trial(trial).heartbeat
    wait_until(lambda: worker.get_trial(trial).heartbeat > before)
    assert worker.storage.fetch_lost_trials(experiment_of(worker)) == []
    worker.release(trial)
    assert worker.storage.leased_rows.rows() == {}


def test_a_trial_that_is_reserved_by_name_gets_a_datetime_as_heartbeat(url: str) -> None:
    worker = client(url)
    trial = worker.insert({"x": 0.5, "y": 0.5})
    worker.reserve(trial)  # Orion's client gives the integer 120
    row = worker.get_trial(trial)
    assert (row.status, type(row.heartbeat), row.worker) == ("reserved", datetime, trial.worker)
    assert worker.storage.fetch_lost_trials(experiment_of(worker)) == []
    worker.observe(trial, objective(0.5, 0.5))
    assert worker.get_trial(trial).status == "completed"


def test_integers_that_orions_own_storage_left_as_heartbeats_do_no_harm(url: str) -> None:
    worker = client(url)
    trial = worker.suggest()
    change(worker.storage, "trials", heartbeat=120, worker=ELSEWHERE)
    assert worker.storage.fetch_lost_trials(experiment_of(worker)) == []
    change(worker.storage, "trials", start_time=datetime(2020, 1, 1))
    assert len(worker.storage.fetch_lost_trials(experiment_of(worker))) == 1
    worker._release_reservation(trial)


def test_the_clock_of_a_worker_does_not_count(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, wrong = client(url), client(url)
    trial = right.suggest()
    module = types.SimpleNamespace(datetime=Ahead, timedelta=timedelta)
    for name in ("orion.storage.legacy", "orion.core.worker.experiment"):
        monkeypatch.setattr(f"{name}.datetime", module)
    assert wrong.storage.fetch_lost_trials(experiment_of(wrong)) == []
    other = wrong.suggest()
    assert other.id != trial.id
    monkeypatch.undo()
    monkeypatch.setenv("ORION_HEARTBEAT", "1")
    assert right.storage.fetch_lost_trials(experiment_of(right)) == []
    for worker, reserved in ((right, trial), (wrong, other)):
        worker.release(reserved)


def _dies(url: str) -> None:
    """Is killed while it has a trial reserved, the algorithm locked, and a suggestion registered but not written."""
    worker = client(url, lock_seconds=1000)
    worker.insert({"x": 0.5, "y": 0.5}, reserve=True)
    with experiment_of(worker).acquire_algorithm_lock() as algorithm:
        experiment_of(worker).register_trial(algorithm.suggest(1)[0])
        os.kill(os.getpid(), signal.SIGKILL)


@sqlite_first
def test_leases_of_a_killed_local_process_are_free_at_once(url: str) -> None:
    worker = client(url)
    victim = FORK.Process(target=_dies, args=(url,))
    victim.start()
    victim.join()
    assert [t.status for t in worker.fetch_trials()] == ["reserved", "new"]
    assert worker.storage.get_algorithm_lock_info(uid=worker.id).locked == 1
    hunt(worker, max_trials=5)
    assert [t.status for t in worker.fetch_trials()] == ["completed"] * 5


# The lock on the algorithm


@pytest.mark.filterwarnings("ignore:The `profet` extras:RuntimeWarning")  # Orion's command line imports its benchmarks
def test_orion_db_release_frees_it_from_a_holder_that_wrote_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = client(url)
    for name, value in {"STORAGE_TYPE": "rekindlestorage", "DB_TYPE": "rekindlesql", "DB_ADDRESS": url}.items():
        monkeypatch.setenv(f"ORION_{name}", value)
    with worker.storage.acquire_algorithm_lock(uid=worker.id):
        assert orion.core.cli.main(["db", "release", "-f", worker.name]) == 0
        assert "Algorithm lock successfully released." in capsys.readouterr().out
        assert worker.storage.get_algorithm_lock_info(uid=worker.id).locked == 0
    with pytest.raises(AlgorithmLockLost), worker.storage.acquire_algorithm_lock(uid=worker.id) as held:  # noqa: PT012
        held.set_state({"lost": True})
        worker.storage.release_algorithm_lock(uid=worker.id)


def test_a_lock_whose_holder_shows_no_life_is_taken_over_and_its_late_state_dropped(url: str) -> None:
    paused, other = client(url), client(url)
    with pytest.raises(AlgorithmLockLost, match="given to another worker"):  # noqa: SIM117, PT012
        with paused.storage.acquire_algorithm_lock(uid=paused.id) as held:
            paused.storage.leased_rows.rows().clear()  # no more signs of life
            change(paused.storage, "algo", owner=ELSEWHERE)
            with (
                pytest.raises(LockAcquisitionTimeout, match=r"for 0\.2 s"),
                other.storage.acquire_algorithm_lock(uid=other.id, timeout=0.2),
            ):
                pass
            change(paused.storage, "algo", heartbeat=database_of(paused.storage).now() - timedelta(seconds=11))
            with other.storage.acquire_algorithm_lock(uid=other.id, timeout=60) as taken:
                taken.set_state({"who": "other"})
            held.set_state({"who": "paused"})
    info = other.storage.get_algorithm_lock_info(uid=other.id)
    assert (info.state, info.locked) == ({"who": "other"}, 0)


def test_a_lock_is_kept_for_as_long_as_its_holder_lives(
    url: str, monkeypatch: pytest.MonkeyPatch, wait_until: Callable[..., None]
) -> None:
    holder, other = client(url, lock_seconds=0.3), client(url, lock_seconds=60)
    with monkeypatch.context() as patch:  # the holder counts as a process elsewhere, whose lock only time ends
        patch.setattr("rekindle.studies.orion.lock.new_token", lambda: ELSEWHERE)
        holding = holder.storage.acquire_algorithm_lock(uid=holder.id)
        held = holding.__enter__()
    with ExitStack() as stack:
        stack.push(holding)
        long_ago = database_of(holder.storage).now() - timedelta(seconds=120)
        change(holder.storage, "algo", heartbeat=long_ago)
        wait_until(lambda: database_of(holder.storage).read("algo")[0]["heartbeat"] > long_ago)
        with pytest.raises(LockAcquisitionTimeout), other.storage.acquire_algorithm_lock(uid=other.id, timeout=0.2):
            pass
        held.set_state({"n": 1})
    assert other.storage.get_algorithm_lock_info(uid=other.id).state == {"n": 1}


def test_an_exception_leaves_the_state_as_it_was_and_frees_the_lock(url: str) -> None:
    storage = (worker := client(url)).storage
    for fault in (ValueError, KeyboardInterrupt):
        with pytest.raises(fault), storage.acquire_algorithm_lock(uid=worker.id) as held:  # noqa: PT012
            held.set_state({"half": "done"})
            raise fault
    with storage.acquire_algorithm_lock(uid=worker.id, timeout=60) as held:
        assert held.state is None
        assert storage.release_algorithm_lock(uid=worker.id) == 1, "orion db release says that it worked"
        assert storage.release_algorithm_lock(uid=worker.id) == 0


def test_no_crash_leaves_an_experiment_without_its_lock(url: str) -> None:
    storage = setup_storage(config(url))
    storage.create_experiment({"name": "a", "version": 1, "algorithm": {"random": {}}})
    with pytest.raises(DuplicateKeyError):
        storage.create_experiment({"name": "a", "version": 1})
    assert database_of(storage).count("algo") == database_of(storage).count("experiments") == 1
    assert storage.get_algorithm_lock_info(uid=1).configuration == {"random": {}}
    assert storage.get_algorithm_lock_info(uid=9) is None


# What is stored


class Evil:
    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, ("touch /tmp/was-run",)


def test_a_hostile_state_is_refused_and_not_run(url: str) -> None:
    worker = client(url)
    for hostile, said in [(pickle.dumps(Evil()), "names posix:system"), (b"\x80\x04junk", "damaged"), (b"", "damaged")]:
        change(worker.storage, "algo", state=hostile)
        with pytest.raises(DatabaseError, match=said):
            worker.suggest()
        assert worker.storage.get_trial(uid="x", experiment_uid=1) is None
    assert not os.path.exists("/tmp/was-run")
    assert database_of(worker.storage).read("algo")[0]["locked"] == 0


def test_a_class_of_a_users_algorithm_is_read_when_it_is_trusted() -> None:
    state = dump_state({"mine": FailedUpdate("x")})
    with pytest.raises(UnreadableState, match=r"'trusted': \['orion.storage.base:FailedUpdate'\]"):
        load_state(state)
    assert isinstance(load_state(state, ["orion.storage.base:FailedUpdate"])["mine"], FailedUpdate)


def test_the_storage_can_be_pickled_and_its_copy_holds_nothing(url: str) -> None:
    worker = client(url)
    trial = worker.suggest()
    twin = pickle.loads(pickle.dumps(worker.storage))
    assert (twin.exact, twin.lock_seconds, twin.leased_rows.rows()) == (True, 10.0, {})
    assert twin.get_trial(trial).worker == trial.worker
    worker.observe(trial, objective(0.1, 0.1))
    assert twin.count_completed_trials(experiment_of(worker)) == 1


def test_only_the_sql_database_will_do() -> None:
    with pytest.raises(DatabaseError, match="type rekindlesql, but got ephemeraldb"):
        setup_storage({"type": "rekindlestorage", "database": {"type": "ephemeraldb"}})


# Exactly so many trials


@sqlite_first
def test_no_more_trials_are_taken_than_are_wanted(url: str) -> None:
    workers = [client(url, max_trials=3) for _ in range(4)]
    trials = [worker.suggest() for worker in workers[:3]]
    with pytest.raises(WaitingForTrials, match="are being trained"):
        workers[3].suggest()
    workers[0].release(trials[0])
    assert workers[3].suggest().id == trials[0].id
    change(workers[0].storage, "trials", heartbeat=datetime(2020, 1, 1), worker=ELSEWHERE)
    assert workers[0].suggest().status == "reserved", "a place whose worker is silent is filled"


@sqlite_first
def test_an_algorithm_hears_of_results_whose_worker_died_before_it_told_it(url: str) -> None:
    dead, other = client(url, "hyperband"), client(url, "hyperband", max_trials=2)
    trial = dead.suggest()
    trial.results = [Trial.Result(name="loss", type="objective", value=0.5)]
    experiment_of(dead).update_completed_trial(trial)  # and not: dead._producer.observe(trial)
    dead._release_reservation(trial)
    dead.storage.leased_rows.rows().clear()
    change(dead.storage, "untold", worker=ELSEWHERE, heartbeat=datetime(2020, 1, 1))
    hunt(other)
    with experiment_of(other).acquire_algorithm_lock() as algorithm:
        assert algorithm.has_observed(trial)
    assert database_of(other.storage).read("untold") == []


def test_results_that_a_worker_could_not_observe_are_observed_by_others(url: str) -> None:
    worker, other = client(url), client(url)
    trial = worker.suggest()
    with other.storage.acquire_algorithm_lock(uid=other.id):
        trial.results = [Trial.Result(name="loss", type="objective", value=0.5)]
        experiment_of(worker).update_completed_trial(trial)
        worker._release_reservation(trial)
        assert [row[0] for row in worker.storage.leased_rows.rows().values()] == ["untold"]
        with pytest.raises(LockAcquisitionTimeout), experiment_of(worker).acquire_algorithm_lock(timeout=0.1):
            pass
    assert worker.storage.leased_rows.rows() == {}
    change(worker.storage, "untold", worker=ELSEWHERE, heartbeat=datetime(2020, 1, 1))
    with experiment_of(other).acquire_algorithm_lock() as algorithm:
        assert algorithm.has_observed(trial)
    assert database_of(other.storage).count("untold") == 0


# Hunts to the end


@pytest.mark.parametrize(
    ("name", "max_trials"),
    [
        *(("random", 2), ("gridsearch", 3)),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (("tpe", 6), ("asha", 5), ("hyperband", 5), ("evolutiones", 5))
        ),
        pytest.param("pbt", 6, marks=pytest.mark.slow),
    ],
)
def test_a_hunt_is_the_hunt_of_orions_own_storage(sqlite_url: str, name: str, max_trials: int) -> None:
    algorithm, space = copy.deepcopy(ALGORITHMS[name])
    storage = {"type": "legacy", "database": {"type": "EphemeralDB"}}
    theirs = build_experiment(name, space=space, algorithm=algorithm, max_trials=max_trials, storage=storage)
    ours = client(sqlite_url, name, max_trials)
    for experiment in (theirs, ours):
        hunt(experiment)
    seen = [
        [(t.params, t.objective.value) for t in experiment.fetch_trials_by_status("completed")]
        for experiment in (theirs, ours)
    ]
    assert seen[0] == seen[1]
    assert len(seen[1]) == max_trials
    state = dump_state(experiment_of(ours).algorithm.state_dict)
    assert dump_state(load_state(state)) == dump_state(pickle.loads(state))


def _slow(x: float, y: float, epochs: float = 1) -> list[dict[str, Any]]:
    time.sleep(random.uniform(0.0, 0.04))
    return objective(x, y, epochs)


def _work(url: str, name: str, max_trials: int) -> None:
    hunt(client(url, name, max_trials), _slow)


def run_workers(
    url: str, name: str, max_trials: int, count: int, kills: int, wait_until: Callable[..., None], seconds: float
) -> ExperimentClient:
    """Hunts with so many processes, some of which are killed, to the end."""
    watcher = client(url, name, max_trials)
    run_killed(
        partial(_work, url, name, max_trials),
        database_of(watcher.storage),
        max_trials,
        count,
        kills,
        wait_until,
        seconds,
    )
    return watcher


def check_end(watcher: ExperimentClient, max_trials: int) -> None:
    completed = watcher.fetch_trials_by_status("completed")
    assert len(completed) == max_trials
    assert {t.status for t in watcher.fetch_trials()} <= {"completed", "new"}
    assert all(t.objective is not None for t in completed)
    assert len({t.id for t in completed}) == max_trials
    with experiment_of(watcher).acquire_algorithm_lock(timeout=60):
        pass


@pytest.mark.slow
def test_processes_on_sqlite_end_with_the_exact_number_although_some_are_killed(
    sqlite_url: str, wait_until: Callable[..., None]
) -> None:
    check_end(run_workers(sqlite_url, "random", 4, 2, 1, wait_until, 900), 4)


def test_processes_on_postgresql_end_with_the_exact_number_although_some_are_killed(
    postgres_url: str, wait_until: Callable[..., None]
) -> None:
    check_end(run_workers(postgres_url, "tpe", 4, 2, 1, wait_until, 900), 4)


@pytest.mark.chaos
@pytest.mark.parametrize("name", ["random", "tpe", "asha", "hyperband"])
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_long_hunts_end_exactly_however_often_their_workers_are_killed(
    request: pytest.FixtureRequest, wait_until: Callable[..., None], database: str, name: str
) -> None:
    url = request.getfixturevalue({"sqlite": "sqlite_url", "postgresql": "postgres_url"}[database])
    trials, kills = {"random": (60, 12), "tpe": (40, 8), "asha": (30, 6), "hyperband": (7, 3)}[name]  # 7 are all of it
    watcher = run_workers(url, name, trials, 4 if database == "sqlite" else 8, kills, wait_until, 300)
    check_end(watcher, trials)


SCRIPT = """#!{python} -I
import json, os, sys
loss = float(sys.argv[sys.argv.index("-x") + 1]) ** 2
with open(os.environ["ORION_RESULTS_PATH"], "w") as file:  # what orion.client.report_objective does
    json.dump([dict(name="loss", type="objective", value=loss)], file)
"""


@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_orion_command_hunts_in_the_database_that_its_environment_names(
    sqlite_url: str, tmp_path: Path, real: bool
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    command = ["hunt", "-n", "shell", "--exp-max-trials", "1", str(script), "-x~uniform(0, 1)"]
    said = orion_says(command, sqlite_url, tmp_path, environment={"HOME": str(tmp_path)}, real=real)
    watcher = build_experiment("shell", storage=config(sqlite_url))
    assert [t.objective.value == t.params["/x"] ** 2 for t in watcher.fetch_trials()] == [True], said
    assert isinstance(watcher.storage, RekindleStorage)
    assert isinstance(database_of(watcher.storage), RekindleSQL)
    assert list(tmp_path.glob("**/*.pkl")) == []
