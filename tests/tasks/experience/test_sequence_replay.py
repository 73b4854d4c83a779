"""Sequences from the replay buffer: content, possible starts, and masks."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rekindle.tasks.checkpoint.state import difference, materialized
from rekindle.tasks.experience.replay_buffer import Field, ReplayBuffer, RingForm, transition_fields
from rekindle.tasks.experience.sequence_replay import Sequences
from rekindle.tasks.rng import streams

LENGTH, BURN_IN = 4, 3


def fill(sequences: Sequences, steps: int) -> None:
    """Step t sees 1000 p + 100 n + t and remembers its negative; t % 10 = 3 terminates, t % 10 = 7 truncates."""
    replay = sequences.replay
    who = 1000 * np.arange(replay.members)[:, None] + 100 * np.arange(replay.num_envs)
    for t in range(replay.steps, replay.steps + steps):
        obs = (who + t).astype(np.float32)[..., None]
        sequences.remember(-torch.from_numpy(obs).expand(-1, -1, 2))
        no = np.zeros(who.shape, bool)
        replay.add(
            obs=obs,
            next_obs=obs + 1,
            action=np.full(who.shape, t),
            reward=np.full(who.shape, t, np.float32),
            terminated=no | (t % 10 == 3),
            truncated=no | (t % 10 == 7),
        )


def memory(steps: int, slots: int = 20, members: int = 1, envs: int = 1, n: int = 1, batch: int = 8) -> Sequences:
    fields = transition_fields(Field((1,)), Field((), torch.int64))
    replay = ReplayBuffer(RingForm(members, slots * envs, envs, fields))
    keys = streams.keys(range(members), "replay")
    model = SimpleNamespace(sequence_length=LENGTH, burn_in=BURN_IN)
    made = Sequences(replay, keys, 2, SimpleNamespace(model=model, batch_size=batch * LENGTH, n_step=n))
    fill(made, steps)
    return made


GAMMA = torch.tensor([[0.5]])


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("steps", [15, 20, 47, 50])
def test_a_sequence_is_what_happened(n: int, steps: int) -> None:
    made = memory(steps, members=2, envs=3, n=n)
    batch = made.batch(0, torch.tensor([[0.5], [0.25]]))
    assert batch["obs"].shape == (2, 8, BURN_IN + LENGTH + n, 1)
    for p in range(2):
        for b in range(8):
            seen = batch["obs"][p, b, :, 0]
            who, t = divmod(int(seen[0]), 100)
            assert who // 10 == p
            assert who % 10 < 3
            assert t % LENGTH == 0
            assert t >= steps - made.replay.slots
            assert t + len(seen) <= steps + 1
            assert (seen - seen[0]).tolist() == list(range(len(seen)))
            assert batch["memory"][p, b].tolist() == [-float(seen[0])] * 2
            ended = [(t + i - 1) % 10 in (3, 7) for i in range(len(seen))]
            assert batch["begins"][p, b].tolist() == [0, *ended[1:-1], 0]  # what followed at last is of its episode
            gamma = (0.5, 0.25)[p]
            for i in range(LENGTH):
                row, at = b * LENGTH + i, t + BURN_IN + i
                assert batch["action"][p, row] == at
                total, discount, counts = 0.0, 1.0, True
                for k in range(n):
                    total += gamma**k * (at + k)
                    if (at + k) % 10 == 3:
                        discount = 0.0
                    counts &= (at + k) % 10 != 7
                    if (at + k) % 10 in (3, 7):
                        break
                assert batch["reward"][p, row] == total
                assert (batch["mask"][p, row] > 0) == counts
                if counts:
                    assert batch["discount"][p, row] == discount * gamma**n


def test_the_weights_of_a_mask_average_to_one() -> None:
    mask = memory(20).batch(0, GAMMA)["mask"]
    assert (mask == 0).any()
    assert mask[mask > 0].unique().numel() == 1
    torch.testing.assert_close(mask.mean(1), torch.ones(1))


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(7, range(3, 7)), (10, range(3, 7)), (11, range(3, 11)), (20, range(3, 19)), (21, range(7, 19))],
)
def test_every_step_is_learned_from_in_one_sequence(steps: int, expected: range) -> None:
    made = memory(steps, batch=500)
    numbers, _ = made.starts(0)
    counts = np.bincount(made.batch(0, GAMMA)["action"][0].numpy(), minlength=steps)
    assert np.flatnonzero(counts).tolist() == list(expected)
    whole = len(expected) // LENGTH
    assert len(np.unique(numbers)) == whole
    assert abs(counts[list(expected)] - 500 / whole).max() < 5 * 500**0.5


def test_a_cleared_memory_begins_again() -> None:
    made = memory(17)
    made.replay.clear()
    fill(made, BURN_IN + 2 * LENGTH - 1)  # where one whole sequence is sure to be
    assert set(made.batch(0, GAMMA)["action"][0].tolist()) == {23, 24, 25, 26}


def test_an_episode_begins_when_environments_are_rebuilt() -> None:
    made = memory(6)
    made.replay.truncate_all()
    fill(made, 6)
    batch = made.batch(0, GAMMA)
    first = batch["obs"][0, :, 0, 0] == 0
    assert batch["begins"][0, first, 6].unique().tolist() == [1]
    assert batch["mask"][0].unflatten(0, (8, LENGTH))[first, 2].unique().tolist() == [0]


def test_draws_depend_on_the_members_own_stream_only() -> None:
    three, one = memory(30, members=3, envs=2), memory(30, envs=2)
    one.draws.keys = streams.keys([1], "replay")[:, None]
    for draw in (0, 1, 300):
        for mine, alone in zip(three.starts(draw), one.starts(draw), strict=True):
            assert mine[1].tolist() == alone[0].tolist()


def test_it_is_restored_from_its_state() -> None:
    made, other = memory(50), memory(0)
    other.load_member(0, materialized(made.member_state(0)))
    other.replay.load_member(0, materialized(made.replay.member_state(0)))
    for sequences in (made, other):
        fill(sequences, 5)
    assert difference(made.member_state(0), other.member_state(0)) == []
    for name, value in made.batch(1, GAMMA).items():
        assert torch.equal(value, other.batch(1, GAMMA)[name]), name
