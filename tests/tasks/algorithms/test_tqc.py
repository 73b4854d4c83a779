"""TQC: exactness, targets and losses by hand and beside sb3-contrib, refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import tiny
import torch
from rekindle import TQC
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.continuous.actions import SoftSample
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.testing import ExactnessSuite, VariantSuite
from sb3_contrib.common.utils import quantile_huber_loss

SMALL: dict[str, Any] = {**tiny.REPLAY, "optimizer.lr": 0.003, "tau": 0.05, "entropy.alpha": 0.2}
SEQUENCES = {"model.memory": "lstm", "model.sequence_length": 4, "model.burn_in": 2}


class TestTQC(ExactnessSuite):
    task = TQC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "max_grad_norm": 0.1}
    variants: ClassVar = (
        {"quantiles": 5, "critics": 3, "num_envs": 2, "n_step": 3, "critic_lr": 0.002, "entropy.lr": 0.01},
        {"replay.name": "prioritized", "use_sde": True, "sde_sample_freq": 5, "target_update_interval": 2},
        {**SEQUENCES, "batch_size": 8, "critics": 1, "quantiles": 1, "dropped_quantiles": 0},
    )
    inert = frozenset({"entropy.alpha", "entropy.choice_target", "target_update_interval"})


class TestOnImages(VariantSuite):
    task = TQC
    env: ClassVar = {"id": "own_envs:Square-v0", "kwargs": {"side": 6, "box": True}}
    hyperparameters: ClassVar = {**SMALL, "model.encoder": "small", "quantiles": 5}
    inert = frozenset({"entropy.alpha", "entropy.choice_target", "target_update_interval"})


def learner_of(**changes: Any) -> Any:
    """Return a learner of two members with a full buffer."""
    made = TQC("Pendulum-v1").init(**unflatten({**SMALL, **changes}))
    learner: Any = TQC.learner(made.env, (0, 1), [made.hyperparameters or {}] * 2)
    while learner.filling:
        learner.iterate()
    return learner


def losses_for(q: torch.Tensor, next_q: torch.Tensor, entropy: float, dropped: int) -> tuple[Any, Any, Any]:
    """Return what the critics' loss gives for these quantiles of one row, (c, m)."""
    learner = learner_of(critics=len(q), quantiles=q.shape[1], dropped_quantiles=dropped, **{"batch_size": 2})
    learner.hp.batch_size = 1

    class Given:
        """Critics with these quantiles."""

        def q_and_target(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return q[None, :, None].clone(), next_q[None, :, None].clone()

    learner.policy = Given()
    batch = {"action": torch.zeros(1, 1, 1), "discount": torch.tensor([[0.5]])}
    sample = SoftSample(torch.zeros(1, 1, 1), None, torch.full((1, 1, 1), entropy))
    result: tuple[Any, Any, Any] = learner.critic_loss(batch, torch.tensor([[1.0]]), sample, torch.tensor([[0.1]]))
    return result


def test_the_largest_quantiles_of_the_mixture_are_dropped() -> None:
    """By hand: of 1, 2, 3, 8 the two least are kept; with the bonus 0.1 * 2 the targets are 1.6 and 2.1."""
    q, next_q = torch.zeros(2, 2), torch.tensor([[8.0, 1.0], [2.0, 3.0]])
    losses, errors, value = losses_for(q, next_q, 2.0, 1)
    torch.testing.assert_close(errors[0, :, 0], torch.full((2,), (1.6 + 2.1) / 2))
    # every |τ - 0| l(δ): τ is 1/4 or 3/4 with mean 1/2; l is δ - 1/2
    torch.testing.assert_close(losses[0, 0], torch.tensor(0.5 * (1.1 + 1.6) / 2))
    assert value[0] == 0


def test_a_target_below_a_quantile_weighs_1_minus_its_level() -> None:
    losses, _, _ = losses_for(torch.tensor([[2.0, 1.0]]), torch.tensor([[0.0, 9.0]]), 0.0, 1)
    # the target is 1: δ = -1 at τ = 1/4 with weight 3/4 and l = 1/2, and δ = 0
    torch.testing.assert_close(losses[0, 0], torch.tensor((0.75 * 0.5 + 0) / 2))


def test_the_loss_is_that_of_sb3_contrib() -> None:
    generator = torch.Generator().manual_seed(0)
    q, next_q = 3 * torch.randn(3, 5, generator=generator), 3 * torch.randn(3, 5, generator=generator)
    losses, _, _ = losses_for(q, next_q, 2.0, 2)
    targets = 1 + 0.5 * (next_q.flatten().sort().values[:9] + 0.2)
    expected = quantile_huber_loss(q[None], targets[None, None], sum_over_quantiles=False)
    torch.testing.assert_close(losses[0, 0], expected)


def test_gradients_are_those_of_means_over_the_batch() -> None:
    learner = learner_of()
    _, batch = learner.draw()
    policy, vector = learner.policy, learner.policy.critic_vector
    before = vector.clone()

    def loss() -> torch.Tensor:
        sample = learner.actions.sample(policy.outputs_of(batch)[1], learner.update_noise(3)[:, 16:])
        result: torch.Tensor = learner.critic_loss(batch, batch["reward"], sample, learner.coefficients.alpha)[0]
        return result

    gradient = policy.critic_gradient(loss()).clone()
    for i in gradient[0].abs().topk(3).indices.tolist():
        values = []
        for shift in (-1e-3, 1e-3):
            vector.copy_(before)
            vector[0, i] += shift
            values.append(loss().mean(1)[0].detach().clone())
        torch.testing.assert_close((values[1] - values[0]) / 2e-3, gradient[0, i], rtol=0.05, atol=1e-3)


def test_the_value_of_a_state_is_the_mean_of_all_quantiles() -> None:
    learner = learner_of()
    obs = learner.envs.obs
    actions = torch.from_numpy(learner.actor(1)(obs)) / 2
    q = learner.policy.values(learner.tensor(obs), actions)
    assert q.shape == (2, 2, 1, 25)
    torch.testing.assert_close(torch.from_numpy(learner.state_values(obs)), q.mean((1, 3)))


def test_choices_and_empty_mixtures_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedSpace, match=r"TQC on CartPole-v1 acts in Boxes that .* use SAC, or DQN"):
        TQC("CartPole-v1").init()
    with pytest.raises(ValueError, match=r"TQC: some quantiles must be left .* is 5 of 5 quantiles; drop fewer"):
        TQC("Pendulum-v1").init(quantiles=5, dropped_quantiles=5)


@pytest.mark.slow
def test_pendulum_is_learned() -> None:
    made = TQC("Pendulum-v1", seed=0).init(optimizer={"lr": 1e-3}, model={"width": 64})
    made.fit(3)
    assert made.evaluate() > -250
