"""Recorded rollouts in an environment with known values, and the order of minibatches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fakes import Told, place_value
from hypothesis import given
from hypothesis import strategies as st
from rekindle.tasks.envs import Envs, EnvSpec, make_envs
from rekindle.tasks.experience.normalizers import ObservationNormalizer, RewardNormalizer
from rekindle.tasks.experience.returns import gae
from rekindle.tasks.experience.rollout import Agent, Rollout, StepNoise, evaluate_values, permutations, shuffled
from rekindle.tasks.networks.actor_critic import ActorCritic, ActorCriticForm
from rekindle.tasks.networks.distributions import Categorical, Gaussian
from rekindle.tasks.rng import streams
from torch import Tensor

DEVICE = torch.device("cpu")


def corridor(members: int = 1, num_envs: int = 1, limit: int | None = None, **kwargs: Any) -> Envs:
    return make_envs(EnvSpec("fakes:Corridor-v0", kwargs, max_episode_steps=limit), list(range(members)), num_envs)


def walk(envs: Envs, steps: int, action: int = 1, **normalizers: Any) -> Rollout:
    noise = torch.zeros(steps, envs.num_members, envs.num_envs, 2)
    return agent_of(Told(action), noise, **normalizers).collect(envs, 0)


def agent_of(policy: Any, noise: Tensor, **normalizers: Any) -> Agent:
    return Agent(policy, lambda _: noise, lambda *_: lambda _: noise, 1, **normalizers)


def over_time(x: Tensor) -> list[float]:
    return x.reshape(-1).tolist()


def test_a_rollout_records_what_happened() -> None:
    rollout = walk(corridor(length=3), 5)
    assert rollout.obs[0, :, 0, 0].tolist() == [0, 1, 2, 0, 1, 2]
    assert rollout.actions.shape == (1, 5, 1)
    assert over_time(rollout.actions) == [1] * 5
    assert over_time(rollout.rewards) == [1, 2, 3, 1, 2]
    assert over_time(rollout.terminated) == [0, 0, 1, 0, 0]
    assert over_time(rollout.ended) == [0, 0, 1, 0, 0]
    assert rollout.truncations == []


def test_the_next_rollout_begins_where_the_last_one_stopped() -> None:
    envs = corridor(length=10)
    first, second = walk(envs, 3), walk(envs, 3)
    assert torch.equal(second.obs[:, 0], first.obs[:, -1])
    assert over_time(second.rewards) == [4, 5, 6]


def test_a_termination_is_worth_nothing_beyond_it() -> None:
    rollout = walk(corridor(length=3), 4)
    values, next_values = evaluate_values(rollout, place_value)
    assert over_time(values) == [0, 10, 20, 0]
    assert over_time(next_values)[:2] == [10, 20]
    advantages = gae(
        rollout.rewards,
        values,
        next_values,
        rollout.terminated,
        rollout.ended,
        gamma=torch.tensor([[0.5]]),
        gae_lambda=torch.tensor([[0.0]]),
    )
    assert over_time(advantages) == [1 + 5 - 0, 2 + 10 - 10, 3 + 0 - 20, 1 + 5 - 0]


def test_a_truncation_is_worth_the_value_of_the_final_observation() -> None:
    rollout = walk(corridor(length=10, limit=3), 4)
    assert over_time(rollout.terminated) == [0, 0, 0, 0]
    assert over_time(rollout.ended) == [0, 0, 1, 0]
    values, next_values = evaluate_values(rollout, place_value)
    assert over_time(values) == [0, 10, 20, 0]
    assert over_time(next_values) == [10, 20, 30, 10]  # 30 of place 3, not 0 of the next episode's place 0
    advantages = gae(
        rollout.rewards,
        values,
        next_values,
        rollout.terminated,
        rollout.ended,
        gamma=torch.tensor([[0.5]]),
        gae_lambda=torch.tensor([[1.0]]),
    )
    assert advantages[2].item() == 3 + 15 - 20
    assert advantages[1].item() == (2 + 10 - 10) + 0.5 * advantages[2].item()
    assert advantages[3].item() == 1 + 5 - 0


def test_an_episode_that_ends_both_ways_at_once_is_terminated() -> None:
    rollout = walk(corridor(length=3, limit=3), 4)
    assert over_time(rollout.terminated) == [0, 0, 1, 0]
    assert rollout.truncations == []


def test_a_truncation_at_the_last_step_is_valued_too() -> None:
    rollout = walk(corridor(length=10, limit=4), 4)
    _, next_values = evaluate_values(rollout, place_value)
    assert over_time(next_values) == [10, 20, 30, 40]


def test_cuts_of_many_members_find_their_places() -> None:
    """Members with other first places, some terminated and some truncated, against one at a time."""
    envs = corridor(members=4, num_envs=3, length=6, spread=6, limit=4)
    rollout = walk(envs, 11)
    values, next_values = evaluate_values(rollout, place_value)
    assert 0 < rollout.terminated.sum() < rollout.ended.sum()
    places = rollout.obs[:, :-1, :, 0].transpose(0, 1)
    torch.testing.assert_close(values, 10 * places)
    alive = rollout.terminated == 0
    torch.testing.assert_close(next_values[alive], 10 * (places + 1)[alive])


def test_a_members_values_do_not_depend_on_the_cuts_of_the_others() -> None:
    hp = SimpleNamespace(width=16, layers=1, activation="tanh", std_init=torch.ones(1, 1), memory="none")
    vars(hp).update(hidden=None, critic_hidden=None, shared_critic=False, encoder="nature")

    def run(seeds: list[int]) -> tuple[Rollout, Tensor, Tensor]:
        envs = make_envs(EnvSpec("fakes:Corridor-v0", {"length": 7, "spread": 7}, max_episode_steps=5), seeds, 3)
        policy = ActorCritic(ActorCriticForm(envs.obs_shape, envs.action_space, hp, "test"), seeds)
        noise = StepNoise(streams.keys(seeds, "action"), policy.distribution, 30, 3, DEVICE)
        rollout = agent_of(policy, noise(0)).collect(envs, 0)
        return rollout, *evaluate_values(rollout, policy.value)

    together, values, next_values = run([0, 1, 2, 3, 4])
    assert len(together.truncations) > 1
    for seed in (0, 3, 4):
        alone, mine, next_mine = run([seed])
        assert torch.equal(alone.actions[0], together.actions[seed])
        assert torch.equal(alone.obs[0], together.obs[seed])
        assert torch.equal(mine[:, 0], values[:, seed])
        assert torch.equal(next_mine[:, 0], next_values[:, seed])


def test_the_policy_sees_normalized_observations_and_final_ones_teach_nothing() -> None:
    envs = corridor(length=10, limit=3)
    normalizer, twin = ObservationNormalizer(1, 2), ObservationNormalizer(1, 2)
    rollout = walk(envs, 4, obs_normalizer=normalizer)
    places = [0.0, 1.0, 2.0, 0.0]
    for t, place in enumerate(places):
        seen = twin(np.array([[[place, 1.0]]], np.float32), learn=True)
        assert rollout.obs[0, t].tolist() == seen[0].tolist()
        if t == 2:
            final = twin(np.array([[[3.0, 1.0]]], np.float32), learn=False)
    assert normalizer.mean.tolist() == twin.mean.tolist()
    ((step, mask, seen),) = rollout.truncations
    assert (step, mask.tolist()) == (2, [[True]])
    assert seen.tolist() == final.tolist()
    assert rollout.obs[0, 4].tolist() == twin(np.array([[[1.0, 1.0]]], np.float32), learn=False)[0].tolist()


def test_rewards_of_a_rollout_are_normalized() -> None:
    normalizer, twin = (RewardNormalizer(1, 1, np.array([[0.9]])) for _ in range(2))
    rollout = walk(corridor(length=3), 5, reward_normalizer=normalizer)
    rewards = np.array([1, 2, 3, 1, 2], np.float32).reshape(5, 1, 1)
    assert over_time(rollout.rewards) == twin(rewards, rewards == 3).reshape(-1).tolist()


def test_a_policy_of_nan_acts_without_a_crash() -> None:
    dist = Gaussian((1,))
    envs = make_envs("Pendulum-v1", [1], 2)
    policy: Any = Told(1)
    policy.distribution, policy.params = dist, torch.full((2,), torch.nan)
    rollout = agent_of(policy, torch.zeros(3, 1, 2, 1)).collect(envs, 0)
    assert rollout.obs.isfinite().all()


# Noise


def noise_of(seeds: list[int], steps: int = 4) -> StepNoise:
    """The noise of choices of two in rollouts of three environments."""
    return StepNoise(streams.keys(seeds, "action"), Categorical(2), steps, 3, DEVICE)


def test_noise_continues_from_one_iteration_to_the_next() -> None:
    halves, whole = (noise_of([1, 2], steps) for steps in (4, 8))
    torch.testing.assert_close(torch.cat([halves(0), halves(1)]), whole(0))


def test_a_members_noise_is_its_own() -> None:
    together = noise_of([1, 2, 3])(5)
    assert together.shape == (4, 3, 3, 2)
    for member, seed in enumerate((1, 2, 3)):
        alone = noise_of([seed])(5)
        assert torch.equal(alone[:, 0], together[:, member])
    assert len(together.unique()) == together.numel()


# Minibatches


@given(st.integers(0, 50), st.integers(1, 4), st.integers(1, 40), st.integers(1, 3))
def test_permutations_are_permutations(iteration: int, epochs: int, size: int, members: int) -> None:
    order = permutations(streams.keys(range(members), "order"), iteration, epochs, size)
    assert order.shape == (epochs, members, size)
    assert (np.sort(order, -1) == np.arange(size)).all()


def test_permutations_differ_between_members_epochs_and_iterations() -> None:
    keys = streams.keys(range(3), "order")
    rows = np.concatenate([permutations(keys, i, 4, 50).reshape(-1, 50) for i in range(3)])
    assert len({tuple(row) for row in rows.tolist()}) == 36


def test_a_members_permutation_is_its_own() -> None:
    together = permutations(streams.keys([1, 2, 3], "order"), 7, 2, 33)
    for member, seed in enumerate((1, 2, 3)):
        alone = permutations(streams.keys([seed], "order"), 7, 2, 33)
        assert alone[:, 0].tolist() == together[:, member].tolist()


def test_every_order_is_equally_likely() -> None:
    rows = np.concatenate([permutations(streams.keys([1], "order"), i, 100, 3)[:, 0] for i in range(120)])
    counts = np.unique(rows @ [9, 3, 1], return_counts=True)[1]
    assert len(counts) == 6
    assert ((counts - 2000) ** 2 / 2000).sum() < 20.5  # 5 degrees of freedom, one in a thousand


@pytest.mark.parametrize(("size", "parts"), [(12, 4), (12, 1), (12, 12), (5, 5)])
def test_minibatches_cover_every_row_once(size: int, parts: int) -> None:
    members = 3
    rows = torch.arange(members * size).view(members, size)
    batch = {"row": rows, "obs": torch.stack([rows, -rows], -1).float()}
    order = permutations(streams.keys(range(members), "order"), 0, 1, size)[0]
    minibatches = list(shuffled(batch, order, parts))
    assert len(minibatches) == parts
    for part in minibatches:
        assert part["row"].shape == (members, size // parts)
        assert part["obs"].shape == (members, size // parts, 2)
        assert torch.equal(part["obs"][..., 0], part["row"].float())
        assert all(x.is_contiguous() for x in part.values())
    whole = torch.cat([part["row"] for part in minibatches], 1)
    assert torch.equal(whole.sort(1).values, rows)
    assert torch.equal(whole, rows.gather(1, order))
