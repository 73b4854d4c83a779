"""Rollouts of classic control by tensors, here on the CPU, against the environments' own steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rekindle import A2C, EnvSpec
from rekindle.tasks.compiled.loading import without_kernels

NAMES = ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"]
SPECS = [*map(EnvSpec, NAMES), EnvSpec("CartPole-v1", max_episode_steps=9), EnvSpec("Pendulum-v1", max_episode_steps=7)]


def learner(env: EnvSpec) -> Any:
    with without_kernels():
        return A2C(env, seed=1).init(num_steps=40, num_envs=3, epoch_steps=240, normalize_reward=False)._new_learner()


@pytest.mark.parametrize("env", SPECS, ids=str)
def test_a_rollout_by_tensors_is_the_rollout_step_by_step(env: EnvSpec) -> None:
    stepped, played = learner(env), learner(env)
    for iteration in range(3):
        wanted = stepped.agent.collect(stepped.envs, iteration, True)
        result = played.agent.play_on_device(played.envs, played.agent.noise(iteration), True)
        for name in ("obs", "next_obs", "actions", "rewards", "terminated", "ended"):
            assert torch.allclose(getattr(result, name).float(), getattr(wanted, name).float(), atol=1e-3), name
        for (t, mask, final), (at, cut, last) in zip(result.truncations, wanted.truncations, strict=True):
            assert t == at
            assert (mask == cut).all()
            assert np.allclose(final[mask], last[cut], atol=1e-3)
        assert np.allclose(played.envs.obs, stepped.envs.obs, atol=1e-3)
    episodes, wanted = played.envs.take_episodes(), stepped.envs.take_episodes()
    assert episodes.count.tolist() == wanted.count.tolist()
    assert episodes.length_sum.tolist() == wanted.length_sum.tolist()
    assert np.allclose(episodes.return_sum, wanted.return_sum, rtol=1e-4)
    states = played.envs.member_state(0), stepped.envs.member_state(0)
    for name in ("episode", "elapsed"):
        assert states[0][name].tolist() == states[1][name].tolist()


def test_a_rollout_by_tensors_continues_from_a_loaded_state() -> None:
    whole, first, second = learner(SPECS[-2]), learner(SPECS[-2]), learner(SPECS[-2])
    rollouts = [whole.agent.play_on_device(whole.envs, whole.agent.noise(i), True).obs.clone() for i in range(2)]
    first.agent.play_on_device(first.envs, first.agent.noise(0), True)
    second.envs.load_member(0, first.envs.member_state(0))
    again = second.agent.play_on_device(second.envs, second.agent.noise(1), True)
    assert torch.equal(again.obs, rollouts[1])


def test_environments_that_are_watched_are_stepped() -> None:
    watched = learner(SPECS[0])
    watched.envs.watch(lambda *step: None)
    assert watched.agent.play_on_device(watched.envs, watched.agent.noise(0), True) is None
