"""CrossQ: exactness, its joint batches, delayed updates, refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import tiny
import torch
from rekindle import CrossQ
from rekindle.spaces import unflatten
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.networks import renorm
from rekindle.tasks.testing import ExactnessSuite

SMALL: dict[str, Any] = {
    **tiny.REPLAY,
    "optimizer.lr": 0.003,
    "model.critic_width": 24,
    "entropy.alpha": 0.2,
    "policy_delay": 2,
}


class TestCrossQ(ExactnessSuite):
    task = CrossQ
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "max_grad_norm": 0.1}
    variants: ClassVar = (
        {"num_envs": 2, "n_step": 3, "critic_lr": 0.002, "entropy.lr": 0.01, "normalize_obs": True},
        {"replay.name": "prioritized", "policy_delay": 1, "critic_loss": "huber", "entropy.learn": False},
    )
    inert = frozenset({"entropy.alpha", "entropy.choice_target", "max_grad_norm"})


def learner_of(**changes: Any) -> Any:
    """Return a learner of two members with a full buffer."""
    made = CrossQ("Pendulum-v1").init(**unflatten({**SMALL, **changes}))
    learner: Any = CrossQ.learner(made.env, (0, 1), [made.hyperparameters or {}] * 2)
    while learner.filling:
        learner.iterate()
    return learner


def test_critics_see_a_batch_and_its_next_observations_together() -> None:
    learner = learner_of()
    _, batch = learner.draw()
    policy, numbers = learner.policy, torch.zeros(2, 16, 1)
    before = policy.critic_form.moments.vector.clone()
    q, next_q = policy.q_and_target(batch, numbers, numbers + 0.5)
    assert not next_q.requires_grad
    assert not torch.equal(policy.critic_form.moments.vector, before)
    views = policy.critics.of(1)  # the second critic of the first member
    x = torch.cat(
        [torch.cat([batch[name][0], numbers[0] + plus], -1) for name, plus in (("obs", 0), ("next_obs", 0.5))]
    )
    for n in range(3):
        x = (x - x.mean(0)) / (x.var(0, unbiased=False) + renorm.EPS).sqrt()
        x = (views[f"critic.{n}.scale"] * x + views[f"critic.{n}.shift"]) @ views[f"critic.{n}.weight"]
        x = x + views[f"critic.{n}.bias"]
        x = x.relu() if n < 2 else x
    torch.testing.assert_close(torch.cat([q[0, 1], next_q[0, 1]]), x, rtol=1e-3, atol=1e-4)
    with torch.no_grad():
        kept = policy.critic_form.moments.vector.clone()
        policy.q_and_target(batch, numbers, numbers)
    assert torch.equal(policy.critic_form.moments.vector, kept), "without gradients nothing is learned"


def test_policy_and_entropy_move_once_in_policy_delay_steps() -> None:
    learner = learner_of(policy_delay=3)
    moved = []
    for number in range(1, 7):
        vectors = learner.policy.actor_vector, learner.policy.critic_vector
        before = [*(x.clone() for x in vectors), learner.coefficients.alpha.clone()]
        learner.progress.updates = number
        metrics, _ = learner.update(learner.draw()[1])
        after = *vectors, learner.coefficients.alpha
        moved.append([not torch.equal(x, y) for x, y in zip(before, after, strict=True)])
        assert ("actor_loss" in metrics) == (number % 3 == 0)
    assert moved == [[False, True, False], [False, True, False], [True, True, True]] * 2


def test_acting_normalizes_by_running_moments_alone() -> None:
    learner = learner_of()
    obs = learner.tensor(learner.envs.obs)
    both = torch.cat([obs, 100 * obs], 1)
    alone, _ = learner.policy.act(obs)
    together, _ = learner.policy.act(both)
    torch.testing.assert_close(together[:, :1], alone)
    assert set(learner.policy.of(0)) > {"actor.0.mean", "critic1.2.variance"}


def test_choices_memories_and_images_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedSpace, match=r"CrossQ on CartPole-v1 acts in Boxes that .* use SAC, or DQN"):
        CrossQ("CartPole-v1").init()
    reason = "batch renormalization has neither memory nor encoder"
    with pytest.raises(UnsupportedSpace, match=rf"CrossQ on Pendulum-v1: {reason}, but model.memory is 'gru'"):
        CrossQ("Pendulum-v1").init(model={"memory": "gru"})
    with pytest.raises(UnsupportedSpace, match=rf"CrossQ on .*: {reason}, .* 'small' .* \(6, 6, 1\); use SAC"):
        CrossQ({"id": "own_envs:Square-v0", "kwargs": {"side": 6, "box": True}}).init(model={"encoder": "small"})


def test_layers_of_given_widths_train() -> None:
    made = CrossQ("Pendulum-v1").init(**unflatten({**SMALL, "model.hidden": [17, 5]}))
    made.fit(1)
    assert made.ref is not None
    assert made.ref.learner.policy.critic_form.sizes == [4, 24, 24, 1]


@pytest.mark.slow
def test_pendulum_is_learned() -> None:
    made = CrossQ("Pendulum-v1", seed=0).init(model={"width": 64, "critic_width": 128})
    made.fit(3)
    assert made.evaluate() > -250
