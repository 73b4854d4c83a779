"""The replay buffer: content, sampling, n-step returns, and the cost of a checkpoint."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rekindle.tasks.checkpoint import chunks as segments
from rekindle.tasks.checkpoint.state import check_same_form, difference, materialized, pack, unpack
from rekindle.tasks.errors import StateMismatch
from rekindle.tasks.experience.prioritized import FAN, PrioritizedSampler, SumTree
from rekindle.tasks.experience.replay_buffer import Field, ReplayBuffer, RingForm, UniformSampler, transition_fields
from rekindle.tasks.rng import streams
from rekindle.tasks.rng.draws import Draws

GAMMA = torch.tensor([[0.5]])


def fill(replay: ReplayBuffer, steps: int, first: int = 0) -> None:
    """Step t of environment n of member p sees 100 p + 10 n + t; rewards are t, every fourth step ends an episode."""
    who = 100 * np.arange(replay.members)[:, None] + 10 * np.arange(replay.num_envs)
    for t in range(first, first + steps):
        obs = (who + t).astype(np.float32)[..., None]
        flags = np.zeros(who.shape, bool)
        replay.add(
            obs=obs,
            next_obs=obs + 1,
            action=np.full(who.shape, t),
            reward=np.full(who.shape, t, np.float32),
            terminated=flags | (t % 8 == 3),
            truncated=flags | (t % 8 == 7),
        )


def memory(capacity: int = 6, members: int = 1, num_envs: int = 1, steps: int = 0) -> ReplayBuffer:
    replay = ReplayBuffer(RingForm(members, capacity, num_envs, transition_fields(Field((1,)), Field((), torch.int64))))
    fill(replay, steps)
    return replay


def keys(*seeds: int) -> streams.Bits:
    return streams.keys(seeds, "replay")


def all_rows(replay: ReplayBuffer) -> np.ndarray:
    return np.tile(np.arange(replay.size * replay.num_envs), (replay.members, 1))


def test_the_ring_keeps_the_newest_transitions_with_what_really_followed() -> None:
    replay = memory(capacity=6, steps=10)
    batch = replay.batch(replay.row(all_rows(replay)), ("obs", "next_obs", "action"))
    assert batch["obs"][0, :, 0].tolist() == [4, 5, 6, 7, 8, 9]
    assert batch["next_obs"][0, :, 0].tolist() == [5, 6, 7, 8, 9, 10]
    assert batch["action"][0].tolist() == [4, 5, 6, 7, 8, 9]
    assert batch["action"].dtype == torch.int64


def test_termination_and_truncation_are_kept_apart() -> None:
    replay = memory(capacity=8, steps=8)
    batch = replay.batch(all_rows(replay), ("terminated", "truncated"))
    assert batch["terminated"][0].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]
    assert batch["truncated"][0].tolist() == [0, 0, 0, 0, 0, 0, 0, 1]


def test_adding_writes_in_place_and_never_moves_what_is_there() -> None:
    replay = memory(capacity=4)
    before = replay.numbers
    fill(replay, 50)
    assert replay.numbers is before


def test_capacity_is_rounded_down_to_whole_steps_and_must_hold_one() -> None:
    assert memory(capacity=7, num_envs=3).slots == 2
    with pytest.raises(ValueError, match="must hold a step of its 3 environments, but has room for 2"):
        memory(capacity=2, num_envs=3)


def test_images_stay_bytes_and_large_integers_stay_exact() -> None:
    obs, action = Field((2, 2, 3), torch.uint8), Field((2,), torch.int64)
    replay = ReplayBuffer(RingForm(2, 4, 2, transition_fields(obs, action)))
    image = np.random.default_rng(0).integers(0, 256, (2, 2, 2, 2, 3), np.uint8)
    actions = np.array([[[1, 2], [3, 4]], [[5, 6], [(1 << 24) - 1, 8]]])
    zero = np.zeros((2, 2), np.float32)
    replay.add(obs=image, next_obs=image + 1, action=actions, reward=zero, terminated=zero, truncated=zero)
    batch = replay.batch(np.array([[0, 1], [0, 1]]), ("obs", "next_obs", "action"))
    assert batch["obs"].dtype == torch.uint8
    assert batch["obs"].numpy().tolist() == image.tolist()
    assert batch["next_obs"].numpy().tolist() == (image + 1).tolist()
    assert batch["action"].tolist() == actions.tolist()


def test_boxes_of_several_axes_come_back_in_their_shape() -> None:
    replay = ReplayBuffer(RingForm(1, 4, 2, transition_fields(Field((3,)), Field((2, 2)))))
    actions = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    obs, zero = np.zeros((1, 2, 3), np.float32), np.zeros((1, 2), np.float32)
    replay.add(obs=obs, next_obs=obs, action=actions, reward=zero, terminated=zero, truncated=zero)
    assert replay.batch(np.array([[0, 1]]), ("action",))["action"].tolist() == actions.tolist()


# Drawing


def test_every_transition_is_drawn_equally_often_the_oldest_and_the_newest_too() -> None:
    replay = memory(capacity=10, num_envs=2, steps=13)
    sampler = UniformSampler(replay, keys(1), 100, n_step=1)
    counts = np.bincount(np.concatenate([sampler.rows(i)[0] for i in range(100)]), minlength=10)
    assert len(counts) == 10
    assert abs(counts - 1000).max() < 5 * 1000**0.5


def test_draws_depend_on_the_members_own_stream_only() -> None:
    three, one = memory(members=3, steps=6), memory(steps=6)
    together = UniformSampler(three, keys(4, 5, 6), 8, n_step=1)
    alone = UniformSampler(one, keys(5), 8, n_step=1)
    for draw in (0, 1, 700, 3):
        assert together.rows(draw)[1].tolist() == alone.rows(draw)[0].tolist()


def test_numbers_by_position_do_not_depend_on_what_was_asked_before() -> None:
    draws, again = Draws(keys(1, 2), (3, 2)), Draws(keys(1, 2), (3, 2))
    forward = [draws(i).copy() for i in range(2000)]
    for i in (1999, 5, 700):
        assert again(i).tolist() == forward[i].tolist()
    assert len({x for block in forward for x in block.reshape(-1)}) == 2000 * 12


def test_transitions_with_too_few_followers_are_not_drawn() -> None:
    replay = memory(capacity=6, steps=9)
    sampler = UniformSampler(replay, keys(1), 200, n_step=3)
    seen = replay.batch(sampler.rows(0), ("action",))["action"]
    assert sorted(set(seen[0].tolist())) == [3, 4, 5, 6]  # of 3..8


def test_a_cleared_memory_begins_again() -> None:
    replay = memory(capacity=6, steps=9)
    replay.clear()
    assert replay.size == 0
    fill(replay, 2, first=20)
    rows = UniformSampler(replay, keys(1), 50, n_step=1).rows(0)
    assert set(replay.batch(rows, ("action",))["action"][0].tolist()) == {20, 21}


# Returns


def test_a_three_step_return_by_hand() -> None:
    replay = memory(capacity=16, steps=12)
    batch = replay.returns(np.array([[0, 1, 2, 3, 5, 7, 8]]), GAMMA, 3)
    # t = 3 terminates, t = 7 is truncated; rewards are t, gamma is 1/2
    assert batch["reward"][0].tolist() == [0 + 0.5 + 0.5, 1 + 1 + 0.75, 2 + 1.5, 3, 5 + 3 + 1.75, 7, 8 + 4.5 + 2.5]
    assert batch["discount"][0].tolist() == [0.125, 0, 0, 0, 0.125, 0.5, 0.125]
    assert batch["next_obs"][0, :, 0].tolist() == [3, 4, 4, 4, 8, 8, 11]


def test_a_truncation_bootstraps_and_a_termination_does_not() -> None:
    replay = memory(capacity=16, steps=8)
    batch = replay.returns(np.array([[3, 7]]), GAMMA, 1)
    assert batch["discount"][0].tolist() == [0, 0.5]


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 6), st.integers(1, 3), st.integers(0, 40))
def test_n_step_returns_equal_a_loop_over_time(n: int, num_envs: int, more: int) -> None:
    replay = memory(capacity=12 * num_envs, members=2, num_envs=num_envs, steps=n + more)
    sampler = UniformSampler(replay, keys(1, 2), 16, n)
    rows = sampler.rows(more)
    gamma = torch.tensor([[0.5], [0.25]])
    batch = replay.returns(rows, gamma, n)
    first = replay.batch(rows, ("action",))["action"]
    for p in range(2):
        for i in range(16):
            t, total, factor = int(first[p, i]), 0.0, 1.0
            for _ in range(n):
                total, factor = total + factor * t, factor * float(gamma[p, 0])
                t += 1
                if t % 4 == 0:
                    break
            assert batch["reward"][p, i] == total
            assert batch["discount"][p, i] == (0 if t % 8 == 4 else factor)
            assert batch["next_obs"][p, i, 0] == batch["obs"][p, i, 0] + t - first[p, i]


def test_a_return_ends_where_environments_were_rebuilt() -> None:
    replay = memory(capacity=16, steps=2)
    replay.truncate_all()
    fill(replay, 1, first=2)
    batch = replay.returns(np.array([[0]]), GAMMA, 3)
    assert batch["reward"].tolist() == [[0.5]]
    assert batch["discount"].tolist() == [[0.25]]
    assert batch["next_obs"].tolist() == [[[2]]]


# Priorities


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 3 * FAN * FAN), st.integers(0, 10**6))
def test_the_sum_tree_finds_what_a_running_sum_finds(leaves: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tree = SumTree(2, leaves)
    values = rng.integers(0, 4, (2, leaves)).astype(float)  # whole numbers, so that sums are exact in any order
    values[:, rng.integers(leaves)] = 3
    tree.set(np.tile(np.arange(leaves), (2, 1)), values)
    assert tree.total[:, 0].tolist() == values.sum(1).tolist()
    targets = rng.random((2, 20)) * tree.total
    result = tree.find(targets)
    for p in range(2):
        expected = np.searchsorted(values[p].cumsum(), targets[p], side="right")
        assert result[p].tolist() == expected.tolist()
    assert (tree[result] > 0).all()


def test_rounding_never_leads_to_a_leaf_of_no_weight() -> None:
    tree = SumTree(1, 3 * FAN)
    tree.set(np.arange(5)[None], np.array([[0.1, 0.2, 0.3, 1e-9, 0.7]]))
    assert (tree[tree.find(np.array([[tree.total[0, 0], 2.0, 0.0]]))] > 0).all()


def test_a_tree_is_a_function_of_its_leaves() -> None:
    rng = np.random.default_rng(0)
    tree, other = SumTree(2, 5000), SumTree(1, 5000)
    for _ in range(50):
        tree.set(rng.integers(0, 5000, (2, 64)), rng.random((2, 64)))
    other.load_leaves(0, tree.member_leaves(1))
    for level, loaded in zip(tree.levels, other.levels, strict=True):
        assert level[1].tobytes() == loaded[0].tobytes()
    tree.clear()
    assert tree.total.tolist() == [[0], [0]]


def prioritized(replay: ReplayBuffer, batch_size: int = 400, n_step: int = 1, **hp: float) -> PrioritizedSampler:
    values = {"alpha": 1.0, "beta": 1.0, "beta_horizon": 100.0, "eps": 1e-6, **hp}
    columns = SimpleNamespace(**{name: torch.full((replay.members, 1), value) for name, value in values.items()})
    return PrioritizedSampler(replay, streams.keys(range(replay.members), "replay"), batch_size, n_step, columns)


def test_transitions_are_drawn_in_proportion_to_their_priority() -> None:
    sampler = prioritized(memory(capacity=6, steps=4))
    rows = sampler.rows(0)
    assert np.bincount(rows[0]).tolist() == [100] * 4  # new ones are alike, and draws are stratified
    sampler.update(np.array([[0, 1, 2, 3]]), torch.tensor([[1.0, -3.0, 0.0, 4.0]]))
    counts = np.bincount(sampler.rows(1)[0], minlength=4)
    assert abs(counts - np.array([50, 150, 0, 200])).max() <= 1


def test_the_power_alpha_flattens_priorities() -> None:
    sampler = prioritized(memory(capacity=2, steps=2), alpha=0.5)
    sampler.rows(0)
    sampler.update(np.array([[0, 1]]), torch.tensor([[1.0, 9.0]]))
    assert abs(np.bincount(sampler.rows(1)[0]) - np.array([100, 300])).max() <= 1


def test_importance_weights_undo_the_priorities_as_beta_grows() -> None:
    sampler = prioritized(memory(capacity=2, steps=2), beta=0.5)
    rows = sampler.rows(0)[:, :2] * 0 + np.array([[0, 1]])
    sampler.update(rows, torch.tensor([[1.0, 4.0]]))
    assert sampler.weights(rows, 0)[0].tolist() == pytest.approx([1, 0.5], rel=1e-5)  # (1/4) ** 0.5
    assert sampler.weights(rows, 50)[0].tolist() == pytest.approx([1, 0.25**0.75], rel=1e-5)
    assert sampler.weights(rows, 1000)[0].tolist() == pytest.approx([1, 0.25], rel=1e-5)


def test_a_new_transition_gets_the_largest_priority_so_far_once_its_return_is_whole() -> None:
    replay = memory(capacity=6, steps=4)
    sampler = prioritized(replay, n_step=2)
    assert set(sampler.rows(0)[0].tolist()) == {0, 1, 2}
    sampler.update(np.array([[0]]), torch.tensor([[7.0]]))
    fill(replay, 1, first=4)
    sampler.enter()
    assert sampler.tree.member_leaves(0).tolist() == pytest.approx([7, 1, 1, 7, 0, 0])
    fill(replay, 3, first=5)  # over the oldest two
    sampler.enter()
    assert sampler.tree.member_leaves(0).tolist() == pytest.approx([7, 0, 1, 7, 7, 7])


def test_cleared_transitions_are_not_drawn_by_priority() -> None:
    replay = memory(capacity=6, steps=6)
    sampler = prioritized(replay)
    sampler.rows(0)
    replay.clear()
    fill(replay, 2, first=6)
    assert set(sampler.rows(1)[0].tolist()) == {0, 1}


# State


def large(members: int = 1) -> ReplayBuffer:
    return memory(capacity=200_000, members=members, steps=0)


def grow(replay: ReplayBuffer, steps: int) -> None:
    """Writes many steps at once, as many calls of add would."""
    slots = np.arange(replay.steps, replay.steps + steps) % replay.slots
    replay.numbers[:, slots] = np.arange(replay.steps, replay.steps + steps, dtype=np.float32)[:, None, None]
    replay.steps += steps


def test_a_checkpoint_makes_only_the_segments_that_changed() -> None:
    replay = large()
    first = pack(replay.member_state(0))
    assert len(first.blobs) == 2  # all blank ones are one, and the last is shorter
    stored = dict(first.blobs)
    for steps, new in ((100, 1), (100, 1), (60_000, 2), (140_000, 5), (10, 1), (200_000, 5)):  # of 5
        grow(replay, steps)
        live = replay.member_state(0)
        packed = pack(live)
        made = packed.blobs.created if isinstance(packed.blobs, segments.Blobs) else packed.blobs
        assert len(made) == new
        stored |= made
        assert packed.digest == pack(materialized(live)).digest
        assert difference(unpack(packed.manifest, stored.__getitem__), live) == []
        assert dict(packed.blobs).keys() == dict(pack(materialized(live)).blobs).keys()


def test_nothing_new_costs_nothing() -> None:
    replay = large()
    grow(replay, 1000)
    pack(replay.member_state(0))
    packed = pack(replay.member_state(0))
    assert isinstance(packed.blobs, segments.Blobs)
    assert len(packed.blobs.created) == 0
    assert len(packed.blobs) == len(list(packed.blobs)) == 3


def test_a_blob_that_is_read_too_late_is_refused() -> None:
    replay = large()
    pack(replay.member_state(0))
    packed = pack(replay.member_state(0))
    grow(replay, 200_000)
    with pytest.raises(StateMismatch, match="must be read before training continues"):
        dict(packed.blobs)


def test_a_materialized_state_does_not_change_any_more() -> None:
    replay = memory(steps=3)
    state = materialized(replay.member_state(0))
    kept = state["numbers"].clone()
    fill(replay, 3, first=3)
    assert torch.equal(state["numbers"], kept)


def test_a_member_moves_with_its_known_segments() -> None:
    two, one = large(members=2), large()
    grow(two, 5000)
    pack(two.member_state(1))
    one.load_member(0, two.member_state(1))
    assert one.numbers[0].tobytes() == two.numbers[1].tobytes()
    packed = pack(one.member_state(0))
    assert isinstance(packed.blobs, segments.Blobs)
    assert len(packed.blobs.created) == 0
    grow(one, 1)
    grow(two, 2)
    assert pack(one.member_state(0)).digest == pack(materialized(one.member_state(0))).digest
    assert pack(two.member_state(1)).digest == pack(materialized(two.member_state(1))).digest


def test_a_cut_is_not_forgotten_by_the_next_checkpoint() -> None:
    replay = large()
    grow(replay, 1000)
    pack(replay.member_state(0))
    replay.truncate_all()
    assert pack(replay.member_state(0)).digest == pack(materialized(replay.member_state(0))).digest


def test_a_cut_of_nothing_changes_nothing() -> None:
    replay, untouched = large(), large()
    replay.truncate_all()
    assert pack(replay.member_state(0)).digest == pack(materialized(untouched.member_state(0))).digest
    assert difference(replay.member_state(0), untouched.member_state(0)) == []


def test_a_plain_state_loads_as_well_as_a_live_one() -> None:
    replay, other = memory(steps=9), memory()
    packed = pack(replay.member_state(0))
    tree = unpack(packed.manifest, packed.blobs.__getitem__)
    check_same_form(other.member_state(0), tree, "memory")
    other.load_member(0, tree)
    assert difference(other.member_state(0), replay.member_state(0)) == []


def test_members_at_different_steps_are_refused() -> None:
    replay, other = memory(members=2, steps=3), memory(steps=4)
    with pytest.raises(StateMismatch, match="must be at the same step"):
        replay.load_member(1, other.member_state(0))
