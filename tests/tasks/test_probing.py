"""Probes of environments: figures that follow from the environment, and environments that give none."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rekindle import DQN, PPO, SVPG, Behaviours
from rekindle.tasks import Task, probing
from rekindle.tasks.evaluation.measuring import measure_episodes
from rekindle.tasks.evaluation.players import playing
from rekindle.tasks.identity import TaskIdentity
from rekindle.tasks.probing import probe

SMALL = {"model": {"width": 16, "layers": 1}}


class Fixed(gym.Env[Any, Any]):
    """Episodes of four steps: rewards 0, 0, 0 and 3, and observations that count; options make it a bad one."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)

    def __init__(self, last: float = 3.0, length: int = 4, constant: bool = False, fails: bool = False):
        self.last, self.length, self.constant, self.fails = last, length, constant, fails

    def _obs(self) -> Any:
        return np.zeros(2, np.float32) if self.constant else np.array([self.steps % 10, 0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps, self.bad = 0, self.fails and bool(self.np_random.random() < 0.05)
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.bad and self.steps == 3:
            raise RuntimeError("the simulator lost its mind")
        return self._obs(), self.last if self.steps == self.length else 0.0, self.steps == self.length, False, {}


gym.register("Fixed-v0", Fixed)


class Codes(Fixed):
    """Observations with a picture of codes from 0 to 8, whose space says 255, as in grid worlds."""

    observation_space = gym.spaces.Dict(
        {"codes": gym.spaces.Box(0, 255, (5, 5, 3), np.uint8), "facing": gym.spaces.Discrete(4)}
    )

    def _obs(self) -> Any:
        return {"codes": np.full((5, 5, 3), 2 * self.steps, np.uint8), "facing": 3}


gym.register("Codes-v0", Codes)


def findings(task: type[Task] = PPO, steps: int | None = 400, seed: int = 3, **kwargs: Any) -> dict[str, Any]:
    env = {"id": "Fixed-v0", "kwargs": kwargs}
    return probe(task, TaskIdentity.of(task, env, seed, SMALL), steps)


def test_a_probe_tells_the_largest_number_of_images() -> None:
    assert findings()["largest_pixel"] is None
    for scale, largest in ((None, 6), (12, 128)):  # before an episode's four steps: 0, 2, 4 and 6
        identity = TaskIdentity.of(PPO, {"id": "Codes-v0", "scale": scale}, 0, SMALL)
        assert probe(PPO, identity, 40)["largest_pixel"] == largest


def test_a_probe_tells_returns_lengths_ends_and_scales() -> None:
    seen = findings()
    assert seen["random"] == [3.0] * 20
    assert seen["untrained"] == [[3.0] * 7] * 2 + [[3.0] * 6] * 6  # in turns, within half of 400 steps
    assert (seen["steps"], seen["lengths"], seen["terminated"]) == (280, [4] * 70, 70)
    assert seen["zero_rewards"] == 0.75
    assert seen["rewards"]["high"] == pytest.approx(np.std([0, 0, 0, 3]))
    assert seen["observations"]["low"] == 0
    assert seen["observations"]["high"] == pytest.approx(np.std([0, 1, 2, 3]))
    assert (seen["restore"]["exact"], seen["masks"], seen["goals"], seen["failures"]) == (True, False, False, [])


def test_a_probe_tells_how_long_an_episode_lasted_that_did_not_end() -> None:
    assert findings()["unfinished"] == {"random": 0, "untrained": 0}
    assert findings(length=300)["unfinished"] == {"random": 200, "untrained": 200}
    assert findings(length=150)["unfinished"] == {"random": 50, "untrained": 200 - 150}


def test_a_probe_waits_for_long_episodes_that_no_time_limit_ends() -> None:
    seen = findings(steps=None, length=6_000, constant=True)
    assert set(seen["lengths"]) == {6_000}
    assert seen["random"] == [3.0]  # in half of MOST_STEPS
    endless = findings(steps=None, length=12_000, constant=True)
    assert (endless["lengths"], endless["unfinished"]) == ([], {"random": 10_000, "untrained": 10_000})
    limited = {"id": "Fixed-v0", "kwargs": {"length": 12_000}, "max_episode_steps": 12_000}
    assert probe(PPO, TaskIdentity.of(PPO, limited, 3, SMALL))["unfinished"] == {"random": 5_000, "untrained": 5_000}


@pytest.mark.parametrize(("task", "env"), [(PPO, "CartPole-v1"), (DQN, "MountainCar-v0"), (SVPG, "CartPole-v1")])
def test_a_probe_follows_from_the_seed_and_ends_after_its_steps(task: type[Task], env: str) -> None:
    first, again, other = (probe(task, TaskIdentity.of(task, env, seed, SMALL), 500) for seed in (0, 0, 1))
    assert first == again
    assert other["observations"] != first["observations"]
    assert first["steps"] <= 500 + 20
    assert set(first) == set(again)


def test_untrained_policies_share_the_steps_that_are_left() -> None:
    seen = probe(PPO, TaskIdentity.of(PPO, "MountainCar-v0", 0, SMALL), 2_000)  # of 200 steps, so five of each
    assert (seen["random"], seen["untrained"]) == ([-200.0] * 5, [[-200.0]] * 5)


def test_untrained_policies_are_those_with_which_trials_begin() -> None:
    def untrained(*trials: dict[str, Any]) -> list[list[float]]:
        identities = [TaskIdentity.of(PPO, "CartPole-v1", 0, SMALL | values) for values in trials]
        seen = probe(PPO, identities[0], 500, trials=[(PPO, identity) for identity in identities])
        return list(seen["untrained"])

    alone, wider = untrained({}), untrained({}, {"gamma": 0.9}, {"model": {"width": 32, "layers": 1}})
    assert untrained({}, {"gamma": 0.9}) == alone  # its networks are the same
    assert wider[0][0] == alone[0][0]
    assert wider[1] != alone[1]  # another network; without it, the first one's with another seed


def test_untrained_policies_scale_observations_by_what_random_actions_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    learners = []

    def noted(learner: Any) -> Any:
        learners.append(learner)
        return playing(learner)

    monkeypatch.setattr(probing, "playing", noted)
    env = {"id": "Fixed-v0", "kwargs": {}}
    probe(PPO, TaskIdentity.of(PPO, env, 3, SMALL | {"normalize_obs": True}), 400)
    assert [learner.agent.obs_normalizer.mean[0, 0] for learner in learners] == pytest.approx([1.5] * 8, abs=1e-3)


def test_untrained_policies_play_the_episodes_of_evaluations() -> None:
    identity = TaskIdentity.of(PPO, "CartPole-v1", 0, SMALL)
    seen = probe(PPO, identity, 500, trials=[(PPO, identity)])["untrained"][0]
    task = PPO("CartPole-v1", seed=0).init(**SMALL)
    assert seen == measure_episodes(task.member_ref()[0], len(seen)).returns[0].tolist()


def test_the_time_that_policies_take_makes_no_environment_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def compiled(learner: Any) -> Any:
        nonlocal now
        now += 1000.0
        return playing(learner)

    monkeypatch.setattr(probing, "playing", compiled)
    monkeypatch.setattr(probing.time, "monotonic", lambda: now)
    assert findings()["slow"] is None


def test_rewards_of_several_agents_that_add_up_to_nothing_are_told_from_none() -> None:
    nim, hunt = "pettingzoo/hunt_env:Nim", "pettingzoo/hunt_env:Hunt"
    game, joint = (probe(task, TaskIdentity.of(task, nim, 0, {}), 200) for task in (Behaviours, PPO))
    assert game["zero_sum"]
    assert 0 < game["zero_rewards"] < 1
    assert set(game["random"]) == {0.0}
    assert not joint["zero_sum"]  # a single policy of both players
    assert joint["zero_rewards"] == 1
    assert not probe(Behaviours, TaskIdentity.of(Behaviours, hunt, 0, {}), 200)["zero_sum"]


def test_an_environment_without_rewards_changes_or_ends_is_described() -> None:
    assert findings(last=0.0)["zero_rewards"] == 1.0
    assert findings(constant=True)["observations"]["high"] == 0.0
    endless = findings(length=10**9)
    assert (endless["random"], endless["untrained"], endless["lengths"], endless["steps"]) == ([], [[]], [], 400)


def test_an_environment_that_fails_now_and_then_is_probed_between_its_failures() -> None:
    seen = findings(seed=0, fails=True)  # in one of 20 episodes
    assert set(seen["failures"]) == {"RuntimeError: the simulator lost its mind"}
    assert {*seen["random"], *seen["untrained"][0]} == {3.0}
    assert len(seen["lengths"]) >= 40 - 5 * len(seen["failures"])  # a failure ends the episodes beside it


@pytest.mark.parametrize("seconds", [1e-6, 0.05])
def test_the_length_of_episodes_alone_gives_a_probe_more_steps(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    clock = itertools.count(step=seconds)
    monkeypatch.setattr(probing, "STEPS", 40)
    monkeypatch.setattr(probing, "MORE_STEPS", 120)
    monkeypatch.setattr(probing.time, "monotonic", lambda: next(clock))
    assert findings(steps=None, length=4)["steps"] == 40
    assert findings(steps=None, length=16)["steps"] == 120


def test_a_slow_environment_ends_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "SECONDS", -1.0)
    seen = findings()
    assert (seen["steps"], seen["random"]) == (1, [])
    assert seen["slow"] > 0
