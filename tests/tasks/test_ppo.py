"""PPO: exactness on every kind of environment, and what its loss must do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from rekindle import PPO, EnvSpec, Store
from rekindle.tasks.testing import ExactnessSuite

SMALL: dict[str, Any] = {"epoch_steps": 256, "num_steps": 32, "num_envs": 4}
AGGRESSIVE: dict[str, Any] = {"update_epochs": 3, "optimizer.lr": 0.03, "clip_coef": 0.1, "max_grad_norm": 0.1}


class TestOnCartPole(ExactnessSuite):
    task = PPO
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, **AGGRESSIVE}
    variants: ClassVar = (
        {"clip_value": 0.01, "normalize_obs": True, "normalize_reward": True, "stats_window_size": 7},
        {"optimizer.name": "sgd", "optimizer.momentum": 0.5, "lr_schedule.name": "cosine", "lr_schedule.horizon": 600},
        {
            "optimizer.name": "rmsprop",
            "lr_schedule.name": "exponential",
            "lr_schedule.horizon": 600,
            "max_grad_norm": None,
        },
        {"optimizer.name": "adamw", "lr_schedule.name": "linear", "lr_schedule.horizon": 600, "target_kl": 0.02},
        {
            "num_envs": 3,
            "num_steps": 35,
            "num_minibatches": 5,
            "model.width": 17,
            "model.layers": 3,
            "model.activation": "elu",
        },
        {"model.activation": "silu"},
        {
            "clip_coef_schedule.name": "linear",
            "clip_coef_schedule.horizon": 600,
            "clip_value": 0.5,
            "clip_value_schedule.name": "exponential",
            "clip_value_schedule.horizon": 600,
            "ent_coef_schedule.name": "piecewise",
            "ent_coef_schedule.points": [[0, 1.0], [256, 0.5], [512, 2.0]],
            "lr_schedule.name": "piecewise",
            "lr_schedule.points": [[0, 1.0], [600, 0.1]],
        },
    )
    inert = frozenset({"model.std_init"})  # the first standard deviation of continuous actions


class TestOnPendulum(ExactnessSuite):
    task = PPO
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, **AGGRESSIVE, "target_kl": 0.05}
    variants: ClassVar = (
        {},
        {"num_envs": 1, "num_minibatches": 2},
        {"use_sde": True},
        {"use_sde": True, "sde_sample_freq": 5, "num_envs": 3, "model.width": 17, "model.activation": "relu"},
        {"use_sde": True, "sde_sample_freq": 100, "model.memory": "gru", "num_minibatches": 2},
    )
    inert = frozenset({"model.std_init"})  # acts on the first state only


class _Elsewhere(ExactnessSuite):
    task = PPO
    hyperparameters: ClassVar = {**SMALL, **AGGRESSIVE}
    inert = frozenset({"model.std_init"})
    cohort_size = 3


class TestOnLunarLander(_Elsewhere):
    env = "LunarLander-v3"


class TestOnContinuousLunarLander(_Elsewhere):
    env = EnvSpec("LunarLander-v3", kwargs={"continuous": True})


class TestOnBipedalWalker(_Elsewhere):
    env = "BipedalWalker-v3"
    hyperparameters: ClassVar = {**SMALL, **AGGRESSIVE, "num_envs": 2}


class TestOnInvertedPendulum(_Elsewhere):
    env = "InvertedPendulum-v5"


class TestOnFrozenLake(_Elsewhere):
    env = "FrozenLake-v1"


class _OnItsOwn(_Elsewhere):
    path = (str(Path(__file__).parent),)


class TestOnADictOfObservations(_OnItsOwn):
    env = "own_envs:DictWalk-v0"


class TestOnSeveralChoices(_OnItsOwn):
    env = "own_envs:RowsWalk-v0"


class TestOnBits(_OnItsOwn):
    env = "own_envs:BitsWalk-v0"


def test_a_task_in_a_wrapped_environment_is_stored_and_carries_on(tmp_path: Path) -> None:
    stack = {"entry_point": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 2}}
    env = EnvSpec("CartPole-v1", wrappers=[stack])
    whole = PPO(env).init(**SMALL)
    whole.fit(2)
    with Store(f"sqlite:///{tmp_path}/s.db") as store:
        first = PPO(env, storage=store).init(**SMALL)
        first.fit(1)
        first.finish()
        second = PPO(env, storage=store).init(**SMALL)
        assert second.resumed
        second.fit(2)
        assert second.digest == whole.digest
        second.finish()
