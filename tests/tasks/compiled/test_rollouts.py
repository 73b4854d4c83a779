"""Rollouts that a kernel plays, with the bits of stepped rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rekindle import PPO
from rekindle.tasks.checkpoint import state
from rekindle.tasks.compiled.loading import kernels
from rekindle.tasks.envs.classic import envs as classic
from rekindle.tasks.envs.classic.dynamics import MODELS
from rekindle.tasks.experience.rollout import Rollout
from rekindle.tasks.networks import compiled_actor_critic


def learner_of(env: str, watched: bool = False, members: int = 3, **hyperparameters: Any) -> Any:
    """A learner of PPO whose policy does not always do the same; each of its steps is seen if it is watched."""
    tasks = [PPO(env, seed=seed).init(num_envs=5, num_minibatches=4, **hyperparameters) for seed in range(members)]
    learner = PPO.learner(tasks[0].env, range(members), [task.hyperparameters or {} for task in tasks])
    noise = torch.randn(learner.policy.parameters.vector.shape, generator=torch.Generator().manual_seed(0))
    learner.policy.parameters.vector.add_(0.1 * noise)
    learner.agent.steps = 0
    if watched:
        learner.envs.watch(lambda *_: setattr(learner.agent, "steps", learner.agent.steps + 1))
    return learner


def assert_same(one: Rollout, other: Rollout) -> None:
    for name, value in vars(one).items():
        theirs = vars(other)[name]
        if isinstance(value, torch.Tensor):
            assert value.dtype == theirs.dtype, name
            assert torch.equal(value, theirs), name
    assert len(one.truncations) == len(other.truncations)
    for (t, mask, final), (step, other_mask, last) in zip(one.truncations, other.truncations, strict=True):
        assert t == step
        assert np.array_equal(mask, other_mask)
        assert np.array_equal(final[mask], last[mask])


@pytest.mark.parametrize("env", sorted(MODELS))
def test_a_played_rollout_has_the_bits_of_a_stepped_one(env: str) -> None:
    steps = 132 if env == "CartPole-v1" else 260
    played, stepped = learner_of(env, num_steps=steps), learner_of(env, True, num_steps=steps)
    for number in range(5):  # at last for more than the 999 steps of the longest episode
        rollouts = [x.agent.collect(x.envs, number, keep_next=True) for x in (played, stepped)]
        assert_same(*rollouts)
        assert np.array_equal(played.envs.obs, stepped.envs.obs)
    assert stepped.agent.steps == 5 * steps
    assert played.envs.episodes.count.sum() >= 9
    for member in range(3):
        assert state.difference(played.envs.member_state(member), stepped.envs.member_state(member)) == []


@pytest.mark.parametrize("activation", ["relu", "elu", "silu"])
def test_units_that_play_have_the_bits_of_those_that_step(activation: str) -> None:
    model = {"activation": activation, "hidden": [17, 6]}
    played, stepped = (learner_of("Acrobot-v1", watched, num_steps=40, model=model) for watched in (False, True))
    assert_same(*(x.agent.collect(x.envs, 0) for x in (played, stepped)))


def test_a_long_rollout_is_played_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, in_parts = (learner_of("CartPole-v1", num_steps=64) for _ in range(2))
    expected = whole.agent.collect(whole.envs, 0)
    monkeypatch.setattr(compiled_actor_critic, "STEPS_AT_ONCE", 30)
    assert_same(expected, in_parts.agent.collect(in_parts.envs, 0))


def test_where_numpy_has_no_loops_each_step_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    run = kernels()
    assert run is not None
    assert run.cosine_and_sine() is not None
    played = learner_of("CartPole-v1", num_steps=64)
    monkeypatch.setattr(run, "cosine_and_sine", lambda: None)
    plain = learner_of("CartPole-v1", num_steps=64)
    assert type(plain.envs) is classic.ClassicEnvs
    assert_same(*(x.agent.collect(x.envs, 0) for x in (played, plain)))


def test_rollouts_that_need_each_step_are_stepped() -> None:
    calls = 0
    learner = learner_of("CartPole-v1", num_steps=16, normalize_obs=True)
    step = learner.envs.step

    def counted(actions: np.ndarray) -> Any:
        nonlocal calls
        calls += 1
        return step(actions)

    learner.envs.step = counted
    learner.agent.collect(learner.envs, 0)
    assert calls == 16


def test_stepping_continues_where_playing_stopped() -> None:
    played, stepped = learner_of("CartPole-v1", num_steps=300), learner_of("CartPole-v1", True, num_steps=300)
    for learner in (played, stepped):
        learner.agent.collect(learner.envs, 0)
    assert played.envs.episode.min() > classic.BLOCK // 2
    played.envs.watch(lambda *_: None)
    for number in (1, 2):
        assert_same(*(x.agent.collect(x.envs, number) for x in (played, stepped)))
