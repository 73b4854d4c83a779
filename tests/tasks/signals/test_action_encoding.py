"""Encoding of actions, and errors of predictions."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from rekindle.tasks.envs import Joined
from rekindle.tasks.signals.action_encoding import ActionEncoder


def test_actions_become_numbers_by_their_space() -> None:
    spaces = gym.spaces
    discrete = ActionEncoder(spaces.Discrete(3, start=5), "here")
    assert discrete(torch.tensor([[2, 0]])).tolist() == [[[0, 0, 1], [1, 0, 0]]]
    several = ActionEncoder(spaces.MultiDiscrete([2, 3]), "here")
    assert several(torch.tensor([[[1, 2]]])).tolist() == [[[0, 1, 0, 0, 1]]]
    bits = ActionEncoder(spaces.MultiBinary(3), "here")
    assert bits(torch.tensor([[[1, 0, 1]]], dtype=torch.int8)).tolist() == [[[1, 0, 1]]]
    box = ActionEncoder(
        spaces.Box(np.array([-2, 0, -np.inf], np.float32), np.array([2, 4, np.inf], np.float32)), "here"
    )
    assert box(torch.tensor([[[9.0, 1.0, 7.0]]])).tolist() == [[[1, -0.5, 7]]]
    assert box.error(torch.tensor([[[1.0, 0.5, 6.0]]]), torch.tensor([[[9.0, 1.0, 7.0]]])).tolist() == [[2]]
    guess = torch.tensor([[[0.3, -1.0, 2.0]]])
    torch.testing.assert_close(discrete.error(guess, torch.tensor([[2]])), -guess.log_softmax(-1)[..., 2])


def test_numbers_and_choices_in_one_row() -> None:
    box = gym.spaces.Box(np.array([0.0], np.float32), np.array([4.0], np.float32))
    hybrid = ActionEncoder(Joined(gym.spaces.Dict({"a": gym.spaces.Discrete(3, start=1), "b": box})), "here")
    row = torch.tensor([[[2.0, 3.0]]])
    assert hybrid(row).tolist() == [[[0.5, 0, 0, 1]]]
    guess = torch.tensor([[[1.5, 0.3, -1.0, 2.0]]])
    expected = 1 - guess[..., 1:].log_softmax(-1)[..., 2]
    torch.testing.assert_close(hybrid.error(guess, row), expected)
