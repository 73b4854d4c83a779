"""Running statistics against NumPy over the whole stream, for each member."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rekindle.tasks.checkpoint.state import difference, pack, unpack
from rekindle.tasks.experience.normalizers import (
    CLIP,
    PRIOR_WEIGHT,
    ObservationNormalizer,
    RewardNormalizer,
    RunningMoments,
)


def stream(members: int, length: int, size: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    """(P, length, D), every member with other statistics."""
    rng = np.random.default_rng(seed)
    means, scales = rng.normal(size=(2, members, 1, size))
    return (means * 10 + np.exp(scales) * scale * rng.normal(size=(members, length, size))).astype(np.float32)


def moments_of(whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance (P, D) of a stream and of the prior's weight of numbers with mean 0 and variance 1."""
    whole = whole.astype(np.float64)
    count = whole.shape[1]
    mean = whole.sum(1) / (count + PRIOR_WEIGHT)
    square = ((whole**2).sum(1) + PRIOR_WEIGHT) / (count + PRIOR_WEIGHT)
    return mean, square - mean**2


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 100))
def test_merged_moments_are_those_of_the_whole_stream(batches: list[int], seed: int) -> None:
    whole = stream(3, sum(batches), 2, seed)
    moments = RunningMoments(3, 2)
    for end, number in zip(np.cumsum(batches), batches, strict=True):
        moments.update(whole[:, end - number : end])
    mean, variance = moments_of(whole)
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.variance, variance, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(moments.count, sum(batches) + PRIOR_WEIGHT)


def test_the_prior_does_not_show_after_a_few_steps() -> None:
    whole = stream(1, 1000, 3)
    moments = RunningMoments(1, 3)
    for batch in np.split(whole, 10, axis=1):
        moments.update(batch)
    np.testing.assert_allclose(moments.mean, whole.mean(1), rtol=1e-5)
    np.testing.assert_allclose(moments.variance, whole.astype(np.float64).var(1), rtol=1e-4)


def test_a_far_mean_takes_no_digits_from_a_small_variance() -> None:
    whole = 1e6 + np.random.default_rng(0).normal(size=(1, 5000, 1))
    moments = RunningMoments(1, 1)
    moments.count[:] = 0  # without the prior, whose mean of zero is a million deviations away
    for batch in np.split(whole, 50, axis=1):
        moments.update(batch)
    np.testing.assert_allclose(moments.variance, whole.var(1), rtol=1e-6)


def test_observations_are_seen_in_units_of_their_deviation() -> None:
    whole = stream(2, 800, 3)
    normalizer = ObservationNormalizer(2, 3)
    for batch in np.split(whole, 100, axis=1):
        seen = normalizer(batch, learn=True)
    mean, variance = moments_of(whole)
    expected = (batch - mean[:, None]) / np.sqrt(variance + 1e-8)[:, None]
    np.testing.assert_allclose(seen, expected, rtol=1e-4, atol=1e-4)
    assert seen.dtype == np.float32
    assert seen.shape == batch.shape


def test_looking_without_learning_changes_nothing() -> None:
    normalizer = ObservationNormalizer(2, 3)
    normalizer(stream(2, 8, 3), learn=True)
    before = [normalizer.member_state(i) for i in range(2)]
    normalizer(stream(2, 8, 3, seed=1), learn=False)
    assert all(difference(normalizer.member_state(i), before[i]) == [] for i in range(2))


def test_observations_are_clipped() -> None:
    normalizer = ObservationNormalizer(1, 1)
    normalizer(stream(1, 8, 1), learn=True)
    assert normalizer(np.array([[[1e9], [-1e9]]], np.float32), learn=False).flatten().tolist() == [CLIP, -CLIP]


def test_the_first_observation_and_a_constant_one_stay_finite() -> None:
    normalizer = ObservationNormalizer(1, 2)
    for _ in range(50):
        seen = normalizer(np.array([[[3.0, 0.0]]], np.float32), learn=True)
        assert np.isfinite(seen).all()
    assert np.abs(seen).max() < 0.1


def discounted(rewards: np.ndarray, ended: np.ndarray, gamma: np.ndarray) -> np.ndarray:
    """Every environment's discounted return so far, begun again after each end; time first."""
    returns = np.zeros(rewards.shape)
    running = np.zeros(rewards.shape[1:])
    for t in range(len(rewards)):
        running = gamma * running + rewards[t]
        returns[t] = running
        running = np.where(ended[t], 0.0, running)
    return returns


def test_rewards_are_divided_by_the_deviation_of_the_returns_up_to_the_rollouts_end() -> None:
    rng = np.random.default_rng(0)
    gamma = np.array([[0.9], [0.99]])
    rewards = rng.normal(3.0, 1.0, size=(200, 2, 4)).astype(np.float32)
    ended = rng.random((200, 2, 4)) < 0.1
    normalizer = RewardNormalizer(2, 4, gamma)
    returns = discounted(rewards.astype(np.float64), ended, gamma)
    for first, end in itertools.pairwise((0, 1, 11, 139, 200)):  # rollouts of 1, 10, 128 and 61 steps
        scaled = normalizer(rewards[first:end], ended[first:end])
        _, variance = moments_of(returns[:end].transpose(1, 0, 2).reshape(2, -1, 1))
        expected = np.clip(rewards[first:end] / np.sqrt(variance + 1e-8), -CLIP, CLIP)
        np.testing.assert_allclose(scaled, expected, rtol=1e-4)
        assert scaled.dtype == np.float32


def test_the_sign_of_a_reward_is_kept() -> None:
    normalizer = RewardNormalizer(1, 2, np.array([[0.99]]))
    going_on = np.zeros((20, 1, 2), bool)
    scaled = normalizer(np.tile(np.array([1.0, -1.0], np.float32), (20, 1, 1)), going_on)
    assert (scaled[..., 0] > 0).all()
    assert (scaled[..., 1] < 0).all()
    assert not normalizer(np.zeros((20, 1, 2), np.float32), going_on).any()


def test_rare_rewards_are_clipped() -> None:
    rewards = np.zeros((400, 1, 1), np.float32)
    rewards[50] = 1000.0  # 20 deviations
    scaled = RewardNormalizer(1, 1, np.array([[0.0]]))(rewards, np.zeros(rewards.shape, bool))
    assert np.unique(scaled).tolist() == [0.0, CLIP]


@pytest.mark.parametrize("size", [1, 2, 3, 8, 17])
@pytest.mark.parametrize("num_envs", [1, 2, 7, 8, 33])
def test_a_member_equals_the_member_alone_bit_for_bit(size: int, num_envs: int) -> None:
    members, steps = 6, 5
    whole = stream(members, num_envs * steps, size)
    together = ObservationNormalizer(members, size)
    alone = [ObservationNormalizer(1, size) for _ in range(members)]
    for batch in np.split(whole, steps, axis=1):
        seen = together(batch, learn=True)
        for p in range(members):
            assert alone[p](batch[p : p + 1].copy(), learn=True).tobytes() == seen[p].tobytes()
    for p in range(members):
        assert difference(alone[p].member_state(0), together.member_state(p)) == []


@pytest.mark.parametrize("num_envs", [1, 2, 7, 8, 33])
def test_a_members_rewards_are_those_alone_bit_for_bit(num_envs: int) -> None:
    rng = np.random.default_rng(0)
    gamma = rng.uniform(0.9, 1, size=(5, 1))
    together = RewardNormalizer(5, num_envs, gamma)
    alone = [RewardNormalizer(1, num_envs, gamma[p : p + 1]) for p in range(5)]
    for steps in (1, 2, 17, 128):
        rewards, ended = (
            rng.normal(size=(steps, 5, num_envs)).astype(np.float32),
            rng.random((steps, 5, num_envs)) < 0.2,
        )
        scaled = together(rewards, ended)
        for p in range(5):
            mine = alone[p](rewards[:, p : p + 1].copy(), ended[:, p : p + 1].copy())
            assert mine.tobytes() == scaled[:, p].tobytes()


@pytest.mark.parametrize("noun", ["observations", "rewards"])
def test_a_packed_state_continues_at_another_index(noun: str) -> None:
    rng = np.random.default_rng(0)
    make = {
        "observations": lambda members: ObservationNormalizer(members, 3),
        "rewards": lambda members: RewardNormalizer(members, 4, np.full((members, 1), 0.9)),
    }[noun]

    def feed(normalizer: ObservationNormalizer | RewardNormalizer, x: np.ndarray) -> np.ndarray:
        if isinstance(normalizer, RewardNormalizer):
            rollout = x.transpose(2, 0, 1)
            return normalizer(rollout, rollout > 1).transpose(1, 2, 0)
        return normalizer(x, learn=True)

    one, other = make(2), make(3)
    batches = rng.normal(size=(6, 2, 4, 3)).astype(np.float32)
    for batch in batches[:3]:
        feed(one, batch)
        feed(other, np.concatenate([batch, batch[:1]]))
    packed = pack(one.member_state(1))
    other.load_member(0, unpack(packed.manifest, packed.blobs.__getitem__))
    for batch in batches[3:]:
        expected = feed(one, batch)[1]
        assert feed(other, batch[[1, 0, 0]])[0].tobytes() == expected.tobytes()
    assert difference(one.member_state(1), other.member_state(0)) == []


def test_a_state_is_a_copy() -> None:
    normalizer = ObservationNormalizer(1, 2)
    state = normalizer.member_state(0)
    normalizer(stream(1, 8, 2), learn=True)
    assert state["mean"].tolist() == [0, 0]
    state["variance"].zero_()
    assert normalizer.variance.all()
