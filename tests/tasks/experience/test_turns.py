"""Transitions of games of turns: rewards while an agent waits, ends, and actions whose outcome is open."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from rekindle.tasks.envs import StepResult
from rekindle.tasks.experience.replay_buffer import PRESENT, Field, ReplayBuffer, RingForm, transition_fields
from rekindle.tasks.experience.returns import gae
from rekindle.tasks.experience.turns import OpenTransitions, outcomes_of

# One environment, eight steps: the agent acts at 0, 2 and 5, its episode ends at 3, when another one acts, and the next
# begins at 4, when it waits.
REWARDS = [1, 2, 4, 8, 16, 32, 64, 128]
ACTS = [1, 0, 1, 0, 0, 1, 0, 0]
ENDS = [0, 0, 0, 1, 0, 0, 0, 0]


def in_time(values: list[int], dtype: Any) -> np.ndarray:
    return np.array(values, dtype).reshape(-1, 1, 1)


@pytest.mark.parametrize("known", [True, False])
def test_an_action_gets_what_happens_until_the_next_one(known: bool) -> None:
    ends = in_time(ENDS, bool)
    rows = outcomes_of(in_time(REWARDS, np.float32), ends, ends, in_time(ACTS, bool), np.array([[known]]))
    assert rows.rewards.ravel().tolist() == [1 + 2, 0, 4 + 8, 0, 0, 32 + 64 + 128, 0, 0]
    assert rows.ended.ravel().tolist()[2] is True
    # the outcome of the last action is known only if the agent acts after the rollout
    assert rows.counted.ravel().tolist() == [True, False, True, False, False, known, False, False]
    assert rows.last.ravel()[[0, 2, 5]].tolist() == [1, 3, 7]


def test_advantages_pass_over_steps_at_which_an_agent_waits() -> None:
    present = torch.tensor([1.0, 0, 1, 0, 1]).view(-1, 1, 1)
    rewards, values, following = (torch.randn(5, 1, 1, dtype=torch.float64) for _ in range(3))
    zeros, (gamma, decay) = torch.zeros_like(rewards), (torch.full((1, 1), x) for x in (0.9, 0.8))
    over = gae(rewards, values, following, zeros, zeros, gamma, decay, present)
    alone = gae(*(x[::2].clone() for x in (rewards, values, following, zeros, zeros)), gamma, decay)
    torch.testing.assert_close(over[::2], alone)


def test_replayed_transitions_are_those_of_the_agent_alone() -> None:
    fields = transition_fields(Field((1,)), Field((), torch.int64)) | {PRESENT: Field((), torch.uint8)}
    replay, turns = ReplayBuffer(RingForm(1, 12, 1, fields)), OpenTransitions(1, 1, fields["obs"], fields["action"])
    following = [*ACTS[1:], 1]
    for t, (reward, acts, ends, acts_next) in enumerate(zip(REWARDS, ACTS, ENDS, following, strict=True)):
        obs, then = (np.full((1, 1, 1), x, np.float32) for x in (t, t + 1))
        end, no = np.array([[bool(ends)]]), np.zeros((1, 1), bool)
        step = StepResult(then, np.full((1, 1), reward, np.float32), end, no)
        replay.add(**turns.step(obs, np.array([[bool(acts)]]), np.full((1, 1), t), step, np.array([[bool(acts_next)]])))
    ages = replay.present(8)
    assert ages is not None
    assert ages[0].tolist() == [1, 3, 7]  # stored when they are complete
    batch = replay.returns(replay.row(ages[0][None]), torch.full((1, 1), 0.5), 3)
    assert batch["obs"].ravel().tolist() == [0, 2, 5]
    assert batch["action"].ravel().tolist() == [0, 2, 5]
    # three steps from the first one reach the second, and the episode ends there
    assert batch["reward"].ravel().tolist() == [3 + 0.5 * 12, 12, 32 + 64 + 128]
    assert batch["discount"].ravel().tolist() == [0, 0, 0.5]
    assert batch["next_obs"].ravel()[2].item() == 8
