"""Environments whose simulator is a process: none stays behind, whatever ends; one port is enough."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import nursery
import psutil
import pytest
from rekindle import PPO, SAC, Cohort
from rekindle.tasks.envs import EnvSpec, EnvSpecError, make_envs
from rekindle.tasks.envs.base import failures
from rekindle.tasks.envs.gym.envs import GymEnvs
from rekindle.tasks.envs.processes.parent import Processes
from rekindle.tasks.evaluation.measuring import measure_episodes
from rekindle.tasks.runtime import progress, watcher
from rekindle.tasks.runtime.finalizers import finalize_collected
from simulators import VARIABLE
from test_envs_gym import SUPPORT, run

STACK = {"entry_point": "gymnasium.wrappers:FrameStackObservation"}
PATIENCE = 60.0  # seconds
SMALL: dict[str, Any] = {"num_steps": 16, "num_minibatches": 2, "update_epochs": 1, "epoch_steps": 32}
TINY = {**SMALL, "num_envs": 2}
SETS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """A function that returns the pids of all simulators that were started."""
    monkeypatch.syspath_prepend(SUPPORT)
    file = tmp_path / "pids"
    monkeypatch.setenv(VARIABLE, str(file))
    return lambda: list(map(int, file.read_text().split())) if file.exists() else []


def alive(pids: list[int]) -> list[int]:
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return [process.pid for process in processes if process.status() != psutil.STATUS_ZOMBIE]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.02)


def test_simulators_end_with_their_task(started: Callable[[], list[int]]) -> None:
    task = PPO("simulators:Simulated-v0").init(**TINY)
    task.fit(1)
    value = task.evaluate(5)
    assert len(alive(started())) == 2 + 5
    task.close()
    assert not alive(started())
    assert task.evaluate(5) == value, "a closed task can be used further"
    task.finish()
    assert not alive(started())
    task.fit(2)
    del task
    gc.collect()
    finalize_collected()
    assert not alive(started())


def test_a_task_that_is_closed_in_between_has_the_same_digest(started: Callable[[], list[int]]) -> None:
    whole = PPO("simulators:Simulated-v0", seed=3).init(**TINY)
    whole.fit(3)
    task = PPO("simulators:Simulated-v0", seed=3).init(**TINY)
    for epochs in (1, 2, 3):
        task.fit(epochs)
        task.close()
    assert task.digest == whole.digest
    task.finish()
    whole.finish()


@pytest.mark.parametrize("env", ["InvertedPendulum-v5", "LunarLander-v3", "own_envs:Curriculum-v0"])
def test_environments_continue_after_they_were_closed(env: str, started: Callable[[], list[int]]) -> None:
    whole, envs = (make_envs(env, [3, 8], 2) for _ in range(2))
    run(whole, [3, 8], 0, 12), run(envs, [3, 8], 0, 12)
    envs.close()
    for i in range(2):
        assert str(envs.member_state(i)) == str(whole.member_state(i))
    for group in (whole, envs):
        group.begin_epoch(np.array([1, 1]))
    assert run(envs, [3, 8], 12, 30) == run(whole, [3, 8], 12, 30)
    envs.close()
    whole.close()


def test_environments_that_fail_to_be_made_leave_no_simulator(started: Callable[[], list[int]]) -> None:
    wrapped = {
        "id": "simulators:Simulated-v0",
        "wrappers": [{"entry_point": "gymnasium.wrappers:FrameStackObservation"}],
    }
    with pytest.raises(EnvSpecError, match="stack_size"):
        make_envs(wrapped, [1], 2)
    assert started()
    assert not alive(started())


@pytest.mark.parametrize("kwargs", [{}, {"session": True}])
@pytest.mark.parametrize("processes", [0, 2])
def test_the_command_line_leaves_no_simulator(
    kwargs: dict[str, Any], processes: int, started: Callable[[], list[int]], tmp_path: Path
) -> None:
    from rekindle.studies.cli import main

    env = EnvSpec("simulators:Simulated-v0", kwargs).canonical
    words = ["train", "ppo", env, "--epochs", "1", "--env-processes", str(processes), *SETS]
    assert main([*words, "--storage", f"sqlite:///{tmp_path}/s.db"]) == 0
    assert started()
    assert not alive(started())


@pytest.mark.parametrize("command", ["train", pytest.param("tune", marks=pytest.mark.slow)])
def test_the_command_line_leaves_no_fork(command: str, started: Callable[[], list[int]], tmp_path: Path) -> None:
    words = [command, "ppo", "simulators:Forking-v0", "--epochs", "1", *SETS, "--eval-episodes", "1"]
    more = ["--trials", "2", "--workers", "1"] if command == "tune" else []
    run_command = [sys.executable, "-c", TRAIN, *words, *more, "--storage", f"sqlite:///{tmp_path}/s.db"]
    environment = {**os.environ, "PYTHONPATH": SUPPORT}
    assert subprocess.run(run_command, env=environment, capture_output=True, check=False).returncode == 0
    assert len(started()) > 4
    assert not alive(started())


@pytest.mark.parametrize("env", ["faulty_envs:faults/Clings-v0", "vector/own_pools:Clings-v0"])
def test_a_close_that_never_returns_is_left_with_a_warning(env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "CLOSING", 0.3)

    def trained() -> Any:
        task = PPO(env).init(**TINY)
        task.fit(1)
        task.close()
        return task

    with pytest.warns(UserWarning, match=rf"{env}: its close\(\) must return, but did not in 0.3 s") as told:
        task = trained()
    assert len([warning for warning in told if "must return" in str(warning.message)]) == 1
    assert (task.epochs, task.inexact) == (1, [])


def test_an_environment_that_ends_the_process_in_training_is_told(tmp_path: Path) -> None:
    words = ["train", "ppo", "faulty_envs:faults/Quits-v0", "--epochs", "200", *SETS]
    command = [sys.executable, "-m", "rekindle.studies.cli", *words]
    environment = {**os.environ, "PYTHONPATH": SUPPORT}
    process = nursery.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    errors = process.communicate(timeout=PATIENCE)[1]
    assert process.returncode == 3, errors
    assert f"ended {watcher.TRAINING}: its code exits, or crashes in C, or something killed it; run the" in errors


def test_a_process_that_has_ended_is_not_waited_for() -> None:
    name = progress.new_name()
    with progress.marked(name):
        ended, running = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "600"])
    wait_until(lambda: psutil.Process(ended.pid).status() == psutil.STATUS_ZOMBIE)  # since nobody has asked for its end
    assert watcher.started_by(name) == {running.pid}
    running.kill()
    running.wait()
    ended.wait()


TRAIN = """
import sys
from rekindle.studies.cli import main
sys.exit(main(sys.argv[1:]))
"""


FORKING, SIMULATED = EnvSpec("simulators:Forking-v0"), EnvSpec("simulators:Simulated-v0", {"session": True})


@pytest.mark.parametrize(
    ("spec", "processes"),
    [
        (SIMULATED, "0"),
        (FORKING, "0"),
        pytest.param(SIMULATED, "2", marks=pytest.mark.slow),
        pytest.param(FORKING, "2", marks=pytest.mark.slow),
    ],
)
def test_simulators_end_with_a_process_that_is_killed(
    spec: EnvSpec, processes: str, started: Callable[[], list[int]], tmp_path: Path
) -> None:
    environment = {**os.environ, "PYTHONPATH": SUPPORT}
    env = spec.canonical
    words = ["train", "ppo", env, "--epochs", "1000000", *SETS, "--env-processes", processes]
    command = [sys.executable, "-c", TRAIN, *words, "--storage", f"sqlite:///{tmp_path}/s.db"]
    with nursery.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        for line in process.stderr:  # until it trains
            if b"epoch 2" in line:
                break
        assert alive(started())
        process.kill()
    wait_until(lambda: not alive(started()))


PROGRAM = """
import json, subprocess, sys
from rekindle import PPO
values = dict(num_steps=16, num_minibatches=2, update_epochs=1, epoch_steps=32, num_envs=2)
task = PPO(json.loads(sys.argv[1]), env_processes=int(sys.argv[2])).init(**values)
task.fit(1)
print(subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL).pid, flush=True)
task.fit(1_000_000)
"""


@pytest.mark.parametrize(("spec", "processes"), [(FORKING, "0"), pytest.param(SIMULATED, "2", marks=pytest.mark.slow)])
def test_simulators_end_with_a_program_that_is_killed_and_the_program_s_processes_do_not(
    spec: EnvSpec, processes: str, started: Callable[[], list[int]]
) -> None:
    command = [sys.executable, "-c", PROGRAM, spec.canonical, processes]
    with nursery.Popen(command, env={**os.environ, "PYTHONPATH": SUPPORT}, stdout=subprocess.PIPE) as process:
        child = int(process.stdout.readline())
        assert alive(started())
        process.kill()
    wait_until(lambda: not alive(started()))
    assert alive([child])
    os.kill(child, signal.SIGKILL)


def test_simulators_of_an_environment_process_that_is_killed_end(started: Callable[[], list[int]]) -> None:
    envs = make_envs(EnvSpec("simulators:Simulated-v0", {"session": True}), [1], 2, processes=1)
    assert isinstance(envs, GymEnvs)
    assert isinstance(envs.backend, Processes)
    before = alive(started())
    [child] = envs.backend.children
    os.kill(child.process.pid, signal.SIGKILL)
    run(envs, [1], 0, 3)
    assert len(before) == 2
    assert not alive(before)
    assert len(alive(started())) == 2
    envs.close()
    assert not alive(started())


def test_simulators_have_the_usual_signal_handlers(started: Callable[[], list[int]]) -> None:
    envs = make_envs("simulators:Simulated-v0", [1], 1, processes=1)
    [pid] = alive(started())
    ignored = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigIgn"))
    assert not int(ignored.split()[1], 16) & (1 << signal.SIGTERM - 1 | 1 << signal.SIGINT - 1)
    envs.close()


def port() -> int:
    """Return a port that is free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("named", [False, True])
def test_a_simulator_with_one_port_is_trained_and_evaluated(named: bool, started: Callable[[], list[int]]) -> None:
    spec = EnvSpec("simulators:OnePort-v0", {"port": port()}, single_instance=named)
    tasks = [PPO(spec, seed=seed).init(**SMALL, num_envs=1) for seed in (1, 2)]
    Cohort(tasks).fit(1)
    returns = tasks[0].returns(3)
    assert len(alive(started())) == 1
    Cohort(tasks).fit(2)
    alone = PPO(spec, seed=1).init(**SMALL, num_envs=1)
    alone.fit(2)
    plain = PPO(EnvSpec("simulators:Simulated-v0"), seed=1).init(**SMALL, num_envs=1)
    plain.fit(1)
    assert returns == plain.returns(3), "episodes played one after another are those played side by side"
    assert tasks[0].digest == alone.digest, "an evaluation in between changes nothing"
    for task in (*tasks, alone, plain):
        task.finish()
    assert not alive(started())


def test_a_simulator_with_one_port_may_have_drawn_arguments(started: Callable[[], list[int]]) -> None:
    drawn = {"kwargs.port": {"choice": [port()]}}
    returns = []
    for named in (False, True):
        spec = EnvSpec("simulators:OnePort-v0", {"port": port()}, parameters=drawn, single_instance=named)
        task = PPO(spec, seed=1).init(**SMALL, num_envs=1)
        task.fit(1)
        returns.append(task.metrics["episode_return"])
        task.finish()
    assert returns[0] == returns[1], "the self-test finds that there is one at most"
    assert not alive(started())


def test_more_than_one_environment_of_a_simulator_with_one_port_is_refused(started: Callable[[], list[int]]) -> None:
    spec = EnvSpec("simulators:OnePort-v0", {"port": port()})
    with pytest.raises(EnvSpecError, match=r"allows one instance at a time, but 1 x 2 are needed; set num_envs=1"):
        make_envs(spec, [1], 2)
    assert not alive(started())


@pytest.mark.parametrize("task", [PPO, SAC])
def test_the_number_of_environments_of_an_evaluation_changes_nothing(task: Any) -> None:
    made = task("Pusher-v5", seed=1).init() if task is PPO else task("InvertedPendulum-v5", seed=1).init()
    learner, _ = made.member_ref()
    for deterministic in (True, False):
        seen = []
        for count in (32, 3, 1):
            learner.eval_envs = count
            seen.append(measure_episodes(learner, 7, deterministic).returns.tolist())
        assert seen[1] == seen[2] == seen[0]
    made.finish()
