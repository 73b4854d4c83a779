"""Environments in separate processes: the same bits with any number of processes, even if some are killed."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import hanging
import numpy as np
import nursery
import psutil
import pytest
import tiny
from rekindle import DQN, PPO, Cohort, Store
from rekindle.spaces import unflatten
from rekindle.studies.cli import main
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.envs import EnvSpec, EnvSpecError, make_envs
from rekindle.tasks.envs.gym.envs import GymEnvs
from rekindle.tasks.envs.processes.parent import EnvProcessFailed, Processes
from rekindle.tasks.envs.selftest.attempts import self_test
from rekindle.tasks.errors import Hung, StateMismatch
from rekindle.tasks.runtime import progress
from test_envs_gym import SPECS as ALL
from test_envs_gym import SUPPORT, choose, run

CODED = {
    "image": EnvSpec("own_envs:ImageWalk-v0"),
    "hybrid": EnvSpec("own_envs:HybridWalk-v0"),
    "lessons": ALL["lessons"][0],
}
SPECS = {
    **CODED,
    "replay": EnvSpec("LunarLander-v3"),
    "renewed": EnvSpec("BipedalWalker-v3"),
    "snapshot": EnvSpec("InvertedPendulum-v5"),
    "restart": EnvSpec("own_envs:Curriculum-v0"),
    "dict": EnvSpec("own_envs:DictWalk-v0"),
}
SEEDS = [3, 8]
SMALL: dict[str, Any] = unflatten({**tiny.ROLLOUTS, "update_epochs": 1, "epoch_steps": 48, "model.width": 8})


@pytest.fixture(autouse=True)
def own_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


def children() -> list[psutil.Process]:
    """The child processes but the watcher, of which each process has one until its end."""
    processes = psutil.Process().children(recursive=True)
    return [child for child in processes if child.status() == psutil.STATUS_ZOMBIE or not _is_watcher(child)]


def _is_watcher(process: psutil.Process) -> bool:
    return any(word.endswith("watcher.py") for word in process.cmdline())


@pytest.fixture
def nobody_stays() -> Iterator[None]:
    """Fails if a child process outlives the test, dead or alive."""
    nursery.start()  # which is one itself
    before = {child.pid for child in children()}
    yield
    gc.collect()
    assert [child for child in children() if child.pid not in before] == []


def make(name: str, processes: int, seeds: list[int] = SEEDS) -> GymEnvs:
    envs = make_envs(SPECS[name], seeds, 3, processes=processes)
    assert isinstance(envs, GymEnvs)
    return envs


def pids(envs: GymEnvs) -> list[int]:
    assert isinstance(envs.backend, Processes)
    return [child.process.pid for child in envs.backend.children]


def test_steps_in_other_processes_are_progress_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = make_envs(SPECS["replay"], [0], 2, processes=2)
    words = [0, 0]
    monkeypatch.setattr(progress, "_words", words)
    for _ in range(10):
        envs.step(np.zeros((1, 2), np.int64))
    envs.close()
    assert words[0] >= 10


@pytest.mark.usefixtures("nobody_stays")
@pytest.mark.parametrize("name", ["lessons", *(pytest.param(x, marks=pytest.mark.slow) for x in ("image", "hybrid"))])
def test_the_number_of_processes_changes_nothing(name: str) -> None:
    seen = []
    for processes in (0, 2):  # a task's digests, for more numbers, are further below
        envs = make(name, processes)
        digests = [run(envs, SEEDS, 0, 40)]
        saved = [envs.member_state(i) for i in range(2)]
        envs.begin_epoch(np.array([1, 1]))
        digests.append(run(envs, SEEDS, 40, 60))
        for i in range(2):
            envs.load_member(i, saved[i])
        envs.begin_epoch(np.array([1, 1]))
        digests.append(run(envs, SEEDS, 40, 60))
        assert digests[2] == digests[1]
        envs.reset()
        digests.append(run(envs, SEEDS, 0, 40))
        assert digests[3] == digests[0]
        seen.append(digests)
        envs.close()
    assert seen[1] == seen[0]


@pytest.mark.usefixtures("nobody_stays")
@pytest.mark.parametrize(
    "name", ["dict", "restart", "snapshot", *(pytest.param(x, marks=pytest.mark.slow) for x in ("replay", "renewed"))]
)
def test_a_killed_process_is_replaced_and_its_environments_come_back(name: str) -> None:
    whole, envs = make(name, 0), make(name, 2)
    run(whole, SEEDS, 0, 30)
    saved = [whole.member_state(i) for i in range(2)]
    whole.begin_epoch(np.array([1, 1]))
    expected = run(whole, SEEDS, 30, 60)

    first = pids(envs)
    run(envs, SEEDS, 0, 12)
    os.kill(pids(envs)[1], signal.SIGKILL)
    run(envs, SEEDS, 12, 30)
    assert [mine == other for mine, other in zip(first, pids(envs), strict=True)] == [True, False]
    for i in range(2):
        assert difference(envs.member_state(i), saved[i]) == []
        envs.load_member(i, saved[i])
    envs.begin_epoch(np.array([1, 1]))
    os.kill(pids(envs)[0], signal.SIGKILL)  # nothing but a loaded state leads to where they are
    assert run(envs, SEEDS, 30, 60) == expected
    os.kill(pids(envs)[0], signal.SIGKILL)
    assert difference(envs.member_state(0), whole.member_state(0)) == []  # asked while it is dead
    whole.close()
    envs.close()


@pytest.mark.usefixtures("nobody_stays")
@pytest.mark.parametrize("processes", [0, 2])
def test_an_environment_of_single_episodes_is_not_stepped_after_its_first(processes: int) -> None:
    plays_on = make("replay", 0)
    once = make_envs(SPECS["replay"], SEEDS, 3, processes=processes, single_episodes=True)
    assert isinstance(once, GymEnvs)
    for _ in range(2):
        running, lengths = np.ones((2, 3), np.bool_), np.zeros((2, 3), np.int64)
        for k in range(1000):
            actions = choose(plays_on, k, SEEDS)
            expected, step = plays_on.step(actions), once.step(actions)
            for theirs, values in zip(expected, step, strict=True):
                assert np.array_equal(values[running], theirs[running])
            assert not step.reward[~running].any()
            assert not (step.terminated | step.truncated)[~running].any()
            if processes and k in (0, 40, 80):
                os.kill(pids(once)[k // 40 % 2], signal.SIGKILL)
            lengths += running
            running &= ~(step.terminated | step.truncated)
            if not running.any():
                break
        assert not running.any()
        assert lengths.min() < lengths.max()
        assert np.array_equal(once.elapsed.reshape(2, 3), lengths)
        for envs in (plays_on, once):
            envs.reset()
    for envs in (plays_on, once):
        envs.close()


def test_a_process_that_dies_again_and_again_is_given_up() -> None:
    envs = make_envs(EnvSpec("own_envs:Fragile-v0", {"home": os.getpid(), "how": "kill"}), [1], 2, processes=2)
    with pytest.raises(EnvProcessFailed, match=r"Fragile-v0: .* 3 in a row did so in the same step, .* by SIGKILL"):
        run(envs, [1], 0, 5)
    envs.close()


@pytest.mark.usefixtures("nobody_stays")
@pytest.mark.parametrize("error", ["ZeroDivisionError", "ConnectionResetError", "KeyboardInterrupt"])
def test_an_environments_error_is_raised_here_and_the_others_survive(error: str) -> None:
    envs = make_envs(EnvSpec("own_envs:Fragile-v0", {"home": os.getpid(), "how": error}), [1], 4, processes=3)
    for _ in range(2):
        with pytest.raises(EnvProcessFailed, match=f"raised {error}: too small a world") as caught:
            run(envs, [1], 0, 5)
        assert '("too small a world")' in "".join(caught.value.__notes__)
        envs.reset()
    before = pids(envs)
    run(envs, [1], 0, 2)
    assert pids(envs) == before
    envs.close()


def test_a_nondeterministic_environment_cannot_be_restored() -> None:
    envs = make_envs(EnvSpec("own_envs:Lottery-v0"), [1], 2, processes=1)
    run(envs, [1], 0, 3)
    assert isinstance(envs, GymEnvs)
    os.kill(pids(envs)[0], signal.SIGKILL)
    with pytest.raises(EnvProcessFailed, match=r"the same seeds and actions lead elsewhere .* last checkpoint"):
        run(envs, [1], 3, 4)
    envs.close()


def test_an_environment_that_only_this_program_knows_is_named() -> None:
    from own_envs import BoxWalk

    gym.register("OnlyHere-v0", BoxWalk, max_episode_steps=30)
    with pytest.raises(
        EnvSpecError, match=r"the environment's process reports: OnlyHere-v0 must be .* 'module:Name-v0'"
    ):
        make_envs(EnvSpec("OnlyHere-v0"), [1], 2, processes=1)
    del gym.registry["OnlyHere-v0"]


@pytest.mark.usefixtures("nobody_stays")
def test_processes_end_with_the_environments_and_ignore_what_is_meant_for_their_parent() -> None:
    envs = make("dict", 3)
    for pid in pids(envs):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    before = pids(envs)
    run(envs, SEEDS, 0, 3)
    assert pids(envs) == before
    assert all(os.getpgid(pid) != os.getpgid(0) for pid in before)  # Ctrl-C does not even reach them
    del envs


def test_a_copy_of_the_parent_leaves_them_alone() -> None:
    envs = make("dict", 2)
    before = pids(envs)
    child = os.fork()
    if child == 0:
        try:
            envs.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    run(envs, SEEDS, 0, 3)
    assert pids(envs) == before
    envs.close()


def test_an_environment_that_may_remember_is_led_back_through_all_episodes() -> None:
    # An environment that may remember is led back through all its episodes of the epoch.
    envs = make("restart", 1, [1])
    run(envs, [1], 0, 70)
    assert isinstance(envs.backend, Processes)
    assert all(len(past) > 1 for past in envs.backend.past)
    assert all(len(past) == 1 for past in make("dict", 1, [1]).backend.past)
    envs.close()


# --- tasks ---


def trained(env: str, processes: int, algorithm: Any = PPO, **hyperparameters: Any) -> list[str]:
    tasks = [algorithm(env, seed=seed, env_processes=processes).init(**hyperparameters) for seed in (1, 2)]
    Cohort(tasks).fit(2)
    return [task.digest for task in tasks]


@pytest.mark.usefixtures("nobody_stays")
def test_a_cohort_has_the_same_digests_with_any_number_of_processes() -> None:
    results = [trained("own_envs:DictWalk-v0", processes, **SMALL) for processes in (0, 2)]
    assert results[1] == results[0]


@pytest.mark.slow
def test_an_algorithm_with_a_memory_has_the_same_digests() -> None:
    small = {"num_envs": 2, "epoch_steps": 64, "learning_starts": 32, "batch_size": 32, "buffer_size": 100}
    assert trained("FrozenLake-v1", 2, DQN, **small) == trained("FrozenLake-v1", 0, DQN, **small)


def test_evaluation_uses_them_too_and_survives_being_interrupted() -> None:
    alone, task = (DQN("FrozenLake-v1", env_processes=processes).init() for processes in (0, 2))
    assert task.evaluate(3) == alone.evaluate(3)
    assert task.ref is not None
    play, calls = task.ref.learner.actor(3), iter(range(100))

    def interrupted(obs: np.ndarray) -> np.ndarray:
        if next(calls) == 2:
            raise KeyboardInterrupt
        return play(obs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task.ref.learner, "actor", lambda *_: interrupted)
        with pytest.raises(KeyboardInterrupt):
            task.evaluate(3)
    assert task.evaluate(3) == alone.evaluate(3)


def test_the_number_is_no_part_of_the_identity(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path}/s.db") as store:
        for processes, epochs in ((1, 1), (0, 2), (2, 3)):
            task = PPO("FrozenLake-v1", storage=store, env_processes=processes).init(**SMALL)
            assert task.epochs == epochs - 1
            task.fit(epochs)
            task.finish()
    whole = PPO("FrozenLake-v1").init(**SMALL)
    whole.fit(3)
    assert (whole.uid, whole.digest) == (task.uid, task.digest)


@pytest.mark.usefixtures("nobody_stays")
def test_the_processes_of_a_learner_end_when_its_last_task_leaves_it() -> None:
    gc.collect()  # what other tests have left
    before = len(children())
    one, two = (PPO("FrozenLake-v1", seed=seed, env_processes=1).init(**SMALL) for seed in (1, 2))

    def running() -> int:
        return len(children()) - before

    gc.disable()  # it would find learners late, and by chance
    try:
        Cohort([one, two]).fit(1)
        assert running() == 1
        states = [task.state_dict() for task in (one, two)]
        one.load_state_dict(states[0])
        assert running() == 2, "the other task still needs the processes of both"
        two.load_state_dict(states[1])
        assert running() == 2
        Cohort([one, two]).fit(2)
        assert running() == 1
        with pytest.raises(StateMismatch, match="unknown more"):
            one.load_state_dict({**states[0], "learner": {**states[0]["learner"], "more": 1}})
        one.set_device("cpu")
        assert running() == 1
        two.finish()
        assert running() == 0
        warm = PPO("FrozenLake-v1", warm_start=states[0]).init(**SMALL)
        assert running() == 0
        assert warm.load_report is not None
        one.fit(3)
        one.evaluate(2)
        assert running() == 2
        one.close()
        assert running() == 0
    finally:
        gc.enable()


@pytest.mark.parametrize("value", [-1, True, 1.5, "2"])
def test_a_number_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="env_processes must be an integer of at least 0"):
        PPO("CartPole-v1", env_processes=value)


TUNE = ["--trials", "1", "--workers", "1", "--study", "s"]


@pytest.mark.parametrize("command", [["train"], pytest.param(["tune", *TUNE], marks=pytest.mark.slow)], ids=" ".join)
def test_the_command_line_takes_the_number(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--set=num_envs=2", "--set=num_steps=32", "--set=num_minibatches=2", "--set=epoch_steps=64"]
    storage = ["--storage", f"sqlite:///{tmp_path}/2.db", "--json", "--env-processes", "2"]
    name, *more = command
    assert main([name, "ppo", "FrozenLake-v1", "--seed", "1", "--epochs", "1", *more, *settings, *storage]) == 0
    report = json.loads(capsys.readouterr().out)
    result = report.get("best", report)
    alone = PPO("FrozenLake-v1", seed=1).init(**unflatten(result["hyperparameters"]))
    alone.fit(1)
    assert result["digest"] == alone.digest
    with pytest.raises(SystemExit):
        main(["train", "ppo", "FrozenLake-v1", "--env-processes", "-1"])
    assert "--env-processes: must be a number of at least 0, but got '-1'" in capsys.readouterr().err


# Trains, says which processes step its environments, and kills itself with SIGKILL in the second epoch.
KILLED = """
import os, signal, sys
from rekindle import PPO, Store
import test_envs_processes as t

with Store(sys.argv[1]) as store:
    task = PPO("own_envs:DictWalk-v0", storage=store, env_processes=2).init(**t.SMALL)

    def at_epoch_end(event):
        if event.epoch == 2:
            print(*(child.pid for child in t.children()), flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    task.fit(3, at_epoch_end)
"""


@pytest.mark.slow
def test_a_parent_that_is_killed_takes_them_along_and_another_number_carries_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    folders = [SUPPORT, str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    killed = nursery.run([sys.executable, "-c", KILLED, url], env=environment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    started = [int(pid) for pid in killed.stdout.split()]
    assert len(started) == 2
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in started if psutil.pid_exists(pid)], timeout=300)
    assert not alive
    whole = PPO("own_envs:DictWalk-v0").init(**SMALL)
    whole.fit(3)
    with Store(url) as store:
        task = PPO("own_envs:DictWalk-v0", storage=store, env_processes=3).init(**SMALL)
        assert task.resumed
        task.fit(3)
        assert task.digest == whole.digest
        task.finish()


# An exception that nobody catches, environments that nobody closes: the interpreter ends, and so do they.
CARELESS = """
import psutil
from rekindle.tasks.envs import make_envs
envs = make_envs("FrozenLake-v1", [1], 4, processes=2)
print(*(child.pid for child in psutil.Process().children()), flush=True)
raise KeyError("careless")
"""


def test_no_process_stays_after_an_exception() -> None:
    ended = subprocess.run([sys.executable, "-W", "error", "-c", CARELESS], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "KeyError: 'careless'"
    assert not [pid for pid in map(int, ended.stdout.split()) if psutil.pid_exists(pid)]


def test_the_self_test_is_made_in_the_parent_alone() -> None:
    self_test.cache_clear()
    envs = make("dict", 2)
    assert self_test.cache_info().misses == 1
    assert envs.restore == self_test(SPECS["dict"])
    envs.close()


def test_actions_are_each_step_s_own() -> None:
    # They lie in shared memory, which the next step overwrites; what an environment kept must stay.
    envs = make("dict", 2)
    first = choose(envs, 0, SEEDS)
    envs.step(first)
    assert isinstance(envs.backend, Processes)
    kept = [past[-1].actions[0].copy() for past in envs.backend.past]
    envs.step(choose(envs, 1, SEEDS))
    assert all(
        np.array_equal(past[-1].actions[0], action) for past, action in zip(envs.backend.past, kept, strict=True)
    )
    envs.close()


@pytest.mark.usefixtures("nobody_stays")
def test_a_constructor_that_kills_its_process_is_named() -> None:
    spec = EnvSpec("own_envs:Fragile-v0", {"home": os.getpid(), "how": "die at birth"})
    with pytest.raises(EnvProcessFailed, match=r"Fragile-v0: .* 3 in a row did so while they made their environments"):
        make_envs(spec, [1], 2, processes=1)


@pytest.mark.parametrize("way", ["asleep", "in C"])
def test_an_environment_process_that_hangs_is_replaced(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nobody_stays: None
) -> None:
    spec, actions = EnvSpec("hanging:Hanging-v0"), np.zeros((2, 3), np.int64)

    def some_steps() -> Any:
        envs = make_envs(spec, SEEDS, 3, processes=1)
        results = [envs.step(actions) for _ in range(80)]
        envs.close()
        return results

    whole = some_steps()
    monkeypatch.setenv(hanging.VARIABLE, str(tmp_path))
    hanging.hang(tmp_path, way)
    with progress.watched(None):
        progress.set_limit(2)
        disturbed = some_steps()
    assert len([*tmp_path.glob("taken-*")]) == 1
    for result, other in zip(whole, disturbed, strict=True):
        assert [array.tobytes() for array in result] == [array.tobytes() for array in other]


def test_environment_processes_that_hang_again_and_again_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hanging.VARIABLE, str(tmp_path))
    hanging.hang(tmp_path, "asleep", "asleep", after=0)
    envs = make_envs(EnvSpec("hanging:Hanging-v0"), SEEDS, 3, processes=1)
    expected = (
        r"hanging:Hanging-v0: an environment process that hangs is replaced, but 2 in a row made no step for 2 s "
        r"\(--stuck\); does the simulator wait for something\?"
    )
    with progress.watched(None):
        progress.set_limit(2)
        with pytest.raises(Hung, match=expected):
            envs.step(np.zeros((2, 3), np.int64))
    envs.close()
