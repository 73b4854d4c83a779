"""The window over the last episodes: its means, and its place in checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from rekindle import A2C, DQN, PPO, SVPG, Cohort
from rekindle.spaces import SpaceError
from rekindle.tasks.runtime.episode_window import EpisodeWindow

SMALL: dict[str, Any] = {"num_steps": 32, "num_envs": 4, "epoch_steps": 256}
REPLAY: dict[str, Any] = {"learning_starts": 64, "buffer_size": 200, "epoch_steps": 256, "model": {"width": 16}}


def means(window: EpisodeWindow, member: int) -> dict[str, float]:
    return {name: value for name, value in window.metrics(member).items() if name.count("_") == 1}


def test_only_the_last_episodes_count() -> None:
    window = EpisodeWindow(2, 3)
    assert window.metrics(0) == {}
    window.add(np.array([0, 1, 0]), np.array([1.0, 100.0, 3.0]), np.array([10, 7, 20]))
    assert means(window, 0) == {"recent_return": 2.0, "recent_length": 15.0}
    assert means(window, 1) == {"recent_return": 100.0, "recent_length": 7.0}
    window.add(np.array([0, 0, 0, 0]), np.array([5.0, 6.0, 7.0, 8.0]), np.array([1, 2, 3, 4]))
    assert means(window, 0) == {"recent_return": 7.0, "recent_length": 3.0}
    assert window.metrics(1)["recent_return"] == 100.0


def test_the_returns_themselves_are_told_the_oldest_first() -> None:
    window = EpisodeWindow(2, 3)
    assert window.recent(0) == []
    window.add(np.array([0, 1, 0]), np.array([1.0, 100.0, 3.0]), np.ones(3))
    assert (window.recent(0), window.recent(1)) == ([1.0, 3.0], [100.0])
    window.add(np.array([0, 0]), np.array([5.0, 6.0]), np.ones(2))
    assert window.recent(0) == [3.0, 5.0, 6.0]


@pytest.mark.parametrize(("task_class", "values"), [(PPO, SMALL), (SVPG, {**SMALL, "num_particles": 2}), (DQN, REPLAY)])
def test_a_task_tells_its_last_returns(task_class: Any, values: dict[str, Any]) -> None:
    task = task_class("CartPole-v1").init(**values, stats_window_size=1000)
    task.fit(1)
    rows = task.metrics
    assert len(task.recent_returns) == rows["episodes"]
    assert np.mean(task.recent_returns) == pytest.approx(
        rows["episode_return"], rel=0.2 if task_class is SVPG else 1e-6
    )
    assert (
        task_class("CartPole-v1").init(**values).uid
        == task_class("CartPole-v1").init(**values, stats_window_size=None).uid
    )
    with pytest.raises(ValueError, match="recent_returns are those of the last stats_window_size episodes"):
        _ = task_class("CartPole-v1").init(**values).recent_returns


def test_a_window_continues_at_another_index() -> None:
    one, other = EpisodeWindow(2, 3), EpisodeWindow(1, 3)
    one.add(np.array([1, 1, 1, 1]), np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 1, 1, 1]))
    other.load_member(0, one.member_state(1))
    for window, member in ((one, 1), (other, 0)):
        window.add(np.array([member]), np.array([10.0]), np.array([5]))
    assert other.metrics(0) == one.metrics(1)
    assert means(other, 0) == {"recent_return": 17 / 3, "recent_length": 7 / 3}


def test_the_spread_of_returns_is_shown_with_their_mean() -> None:
    window = EpisodeWindow(1, 4)
    window.add(np.zeros(5, np.int64), np.array([9.0, 1.0, 2.0, 4.0, 5.0]), np.ones(5))
    spread = {name: value for name, value in window.metrics(0).items() if name.startswith("recent_return_")}
    assert spread == {
        "recent_return_min": 1.0,
        "recent_return_median": 3.0,
        "recent_return_max": 5.0,
        "recent_return_std": pytest.approx(2.5**0.5),
    }


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1"])
def test_it_is_the_mean_of_the_last_episodes_over_the_ends_of_epochs(env: str) -> None:
    task = PPO(env).init(**SMALL, stats_window_size=1000)
    task.fit(3)
    rows = [row for _, row in task.history]
    episodes = sum(row["episodes"] for row in rows)
    assert episodes < 1000
    total = sum(row["episodes"] * row["episode_return"] for row in rows)
    assert task.metrics["recent_return"] == pytest.approx(total / episodes)
    steps = sum(row["episodes"] * row["episode_length"] for row in rows)
    assert task.metrics["recent_length"] == pytest.approx(steps / episodes)


def test_it_is_not_touched_by_normalization_and_reported_where_no_episode_ends() -> None:
    task = PPO("Pendulum-v1").init(**SMALL, stats_window_size=8, normalize_reward=True, normalize_obs=True)
    task.fit(5)  # 320 steps of each environment, so that episodes end in epoch 4 only
    ends = [epoch for epoch, row in task.history if "episodes" in row]
    assert ends == [4]
    known = dict(task.history)
    assert known[5]["recent_return"] == known[4]["recent_return"] == pytest.approx(known[4]["episode_return"])
    assert known[5]["recent_return"] < -500


def test_a_member_of_a_cohort_has_its_own_window_and_keeps_it() -> None:
    def make(seed: int) -> A2C:
        return A2C("CartPole-v1", seed=seed).init(num_envs=3, epoch_steps=120, stats_window_size=5)

    together = [make(seed) for seed in range(3)]
    Cohort(together).fit(3)
    alone, resumed = make(1), make(1)
    alone.fit(3)
    assert alone.history == together[1].history
    assert alone.digest == together[1].digest
    first = make(1)
    first.fit(1)
    resumed.load_state_dict(first.state_dict())
    resumed.fit(3)
    assert resumed.metrics == alone.metrics


def test_without_a_size_there_is_none() -> None:
    task = PPO("CartPole-v1").init(**SMALL)
    task.fit(1)
    assert "recent_return" not in task.metrics
    assert "window" not in task.state_dict()["learner"]
    with pytest.raises(SpaceError, match="stats_window_size must be None or an integer in"):
        PPO("CartPole-v1").init(stats_window_size=0)
