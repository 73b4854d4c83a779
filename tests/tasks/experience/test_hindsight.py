"""Hindsight: goals, rewards and ends by hand, overwritten and running episodes, exactness, refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import tiny
import torch
from goal_envs import Unlike
from rekindle import DQN, SAC
from rekindle.tasks.checkpoint.state import copy
from rekindle.tasks.envs import EnvSpec, Goals
from rekindle.tasks.envs.goals import goals_of
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.experience.hindsight import HindsightReplay, Relabelling
from rekindle.tasks.experience.replay_buffer import Field, RingForm, transition_fields
from rekindle.tasks.rng import streams
from rekindle.tasks.testing import ExactnessSuite, VariantSuite

SMALL: dict[str, Any] = {**tiny.REPLAY, "buffer_size": 80, "optimizer.lr": 0.003}
RARE = frozenset({"entropy.choice_target", "target_update_interval", "target_interval"})


class TestContinuous(ExactnessSuite):
    task = SAC
    env: ClassVar = {"id": "goal_envs:Point-v0", "kwargs": {"ends": True}}
    hyperparameters: ClassVar = {**SMALL, "entropy.alpha": 0.2}
    variants: ClassVar = ({"replay.relabel": "future", "n_step": 3, "num_envs": 2, "replay.name": "prioritized"},)
    inert = RARE | {"entropy.alpha"}


class TestDiscrete(VariantSuite):
    task = DQN
    env = "goal_envs:Bits-v0"
    hyperparameters: ClassVar = {**SMALL, "normalize_obs": True, "num_envs": 2}
    variants: ClassVar = ({"replay.relabel": "final"}, {"replay.relabel": "episode", "n_step": 1})
    inert = RARE | {"exploration.start", "exploration.final", "exploration.horizon"}


def equal(achieved: np.ndarray, desired: np.ndarray) -> np.ndarray:
    return (achieved == desired).all(-1)


def walk(strategy: str, ends: tuple[int, ...], steps: int, slots: int = 100, terminates: bool = False) -> Any:
    """Return a buffer in which observation t is (t achieved, -1 desired), and steps `ends` are the last of episodes."""
    goals = Goals(slice(0, 1), slice(1, 2), lambda a, g: equal(a, g) - 1.0, equal if terminates else None)
    fields, keys = transition_fields(Field((2,)), Field((1,))), streams.keys((0,), "relabel")
    replay = HindsightReplay(RingForm(1, slots, 1, fields), Relabelling(goals, strategy, torch.ones(1, 1), keys, 64))
    for t in range(steps):
        obs = np.array([[[t, -1]]], np.float32)
        ended = np.array([[t in ends]])
        values = {"action": obs[..., :1], "reward": np.full((1, 1), -1.0, np.float32)}
        cut = {"terminated": ended & terminates, "truncated": ended & (not terminates)}
        replay.add(obs=obs, next_obs=obs + np.array([1, 0], np.float32), **values, **cut)
    return replay


def drawn(replay: Any, step: int, number: int = 0, n_step: int = 1) -> dict[str, np.ndarray]:
    rows = np.full((1, 64), step % replay.slots)
    batch = replay.returns(rows, torch.full((1, 1), 0.5), n_step, replay.relabelling(rows, number))
    return {name: value[0].numpy() for name, value in batch.items()}


@pytest.mark.parametrize(
    ("strategy", "goals"), [("future", {6, 7, 8, 9, 10}), ("final", {10}), ("episode", {4, 5, 6, 7, 8, 9, 10})]
)
def test_goals_are_those_that_the_same_episode_achieved(strategy: str, goals: set[int]) -> None:
    """Episodes end at steps 2 and 9, so that of step 5 has the steps 3 to 9, after which 4 to 10 were achieved."""
    replay = walk(strategy, (2, 9), 14)
    batches = [drawn(replay, 5, number) for number in range(4)]
    obs, next_obs, reward = (
        np.concatenate([batch[name] for batch in batches]) for name in ("obs", "next_obs", "reward")
    )
    assert {*obs[:, 1]} == goals
    assert (obs[:, 1] == next_obs[:, 1]).all()
    assert (obs[:, 0] == 5).all()
    assert (next_obs[:, 0] == 6).all()
    assert (reward == np.where(obs[:, 1] == 6, 0, -1)).all()


@pytest.mark.parametrize("resumed", [False, True])
def test_running_and_overwritten_episodes_have_the_goals_that_are_left(resumed: bool) -> None:
    """Of 17 steps the last eight are left, 9 to 16; episodes ended at steps 12 and 14."""
    replay = walk("episode", (12, 14), 17, slots=8)
    if resumed:
        state, replay = copy(replay.member_state(0)), walk("episode", (), 3, slots=8)
        replay.load_member(0, state)
    for step, goals in ((11, {10, 11, 12, 13}), (13, {14, 15}), (16, {16, 17})):
        assert {*drawn(replay, step)["obs"][:, 1]} == goals
    replay.truncate_all()
    assert {*drawn(replay, 15)["obs"][:, 1]} == {16, 17}
    last = np.array([[[17, -1]]], np.float32)
    flag = np.zeros((1, 1), np.bool_)
    replay.add(obs=last, next_obs=last + 1, action=last[..., :1], reward=flag, terminated=flag, truncated=flag)
    assert {*drawn(replay, 15)["obs"][:, 1]} == {16, 17}
    assert {*drawn(replay, 17)["obs"][:, 1]} == {18}


def test_a_return_of_several_steps_has_one_goal() -> None:
    """From step 3, goal g is achieved g - 4 steps later: its reward is 0 there and -1 elsewhere."""
    batch = drawn(walk("future", (9,), 10), 3, n_step=3)
    for goal, total, discount in zip(batch["obs"][:, 1], batch["reward"], batch["discount"], strict=True):
        assert total == {4: -0.75, 5: -1.25, 6: -1.5}.get(goal, -1.75)
        assert discount == 0.125
    assert (batch["next_obs"] == np.stack([np.full(64, 6), batch["obs"][:, 1]], 1)).all()


def test_an_episode_that_a_goal_ends_is_cut_there() -> None:
    """With ends at goals, the sum stops at the achieved goal, without a bootstrap; the old end becomes a truncation."""
    replay = walk("future", (4,), 8, terminates=True)
    batch = drawn(replay, 3, n_step=3)
    for goal, total, discount in zip(batch["obs"][:, 1], batch["reward"], batch["discount"], strict=True):
        assert (goal, total, discount) in {(4, 0, 0), (5, -1, 0)}
    replay.ratio[:] = 0
    assert (drawn(replay, 3, n_step=3)["discount"] == 0).all()  # its own end
    replay.ratio[:] = 1
    replay.goals = replay.goals._replace(terminated=lambda a, g: np.zeros(len(a), np.bool_))
    batch = drawn(replay, 3, n_step=3)
    assert (batch["discount"] == 0.25).all()  # two steps to the end of the episode, then a bootstrap
    assert (batch["next_obs"][:, 0] == 5).all()


def test_about_the_given_share_gets_another_goal() -> None:
    replay = walk("final", (9,), 10)
    replay.ratio[:] = 0.75
    goals = np.concatenate([drawn(replay, 3, number)["obs"][:, 1] for number in range(30)])
    assert {*goals} == {-1, 10}
    assert abs((goals == 10).mean() - 0.75) < 4 * (0.75 * 0.25 / len(goals)) ** 0.5
    assert (drawn(replay, 3, 5)["obs"] == drawn(replay, 3, 5)["obs"]).all()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("goal_envs:Sides-v0", r"needs the method compute_reward\(achieved_goal, desired_goal, info\)"),
        (
            "goal_envs:Rooms-v0",
            r"needs .* with achieved_goal and desired_goal, a Box or MultiBinary each and of one shape, but",
        ),
        (
            "goal_envs:TwoRewards-v0",
            r"needs one number of compute_reward for two goals, but the environment has one that gives an array of "
            r"shape \(2,\); leave replay.relabel out",
        ),
        ("goal_envs:Unlike-v0", r"needs steps that give what compute_reward gives .* leave replay.relabel out"),
        ("Pendulum-v1", r"Pendulum-v1: replay.relabel needs observations of numbers"),
    ],
)
def test_environments_without_rewards_of_goals_are_refused(env: str, message: str) -> None:
    task = SAC if env in ("goal_envs:TwoRewards-v0", "goal_envs:Unlike-v0", "Pendulum-v1") else DQN
    with pytest.raises(UnsupportedSpace, match=message):
        task(env).init(replay={"relabel": "future"})


def test_an_environment_that_is_refused_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    used, closed = set[int](), set[int]()
    reset = Unlike.reset

    def noted(self: Unlike, **options: Any) -> Any:
        used.add(id(self))
        return reset(self, **options)

    monkeypatch.setattr(Unlike, "reset", noted)
    monkeypatch.setattr(Unlike, "close", lambda self: closed.add(id(self)))
    with pytest.raises(UnsupportedSpace):
        goals_of(EnvSpec("goal_envs:Unlike-v0", max_episode_steps=7))  # not asked for before
    assert used <= closed != set()


def test_a_memory_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"replay.relabel changes the goals of single transitions, but model.memory lstm"
    ):
        DQN("goal_envs:Bits-v0").init(replay={"relabel": "future"}, model={"memory": "lstm"})


@pytest.mark.slow
def test_bits_are_flipped_only_with_hindsight() -> None:
    """Andrychowicz et al. (2017), figure 1: without it, 12 bits are rarely right by chance."""
    env = {"id": "goal_envs:Bits-v0", "kwargs": {"size": 12}, "max_episode_steps": 12}
    rest = {"gamma": 0.98, "n_step": 1, "exploration": {"horizon": 10_000}, "epoch_steps": 10_000}
    returns = []
    for relabel in ("none", "future"):
        made = DQN(env, seed=0).init(replay={"relabel": relabel}, **rest)
        made.fit(2)
        returns.append(made.evaluate(100))
    assert returns[0] < -11
    assert returns[1] > -7
