"""Learning with signals and cloning: from demonstrations without rewards, and to find distant states."""

from __future__ import annotations

from typing import Any

import pytest
from rekindle import A2C, PPO, Cohort
from rekindle.spaces import unflatten
from rekindle.tasks.signals.demonstrations import Demonstrations

pytestmark = pytest.mark.slow
FEW: dict[str, Any] = {"update_epochs": 4, "num_minibatches": 4, "target_kl": None}


@pytest.fixture(scope="module")
def shown() -> Demonstrations:
    """Five episodes of a policy that balances the pole."""
    teacher = PPO("CartPole-v1", seed=1).init(**FEW)  # it leaves the centre, so it shows states that pupils get into
    teacher.fit(25)
    assert min(teacher.returns(5)) > 450
    return teacher.record(5)


def trained(env: str, seeds: int, epochs: int, examples: Demonstrations | None = None, **values: Any) -> list[PPO]:
    """Tasks that get no reward from their environment."""
    nested = unflatten({"extrinsic.strength": 0.0, **values})
    tasks = [PPO(env, seed=seed, demonstrations=examples).init(**nested) for seed in range(seeds)]
    Cohort(tasks).fit(epochs)
    return tasks


def test_cloning_balances_a_pole_without_any_reward(shown: Demonstrations) -> None:
    tasks = trained("CartPole-v1", 3, 3, shown, **{"cloning.use": True})
    assert min(task.evaluate() for task in tasks) > 400


def test_cloning_balances_a_pole_where_updates_wait_for_whole_episodes(shown: Demonstrations) -> None:
    options = {
        "min_rollouts": 8,
        "max_rollout_steps": 256,
        "num_steps": 16,
        "extrinsic.strength": 0.0,
        "cloning.use": True,
    }
    tasks = [A2C("CartPole-v1", seed=seed, demonstrations=shown).init(**unflatten(options)) for seed in range(3)]
    Cohort(tasks).fit(5)
    assert min(task.evaluate() for task in tasks) > 400


@pytest.mark.parametrize("variational", [False, True])
def test_gail_balances_a_pole_without_any_reward(shown: Demonstrations, variational: bool) -> None:
    annealed = {"lr_schedule.name": "linear", "lr_schedule.horizon": 65536}
    tasks = trained("CartPole-v1", 3, 16, shown, **{"gail.use": True, "gail.variational": variational, **annealed})
    assert sum(task.evaluate() for task in tasks) / 3 > 300


def arrived(seeds: int, epochs: int, **values: Any) -> int:
    """How many cars reach the top, of which they know nothing, in any episode of their training."""
    tasks = trained("MountainCar-v0", seeds, epochs, **{"normalize_obs": True, **FEW, **values})
    return sum(any(row["episode_return"] > -200 for _, row in task.history) for task in tasks)


def test_curiosity_solves_mountain_car_more_often_than_no_signal() -> None:
    nothing = arrived(6, 5)
    assert arrived(6, 5, **{"rnd.use": True, "rnd.strength": 1.0}) >= max(5, nothing + 2)
    assert arrived(6, 10, **{"icm.use": True, "icm.strength": 0.1}) >= max(5, nothing + 2)
