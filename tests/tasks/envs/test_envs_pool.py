"""EnvPool: seeds, ends, final observations, exactness. `make envpool` runs these, as its packages are large."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, ClassVar

import numpy as np
import pytest
from rekindle import DQN, PPO
from rekindle.tasks.envs import EnvSpec, EnvSpecError, make_envs, spaces_of
from rekindle.tasks.envs.classic.dynamics import MODELS
from rekindle.tasks.testing import ExactnessSuite
from test_envs_gym import choose, run

pytestmark = pytest.mark.envpool
CARTPOLE = EnvSpec("envpool/CartPole-v1")
LIMIT = 12


class TestPPO(ExactnessSuite):
    task = PPO
    env = CARTPOLE
    hyperparameters: ClassVar = {
        "num_steps": 16,
        "num_envs": 3,
        "num_minibatches": 2,
        "epoch_steps": 96,
        "update_epochs": 4,
        "optimizer.lr": 0.03,
        "max_grad_norm": 0.1,
        "ent_coef": 0.1,
        "clip_coef": 0.1,
    }
    inert = frozenset({"model.std_init"})
    cohort_size = 3


class TestDQN(ExactnessSuite):
    task = DQN
    env = CARTPOLE
    hyperparameters: ClassVar = {
        "epoch_steps": 128,
        "learning_starts": 40,
        "batch_size": 32,
        "buffer_size": 200,
        "num_envs": 3,
        "n_step": 3,
        "exploration.horizon": 600,
        "target_interval": 5,
        "optimizer.lr": 0.01,
        "max_grad_norm": 0.5,
        "tau": 0.5,
    }
    cohort_size = 3


def physics(obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """What follows by CartPole's equations, (N, 4)."""
    state, _, _ = MODELS["CartPole-v1"].step(np, tuple(obs.astype(np.float64).T), actions)
    return np.stack(MODELS["CartPole-v1"].observe(np, state), axis=-1)


def test_next_obs_is_the_true_final_observation_and_no_step_is_lost() -> None:
    # EnvPool resets one step late: its step after an end ignores the action and shows the new first observation.
    envs = make_envs(EnvSpec(CARTPOLE.id, max_episode_steps=LIMIT), [4], 8)
    lengths = np.zeros(8, int)
    ends: list[tuple[bool, bool]] = []
    for k in range(150):
        before, actions = envs.obs[0], choose(envs, k, [4])
        step = envs.step(actions)
        lengths += 1
        np.testing.assert_allclose(step.next_obs[0], physics(before, actions[0]), atol=1e-5)
        np.testing.assert_array_equal(step.reward, 1.0)
        fell = (np.abs(step.next_obs[0, :, 0]) > 2.4) | (np.abs(step.next_obs[0, :, 2]) > 12 * 2 * np.pi / 360)
        np.testing.assert_array_equal(step.terminated[0] | step.truncated[0], fell | (lengths == LIMIT))
        np.testing.assert_array_equal(step.terminated[0] & ~fell, False)
        np.testing.assert_array_equal(step.truncated[0] & (lengths < LIMIT), False)
        ended = step.terminated[0] | step.truncated[0]
        ends += zip(step.terminated[0][ended], step.truncated[0][ended], strict=True)
        assert (np.abs(envs.obs[0][ended]) <= 0.05).all()  # CartPole begins there
        np.testing.assert_array_equal(envs.obs[0][~ended], step.next_obs[0][~ended])
        lengths[ended] = 0
    assert {(True, False), (False, True)} <= set(ends)
    tally = envs.take_episodes()
    assert (tally.count[0], tally.length_sum[0]) == (len(ends), 150 * 8 - lengths.sum())
    envs.close()


@pytest.mark.parametrize("id", ["CartPole-v1", "LunarLander-v3", "Hopper-v5", "FrozenLake-v1", "Pong-v5"])
def test_pools_are_found_to_be_exact(id: str) -> None:
    envs = make_envs(EnvSpec(f"envpool/{id}"), [1], 2)
    assert (envs.mode, envs.exact) == ("restart", True), envs.reason
    assert envs.obs_kind == ("image" if id == "Pong-v5" else "vector")
    before = envs.obs
    envs.step(choose(envs, 0, [1]))
    envs.begin_epoch(np.array([1]))
    if id not in ("FrozenLake-v1", "Pong-v5"):  # whose episodes begin alike
        assert not np.array_equal(envs.obs, before)
    envs.begin_epoch(np.array([0]))
    np.testing.assert_array_equal(envs.obs, before)
    envs.close()


def test_neither_neighbours_nor_threads_change_a_member() -> None:
    together = make_envs("envpool/LunarLander-v3", [5, 6, 7], 3, processes=2)
    alone = make_envs("envpool/LunarLander-v3", [6], 3)
    assert run(together, [5, 6, 7], 0, 120)[1] == run(alone, [6], 0, 120)[0]
    assert together.take_episodes().count[1] == alone.take_episodes().count[0] > 0
    for envs in (together, alone):
        envs.begin_epoch(np.full(envs.num_members, 3))
    assert run(together, [5, 6, 7], 120, 150)[1] == run(alone, [6], 120, 150)[0]
    other = make_envs("envpool/LunarLander-v3", [6], 3, purpose="evaluation")
    assert not np.array_equal(other.obs, make_envs("envpool/LunarLander-v3", [6], 3).obs)


# Runs in a new process that is killed while it trains the second epoch.
KILLED = """
import os, signal, sys
from rekindle import PPO, Store
with Store(sys.argv[1]) as store:
    task = PPO("envpool/CartPole-v1", storage=store, env_processes=2).init(num_envs=2, num_steps=32, epoch_steps=64)
    task.fit(3, lambda event: os.kill(os.getpid(), signal.SIGKILL) if event.epoch == 2 else None)
"""


def test_a_killed_process_is_carried_on_from(tmp_path: Any) -> None:
    from rekindle import Store

    url = f"sqlite:///{tmp_path}/s.db"
    assert subprocess.run([sys.executable, "-c", KILLED, url], check=False).returncode == -9
    small = {"num_envs": 2, "num_steps": 32, "epoch_steps": 64}
    whole = PPO("envpool/CartPole-v1").init(**small)
    whole.fit(3)
    with Store(url) as store:
        task = PPO("envpool/CartPole-v1", storage=store).init(**small)
        task.fit(3)
        assert task.resumed
        assert task.digest == whole.digest
        task.finish()


def test_arguments_reach_envpool_and_its_own_are_refused() -> None:
    output = spaces_of(EnvSpec("envpool/Pong-v5", {"stack_num": 2})).observation
    assert output.shape == (2, 84, 84)
    for spec, words in (
        (EnvSpec("envpool/CartPole-v1", {"num_envs": 3}), "kwargs must leave num_envs to the task"),
        (EnvSpec("envpool/CartPole-v1", {"gravitas": 3}), "cannot be made with kwargs"),
        (EnvSpec("envpool/CartPole-v1", wrappers=[{"entry_point": "own_envs:Doubled"}]), "takes no wrappers"),
        (EnvSpec("envpool/Cartpole-v1"), "did you mean envpool/CartPole-v1"),
    ):
        with pytest.raises(EnvSpecError, match=words):
            spaces_of(spec)


def test_the_command_line_takes_it(tmp_path: Any) -> None:
    command = [
        sys.executable,
        "-m",
        "rekindle.studies.cli",
        "train",
        "ppo",
        "envpool/CartPole-v1",
        "--epochs",
        "1",
        "--set=epoch_steps=1024",
        "--json",
        "--storage",
        f"sqlite:///{tmp_path}/s.db",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["epochs"] == 1
