"""Vectorized classic control: independent members, limits, statistics, and states."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from rekindle.tasks.checkpoint import state
from rekindle.tasks.envs import Envs, EnvSpec, make_envs
from rekindle.tasks.envs.base.actions import Actions
from rekindle.tasks.envs.classic.dynamics import MODELS
from rekindle.tasks.envs.classic.envs import BLOCK, ClassicEnvs, CompiledClassicEnvs, classic_envs
from rekindle.tasks.errors import StateMismatch
from rekindle.tasks.rng import streams

IDS = sorted(MODELS)
SEEDS = [3, 1, 4, 15, 9]


def choose(envs: Envs, step: int, seeds: list[int]) -> np.ndarray:
    """Random actions that depend on a member's seed and the step only."""
    draws = streams.uniform(streams.keys(seeds, "act")[:, None], step * envs.num_envs + np.arange(envs.num_envs))
    return (
        Actions(envs.action_space, "test")
        .pick(draws.reshape(-1)[:, None])
        .reshape(len(seeds), envs.num_envs, *envs.action_space.shape)
    )


def run(envs: Envs, seeds: list[int], begin: int, end: int) -> list[np.ndarray]:
    """All that is seen from one step to another, as float64 (T, P, N, ...) arrays."""
    seen = [[x.astype(np.float64) for x in (*envs.step(choose(envs, k, seeds)), envs.obs)] for k in range(begin, end)]
    return [np.stack(parts) for parts in zip(*seen, strict=True)]


@pytest.mark.parametrize("id", IDS)
def test_a_member_of_five_equals_the_same_member_alone(id: str) -> None:
    cohort = make_envs(id, SEEDS, 3)
    together = run(cohort, SEEDS, 0, 250)
    for i, seed in enumerate(SEEDS):
        alone = make_envs(id, [seed], 3)
        assert all(np.array_equal(x[:, i], y[:, 0]) for x, y in zip(together, run(alone, [seed], 0, 250), strict=True))
        assert state.difference(cohort.member_state(i), alone.member_state(0)) == []


@pytest.mark.parametrize("id", IDS)
def test_a_member_resumes_elsewhere_bit_for_bit(id: str) -> None:
    envs, other = make_envs(id, SEEDS, 3), make_envs(id, [77, 15], 3)
    run(envs, SEEDS, 0, 230)
    run(other, [77, 15], 0, 31)
    tree = envs.member_state(3)
    neighbour = other.member_state(0)
    other.load_member(1, state.unpack((packed := state.pack(tree)).manifest, packed.blobs.__getitem__))
    assert np.array_equal(other.obs[1], envs.obs[3])
    assert state.difference(other.member_state(1), tree) == []
    assert state.difference(other.member_state(0), neighbour) == []
    want, got = run(envs, SEEDS, 230, 600), run(other, [77, 15], 230, 600)
    assert all(np.array_equal(x[:, 3], y[:, 1]) for x, y in zip(want, got, strict=True))
    assert state.difference(other.member_state(1), envs.member_state(3)) == []


@pytest.mark.parametrize("id", IDS)
def test_it_is_the_environment_that_gymnasium_registers(id: str) -> None:
    envs, spec = make_envs(id, [1], 1), gym.spec(id)
    assert isinstance(envs, ClassicEnvs)
    assert envs.limit == spec.max_episode_steps
    env = gym.make(spec)
    assert (envs.obs_space, envs.action_space) == (env.observation_space, env.action_space)
    starts = np.array([env.reset(seed=seed)[0] for seed in range(300)])
    assert np.allclose(starts.min(0), envs_starts(id).min(0), atol=0.05)
    assert np.allclose(starts.max(0), envs_starts(id).max(0), atol=0.05)


def envs_starts(id: str) -> np.ndarray:
    return make_envs(id, [1, 2], 150).obs.reshape(300, -1)


def test_starts_differ_between_seeds_environments_episodes_and_purposes() -> None:
    starts = set()
    for purpose in ("train", "evaluation"):
        envs = make_envs(EnvSpec("CartPole-v1", max_episode_steps=1), [1, 2], 3, purpose)
        for _ in range(2 * BLOCK + 2):
            starts |= {obs.tobytes() for obs in envs.obs.reshape(6, 4)}
            envs.step(np.zeros((2, 3), np.int64))
    assert len(starts) == 2 * 6 * (2 * BLOCK + 2)


def test_a_limit_truncates_and_a_fall_terminates() -> None:
    envs = make_envs(EnvSpec("CartPole-v1", max_episode_steps=6), [1], 2)
    ends = [envs.step(np.array([[0, k % 2]])) for k in range(20)]
    assert [k for k, step in enumerate(ends) if step.truncated[0, 1]] == [5, 11, 17]
    assert not any(step.terminated.any() for step in ends)
    free = make_envs("CartPole-v1", [1], 2)
    step = next(step for _ in range(12) if (step := free.step(np.zeros((1, 2), np.int64))).terminated.any())
    assert not step.truncated.any()
    assert (np.abs(step.next_obs[step.terminated][:, 2]) > 0.2).all()
    assert (np.abs(free.obs[step.terminated]) <= 0.05).all()


def test_next_obs_is_the_last_one_and_obs_the_first_of_the_next_episode() -> None:
    envs = make_envs(EnvSpec("MountainCar-v0", max_episode_steps=3), [1], 2)
    for k in range(7):
        step = envs.step(np.full((1, 2), 2))
        assert (step.next_obs[..., 1] != 0).all()
        assert (envs.obs[..., 1] == 0).all() == ((k + 1) % 3 == 0)
        assert step.reward.dtype == step.next_obs.dtype == np.float32


def test_tallies_are_of_finished_episodes_since_they_were_taken() -> None:
    envs = make_envs(EnvSpec("Pendulum-v1", max_episode_steps=5), [1, 2], 2)
    actions = np.zeros((2, 2, 1), np.float32)
    total = np.zeros(2)
    for k in range(12):
        reward = envs.step(actions).reward.astype(np.float64)
        total += reward.sum(1) if k < 10 else 0
        if k == 6:
            assert envs.episodes.count.tolist() == [2, 2]
    tally = envs.take_episodes()
    assert tally.count.tolist() == [4, 4]
    assert tally.length_sum.tolist() == [20, 20]
    assert np.allclose(tally.return_sum, total)
    assert envs.take_episodes().count.tolist() == [0, 0]


def test_looking_at_the_tallies_does_not_change_them() -> None:
    looked, left = (make_envs(EnvSpec("Pendulum-v1", max_episode_steps=7), [1], 5) for _ in range(2))
    for k in range(100):
        for envs in (looked, left):
            envs.step(choose(envs, k, [1]))
        looked.member_state(0)
    assert state.difference(looked.member_state(0), left.member_state(0)) == []


@pytest.mark.parametrize("id", IDS)
def test_reset_is_as_newly_made(id: str) -> None:
    envs = make_envs(id, [5], 2)
    first = run(envs, [5], 0, 300)
    envs.reset()
    assert all(np.array_equal(x, y) for x, y in zip(first, run(envs, [5], 0, 300), strict=True))


def test_torques_are_clipped() -> None:
    strong, weak = make_envs("Pendulum-v1", [1], 1), make_envs("Pendulum-v1", [1], 1)
    a, b = (e.step(np.full((1, 1, 1), t, np.float32)) for e, t in ((strong, -7.0), (weak, -2.0)))
    assert np.array_equal(a.next_obs, b.next_obs)
    assert np.array_equal(a.reward, b.reward)


def test_wrong_actions_and_states_are_refused() -> None:
    envs = make_envs("CartPole-v1", [1, 2], 3)
    with pytest.raises(
        ValueError, match=r"actions for Discrete\(2\) must be integers of shape \(2, 3\), but got float32"
    ):
        envs.step(np.zeros((2, 3), np.float32))
    with pytest.raises(StateMismatch, match=r"CartPole-v0.*cannot be loaded into.*CartPole-v1"):
        envs.load_member(0, make_envs("CartPole-v0", [1], 3).member_state(0))
    with pytest.raises(StateMismatch, match="2 environments does not fit 3"):
        envs.load_member(0, make_envs("CartPole-v1", [1], 2).member_state(0))
    with pytest.raises(IndexError, match=r"0\.\.1, but got 2"):
        envs.member_state(2)
    with pytest.raises(ValueError, match="at least, but got 0 and 3"):
        make_envs("CartPole-v1", [], 3)


@pytest.mark.parametrize("id", IDS)
def test_compiled_equations_have_the_bits_of_the_plain_ones(id: str) -> None:
    compiled, plain = classic_envs(EnvSpec(id), SEEDS, 3, "train"), ClassicEnvs(EnvSpec(id), SEEDS, 3, "train")
    assert isinstance(compiled, CompiledClassicEnvs)
    for one, other in zip(run(compiled, SEEDS, 0, 520), run(plain, SEEDS, 0, 520), strict=True):
        assert np.array_equal(one, other)
    assert all(state.difference(compiled.member_state(i), plain.member_state(i)) == [] for i, _ in enumerate(SEEDS))
