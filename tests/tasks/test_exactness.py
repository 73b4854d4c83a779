"""Every algorithm in every family of environments: alone, in a cohort, stopped, and killed, always with the same bits.

The suite of each algorithm tests more, in fewer environments. The pairs here that are not marked slow cover each
algorithm and each kind of space; `make slow` runs all pairs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import nursery
import pytest
import torch
from fakes import rollout_of
from rekindle import Cohort, EnvSpec
from rekindle.spaces import flatten, unflatten
from rekindle.tasks import load
from rekindle.tasks.checkpoint.state import difference, pack, unpack
from rekindle.tasks.signals.demonstrations import Demonstrations
from rekindle.tasks.task import Task
from support_path import SUPPORT

UNTIL = {"threshold": 1.0, "min_lesson_length": 4}
LESSONS = {
    "wind": {"gaussian": [0.5, 0.1]},
    "spread": {"lessons": [{"value": {"uniform": [0, i]}, "completion_criteria": UNTIL} for i in (1, 2, 3, 9)]},
}
INFO = {"cost": "mean", "right": "last", "count.steps": "max"}
DISCRETE = {
    "classic": EnvSpec("CartPole-v1"),
    "Box2D": EnvSpec("LunarLander-v3"),
    "toy text": EnvSpec("FrozenLake-v1"),
    "tuple": EnvSpec("Blackjack-v1"),
    "dict": EnvSpec("own_envs:DictWalk-v0"),
    "image": EnvSpec("own_envs:PictureWalk-v0"),
    "restart": EnvSpec("own_envs:Curriculum-v0"),
    "lessons": EnvSpec("own_envs:LessonWalk-v0", parameters=LESSONS),
    "info": EnvSpec("own_envs:Search-v0", parameters={"wind": 0.5}, info=INFO),
    "Atari": EnvSpec("ALE/Pong-v5", {"obs_type": "ram"}),
    "Atari image": EnvSpec("ALE/Pong-v5", {"obs_type": "grayscale", "repeat_action_probability": 0.0}),
    "Atari, vector": EnvSpec("vector/ALE/Pong-v5", {"img_height": 36, "img_width": 36, "stack_num": 2}),
}
CONTINUOUS = {
    "classic, Box": EnvSpec("Pendulum-v1"),
    "Box2D, Box": EnvSpec("LunarLander-v3", {"continuous": True}),
    "renewed": EnvSpec("BipedalWalker-v3"),
    "MuJoCo": EnvSpec("InvertedPendulum-v5"),
    "MuJoCo, replayed": EnvSpec("Ant-v5"),
    "integers": EnvSpec("own_envs:IntegerWalk-v0"),
    "wrapped": EnvSpec("Pendulum-v1", wrappers=[{"entry_point": "gymnasium.wrappers:NormalizeReward"}]),
}
SEVERAL = {"choices": EnvSpec("own_envs:GridWalk-v0"), "bits": EnvSpec("own_envs:BitsWalk-v0")}
HYBRID = {"hybrid": EnvSpec("own_envs:HybridWalk-v0"), "branches": EnvSpec("own_envs:BranchWalk-v0")}
RAINBOW = {"distribution": "categorical", "atoms": 11, "model.noisy": True, "model.dueling": True, "n_step": 3}
SHORTER = ("num_steps", "epoch_steps", "learning_starts", "batch_size")
TINY = {"tiny image": EnvSpec("own_envs:ImageWalk-v0")}  # too small for the default encoder
IMAGES = ("image", "tiny image", "tiny image, Box", "Atari image", "Atari, vector")
AGENTS = {"agents": EnvSpec("pettingzoo/hunt_env:Hunt", {"hunters": 3})}
GOALS = {"goals": EnvSpec("goal_envs:Rooms-v0"), "goals, Box": EnvSpec("goal_envs:Reach-v0")}
FAMILIES = {**DISCRETE, **CONTINUOUS, **SEVERAL, **HYBRID, **TINY, **GOALS}

ROLLOUTS: dict[str, Any] = {"num_steps": 16, "num_envs": 2, "epoch_steps": 64, "model.width": 16}
BEHAVIOURS = {
    "num_envs": 2,
    "epoch_steps": 64,
    "hunter.num_steps": 16,
    "hunter.num_minibatches": 2,
    "deer.algorithm": "a2c",
    "deer.num_steps": 8,
}
MINIBATCHES = {**ROLLOUTS, "num_minibatches": 2, "update_epochs": 2}
REPLAYS: dict[str, Any] = {
    "num_envs": 2,
    "epoch_steps": 64,
    "learning_starts": 32,
    "batch_size": 32,
    "buffer_size": 96,
    "model.width": 16,
}
SEQUENCES = {"batch_size": 16, "model.memory": "lstm", "model.sequence_length": 4, "model.burn_in": 2}
ACTORS = {**DISCRETE, **CONTINUOUS, **SEVERAL, **HYBRID}
# name: (the task, its hyperparameters, the families that it can act in)
ALGORITHMS: dict[str, tuple[str, dict[str, Any], dict[str, EnvSpec]]] = {
    "ppo": ("ppo", MINIBATCHES, ACTORS),
    "ppo2": ("ppo2", MINIBATCHES, ACTORS),
    "a2c": ("a2c", ROLLOUTS, ACTORS),
    "trpo": ("trpo", {**MINIBATCHES, "cg_steps": 3, "update_epochs": 2}, ACTORS),
    "ppo, lstm": ("ppo", {**MINIBATCHES, "model.memory": "lstm"}, ACTORS),
    "a2c, gru": ("a2c", {**ROLLOUTS, "model.memory": "gru"}, ACTORS),
    "ppo2, sde": ("ppo2", {**MINIBATCHES, "use_sde": True, "sde_sample_freq": 4}, CONTINUOUS),
    "svpg": ("svpg", {**ROLLOUTS, "num_particles": 2}, ACTORS),
    "svpg-ppo": ("svpg-ppo", {**MINIBATCHES, "num_particles": 2}, ACTORS),
    "svpg-ppo2": ("svpg-ppo2", {**MINIBATCHES, "num_particles": 2}, ACTORS),
    "behaviours": ("behaviours", BEHAVIOURS, AGENTS),
    "dqn": ("dqn", REPLAYS, DISCRETE),
    "dqn, n-step, prioritized": ("dqn", {**REPLAYS, "n_step": 3, "replay.name": "prioritized"}, DISCRETE),
    "pqn": ("pqn", {**ROLLOUTS, "num_minibatches": 2, "update_epochs": 2}, DISCRETE),
    "qrdqn": ("qrdqn", {**REPLAYS, "quantiles": 5}, DISCRETE),
    "dqn, Rainbow": ("dqn", {**REPLAYS, **RAINBOW}, DISCRETE),
    "sac": ("sac", REPLAYS, {name: env for name, env in FAMILIES.items() if name not in TINY}),
    "td3": ("td3", REPLAYS, CONTINUOUS),
    "ddpg": ("ddpg", REPLAYS, CONTINUOUS),
    "tqc": ("tqc", REPLAYS, CONTINUOUS),
    "crossq": ("crossq", {**REPLAYS, "model.critic_width": 16}, CONTINUOUS),
}
CURIOUS = {"icm.use": True, "icm.width": 16, "rnd.use": True, "rnd.width": 16}
SHOWN = {"gail.use": True, "gail.width": 16, "cloning.use": True, "cloning.batch_size": 8}
VARIATIONAL = {"gail.use": True, "gail.width": 16, "gail.variational": True, "gail.code_width": 16}
WHOLE = {"min_rollouts": 2, "max_rollout_steps": 24}
VECTORS = {name: env for name, env in ACTORS.items() if name not in IMAGES}
SMALLER = {name: env for name, env in ACTORS.items() if name != "Atari image"}  # up to six convolutions at once
ALGORITHMS |= {
    "ppo, curious": ("ppo", {**MINIBATCHES, **CURIOUS}, SMALLER),
    "a2c, shown": ("a2c", {**ROLLOUTS, **SHOWN}, SMALLER),
    "ars": ("ars", {"deltas": 2, "num_steps": 16, "num_envs": 2, "epoch_steps": 64}, VECTORS),
    "a2c, whole episodes": ("a2c", {**ROLLOUTS, **CURIOUS, **SHOWN, **VARIATIONAL, **WHOLE}, VECTORS),
    "ppo, variational": ("ppo", {**MINIBATCHES, **VARIATIONAL}, SMALLER),
    "ppo2, lstm, curious, shown": ("ppo2", {**MINIBATCHES, **CURIOUS, **SHOWN, "model.memory": "lstm"}, VECTORS),
}
ENCODED = {"image": DISCRETE["image"], **TINY}
HYPER = {"model.goal_conditioning": "hyper"}
ALGORITHMS |= {
    "ppo, hyper": ("ppo", {**MINIBATCHES, **HYPER}, GOALS),
    "a2c, gru, hyper": ("a2c", {**ROLLOUTS, **HYPER, "model.memory": "gru", "model.width": 7}, GOALS),
    "ppo, impala": ("ppo", {**MINIBATCHES, "model.encoder": "impala"}, ENCODED),
    "ppo2, lstm, small": ("ppo2", {**MINIBATCHES, "model.encoder": "small", "model.memory": "lstm"}, TINY),
    "ppo, flat, separate": ("ppo", {**MINIBATCHES, "model.encoder": "flat", "critic.name": "separate"}, ENCODED),
    "a2c, simple": ("a2c", {**ROLLOUTS, "model.encoder": "simple"}, {"image": DISCRETE["image"]}),
    "a2c, small, curious": ("a2c", {**ROLLOUTS, **CURIOUS, "model.encoder": "small"}, TINY),
    "svpg, impala": ("svpg", {**ROLLOUTS, "num_particles": 2, "model.encoder": "impala"}, TINY),
    "dqn, impala, dueling": ("dqn", {**REPLAYS, "model.encoder": "impala", "model.dueling": True}, ENCODED),
    "dqn, flat": ("dqn", {**REPLAYS, "model.encoder": "flat"}, ENCODED),
}
MIXED = {"mixed": EnvSpec("own_envs:CameraWalk-v0")}
MIXED_BOX = {"mixed, Box": EnvSpec("own_envs:CameraWalk-v0", {"box": True})}
FAMILIES |= MIXED | MIXED_BOX | AGENTS
SEEING = {"model.encoder": "small"}
ALGORITHMS |= {
    "ppo, mixed": ("ppo", {**MINIBATCHES, **SEEING, "model.memory": "lstm"}, MIXED | MIXED_BOX),
    "a2c, mixed, curious": ("a2c", {**ROLLOUTS, **SEEING, **CURIOUS}, MIXED),
    "dqn, mixed": ("dqn", {**REPLAYS, **SEEING}, MIXED),
    "sac, mixed": ("sac", {**REPLAYS, **SEEING}, MIXED | MIXED_BOX),
}
SQUARES = {"tiny image, Box": EnvSpec("own_envs:Square-v0", {"side": 6, "box": True})}
FAMILIES |= SQUARES
ALGORITHMS |= {
    "sac, small": ("sac", {**REPLAYS, "model.encoder": "small", "use_sde": True, "max_grad_norm": 0.5}, SQUARES),
    "sac, small, curious": ("sac", {**REPLAYS, **CURIOUS, "model.encoder": "small"}, TINY),
    "sac, impala, n-step": ("sac", {**REPLAYS, "n_step": 3, "model.encoder": "impala"}, TINY | SQUARES),
    "sac, flat": ("sac", {**REPLAYS, "model.encoder": "flat"}, TINY | SQUARES),
}
BOTH = {name: env for name, env in ALGORITHMS["sac"][2].items() if name not in IMAGES}
ALGORITHMS["sac, lstm"] = ("sac", {**REPLAYS, **SEQUENCES}, BOTH)
QUICK = {
    ("behaviours", "agents"),
    ("ppo", "restart"),
    ("ppo2", "Box2D"),
    ("a2c", "toy text"),
    ("a2c", "choices"),
    ("ppo, lstm", "restart"),
    ("a2c, gru", "bits"),
    ("svpg", "dict"),
    ("svpg-ppo", "MuJoCo"),
    ("dqn", "dict"),
    ("dqn", "lessons"),
    ("a2c", "info"),
    ("sac, mixed", "mixed, Box"),
    ("a2c, shown", "dict"),
    ("ppo2, lstm, curious, shown", "choices"),
    ("a2c, whole episodes", "restart"),
    ("dqn, n-step, prioritized", "restart"),
    ("ppo, hyper", "goals"),
    ("ppo, flat, separate", "tiny image"),
    ("sac", "hybrid"),
    ("td3", "MuJoCo"),
    ("sac", "integers"),
    ("ppo", "integers"),
    ("ppo", "branches"),
    ("sac, lstm", "restart"),
    ("ppo2, sde", "wrapped"),
}
PAIRS = [(name, family) for name, (_, _, families) in ALGORITHMS.items() for family in families]
KILLED_QUICK = {("ppo", "restart"), ("dqn", "dict"), ("sac", "hybrid"), ("svpg", "dict")}  # each kind of learner once


def marked(quick: Collection[tuple[str, str]]) -> list[Any]:
    """All pairs, those that are not quick marked slow."""
    return [pytest.param(*pair, marks=() if pair in quick else pytest.mark.slow) for pair in PAIRS]


@pytest.fixture(autouse=True)
def own_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


def make(name: str, family: str, seed: int = 1, **given: Any) -> Task:
    algorithm, values, _ = ALGORITHMS[name]
    if family in IMAGES:  # a convolution takes its time
        values = {k: v // 2 if k in SHORTER else v for k, v in values.items()}
    if "gail.use" in values:
        given["demonstrations"] = shown(family)
    return load(algorithm)(FAMILIES[family], seed=seed, **given).init(**unflatten(flatten(values)))


@lru_cache
def shown(family: str) -> Demonstrations:
    """What a policy that has learned nothing sees and does."""
    task = load("ppo")(FAMILIES[family], seed=77).init(**unflatten(ROLLOUTS))
    rollout = rollout_of(task.build_learner([task]))
    obs, actions = (x[0].transpose(0, 1).flatten(0, 1).numpy() for x in (rollout.obs[:, :-1], rollout.actions))
    begins = torch.cat([torch.ones_like(rollout.ended[:1]), rollout.ended[:-1]])[:, 0].T.flatten().numpy()
    return Demonstrations(obs, actions, begins)


@lru_cache
def in_a_cohort(name: str, family: str) -> Task:
    """Member 1 of three, after two epochs."""
    tasks = [make(name, family, seed) for seed in range(3)]
    Cohort(tasks).fit(2)
    return tasks[1]


@pytest.mark.parametrize(("name", "family"), marked(QUICK))
def test_a_task_that_is_stopped_and_alone_equals_the_member_of_a_cohort(name: str, family: str) -> None:
    whole, first, second = in_a_cohort(name, family), make(name, family), make(name, family)
    first.fit(1)
    packed = pack(first.state_dict())
    second.load_state_dict(unpack(packed.manifest, packed.blobs.__getitem__))
    second.fit(2)
    assert difference(second.state_dict(), whole.state_dict()) == []
    assert second.metrics == whole.metrics
    assert all(task.ref is not None and task.ref.learner.envs.exact for task in (whole, second))


@pytest.mark.parametrize("name", ["ppo", "a2c, shown", "trpo", "ars", "sac", "svpg"])
def test_choices_on_two_axes_are_learned_as_those_in_a_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = make(name, "choices")
    grid.fit(1)
    monkeypatch.setitem(FAMILIES, "row", EnvSpec("own_envs:GridWalk-v0", {"flat": True}))
    row = make(name, "row")
    row.fit(1)
    assert difference(*(task.member_ref().learner.policy_views(0) for task in (grid, row))) == []
    assert grid.metrics == row.metrics
    obs = np.float32([0.3, -0.8])
    assert grid.act(obs).tolist() == row.act(obs).reshape(2, 3).tolist()


# The first process trains an epoch of every pair, and kills itself with SIGKILL while all are amid the second.
KILLED = """
import json, os, signal, sys
import test_exactness as t
from rekindle import Store
with Store(sys.argv[1]) as store:
    tasks = [t.make(*pair, storage=store) for pair in json.loads(sys.argv[2])]
    for task in tasks:
        task.fit(1)
        task.ref.learner.iterate()
    os.kill(os.getpid(), signal.SIGKILL)
"""
RESUMED = """
import json, sys
import test_exactness as t
from rekindle import Store
with Store(sys.argv[1]) as store:
    digests = []
    for pair in json.loads(sys.argv[2]):
        task = t.make(*pair, storage=store)
        assert task.resumed and task.epochs == 1
        task.fit(2)
        digests.append(task.digest)
        task.finish()
    print(json.dumps(digests))
"""


@lru_cache
def after_sigkill(quick: bool) -> dict[tuple[str, str], str]:
    """The digests of two epochs, by pair, with two processes of which the first was killed."""
    pairs = [pair for pair in PAIRS if (pair in KILLED_QUICK) == quick]
    with TemporaryDirectory() as folder:
        outputs = []
        for program, status in ((KILLED, -9), (RESUMED, 0)):
            command = [sys.executable, "-c", program, f"sqlite:///{folder}/s.db", json.dumps(pairs)]
            path = os.pathsep.join([SUPPORT, str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
            environment = {**os.environ, "PYTHONPATH": path}
            done = nursery.run(command, env=environment)
            assert done.returncode == status, done.stderr
            outputs.append(done.stdout)
    return dict(zip(pairs, json.loads(outputs[1].splitlines()[-1]), strict=True))


@pytest.mark.parametrize(("name", "family"), marked(KILLED_QUICK))
def test_a_task_whose_process_was_killed_ends_the_same(name: str, family: str) -> None:
    assert after_sigkill((name, family) in KILLED_QUICK)[name, family] == in_a_cohort(name, family).digest
