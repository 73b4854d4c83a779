"""ICM: exactness, and the losses of the paper."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from fakes import batch_of
from signal_learners import ICM, RND, SMALL, DemonstratedSuite, built, signals_of


class TestICM(DemonstratedSuite):
    hyperparameters: ClassVar = {**SMALL, **ICM}
    variants: ClassVar = ({"normalize_obs": True, "extrinsic.strength": 0.5},)


@pytest.mark.slow
class TestMoreOfICM(DemonstratedSuite):
    hyperparameters: ClassVar = {**SMALL, **ICM}
    variants: ClassVar = (
        {"normalize_advantage": "running", "normalize_reward": True, "extrinsic.strength": 0.0},
        {"model.memory": "lstm", "num_minibatches": 2},
        {"critic.name": "separate", "num_envs": 3, "num_minibatches": 3, "critic.num_minibatches": 3, **RND},
    )


def test_curiosity_is_the_error_of_what_was_foretold_and_learns_as_in_the_paper() -> None:
    learner = built(icm={"use": True, "beta": 0.3})
    signal, batch = signals_of(learner)["icm"], batch_of(learner)
    tensors = signal.trained.leaves

    def net(name: str, x: torch.Tensor) -> torch.Tensor:
        first, last = ((tensors[f"icm.{name}.{i}.weight"], tensors[f"icm.{name}.{i}.bias"]) for i in (0, 1))
        return torch.tanh(x @ first[0] + first[1]) @ last[0] + last[1]

    before, after = net("features", batch["obs"]), net("features", batch["next_obs"])
    one_hot = torch.nn.functional.one_hot(batch["actions"], 2).float()
    error = 0.5 * (net("forward", torch.cat([before, one_hot], -1)) - after).square().sum(-1)
    torch.testing.assert_close(signal.rewards(batch), error.detach())
    guess = net("inverse", torch.cat([before, after], -1))
    inverse = torch.nn.functional.cross_entropy(guess.flatten(0, 1), batch["actions"].flatten(), reduction="none")
    expected = 0.7 * inverse.view(2, -1).mean(1) + 0.3 * error.mean(1)
    losses, _ = signal.loss(batch, 0)
    torch.testing.assert_close(losses, expected)
    gradient = signal.trained.parameters.gradient
    torch.testing.assert_close(gradient(losses), gradient(expected), rtol=1e-3, atol=1e-6)
