"""SAC with an ensemble of critics: exactness, targets and the policy's loss by hand, refusals."""

from __future__ import annotations

import contextlib
from typing import Any, ClassVar

import pytest
import tiny
import torch
from rekindle import SAC
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.compiled_steps import CompiledSteps
from rekindle.tasks.algorithms.continuous.actions import SoftSample
from rekindle.tasks.compiled.loading import without_kernels
from rekindle.tasks.testing import VariantSuite

SMALL: dict[str, Any] = {
    **tiny.REPLAY,
    "optimizer.lr": 0.003,
    "tau": 0.05,
    "entropy.alpha": 0.2,
    "critic.ensemble": 5,
    "critic.subset": 2,
}


class TestPendulum(VariantSuite):
    task = SAC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "max_grad_norm": 0.1}
    variants: ClassVar = ({"num_updates": 4, "policy_delay": 3}, {"critic.subset": 5, "use_sde": True})
    inert = frozenset({"entropy.alpha", "entropy.choice_target", "target_update_interval"})


class TestCartPole(VariantSuite):
    task = SAC
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, "critic.ensemble": 3, "max_grad_norm": 0.1}
    inert = frozenset({"entropy.alpha", "entropy.target", "target_update_interval"})


def learner_of(**changes: Any) -> Any:
    made = SAC("Pendulum-v1").init(**unflatten({**SMALL, **changes}))
    return SAC.learner(made.env, (0, 1), [made.hyperparameters or {}] * 2)


def test_targets_follow_the_least_of_a_subset_and_the_policy_the_mean_of_all() -> None:
    """By hand: of 4, 1, 3, 2, 5 the subset 0 and 2 gives 3, and the mean is 3; the bonus is 0.1 * 2."""
    learner = learner_of()
    q = torch.tensor([4.0, 1.0, 3.0, 2.0, 5.0]).view(1, 5, 1, 1).repeat(2, 1, 16, 1)

    class Given:
        """Critics with these values."""

        def q_and_target(self, *arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.zeros_like(q), q

        def q(self, *arguments: Any) -> torch.Tensor:
            return q

    learner.policy = Given()
    sample = SoftSample(torch.zeros(2, 16, 1), None, torch.full((2, 16, 1), 2.0))
    batch = {
        "action": torch.zeros(2, 16, 1),
        "discount": torch.full((2, 16), 0.5),
        "subset": torch.tensor([[0, 2]] * 2),
    }
    alpha = torch.full((2, 1), 0.1)
    _, errors, _ = learner.critic_loss(batch, torch.ones(2, 16), sample, alpha)
    torch.testing.assert_close(errors, torch.full((2, 5, 16), 1 + 0.5 * (3 + 0.2)))
    torch.testing.assert_close(learner.actor_loss(batch, sample, alpha), torch.full((2, 16), -(3 + 0.2)))


def test_every_step_draws_another_subset_without_repetition() -> None:
    learner = learner_of()
    seen = []
    subset = learner.subset

    def watched(number: int) -> torch.Tensor:
        seen.append(subset(number).tolist())
        drawn: torch.Tensor = subset(number)
        return drawn

    learner.subset = watched
    for _ in range(60):
        learner.iterate()
    assert all(len(set(subset)) == 2 for subsets in seen for subset in subsets)
    assert {i for subsets in seen for subset in subsets for i in subset} == set(range(5))
    assert len({str(subsets) for subsets in seen}) > 5
    assert any(subsets[0] != subsets[1] for subsets in seen), "members draw their own"


def test_gradient_steps_that_outrun_the_buffer_are_refused_and_the_papers_ratio_is_not() -> None:
    redq = {"critic": {"ensemble": 10}, "num_steps": 1, "num_updates": 20, "policy_delay": 20, "batch_size": 256}
    SAC("Pendulum-v1").init(**redq, buffer_size=5120)
    message = (
        r"SAC: num_updates \* batch_size \(5120\) must be at most num_steps \* num_envs \* buffer_size \(5119\); "
        "raise the latter or lower the former"
    )
    with pytest.raises(ValueError, match=message):
        SAC("Pendulum-v1").init(**redq, buffer_size=5119)
    # A thousand steps after a thousand others draw as much for each of them as one after one.
    SAC("Pendulum-v1").init(num_steps=1000, num_updates=1000, batch_size=256, buffer_size=1000)


def test_a_subset_larger_than_the_ensemble_is_refused_and_two_critics_keep_their_uid() -> None:
    with pytest.raises(ValueError, match=r"SAC: targets take a subset .* critic\.subset is 4 and critic\.ensemble 3"):
        SAC("Pendulum-v1").init(critic={"ensemble": 3, "subset": 4})
    plain = SAC("Pendulum-v1", seed=1).init()
    assert plain.uid == SAC("Pendulum-v1", seed=1).init(critic={"ensemble": 2, "subset": 2}).uid


@pytest.mark.parametrize("is_compiled", [True, False])
def test_a_delayed_policy_moves_with_every_third_step_of_the_critics(is_compiled: bool) -> None:
    with contextlib.nullcontext() if is_compiled else without_kernels():
        learner = learner_of(**{"policy_delay": 3, "critic.ensemble": 2, "critic.mean": True})
        assert isinstance(learner.steps, CompiledSteps) is is_compiled
        policy, moves = learner.policy, []

        def parts() -> list[torch.Tensor]:
            vectors = (policy.actor_vector, learner.alpha(), policy.critic_vector, policy.target_vector)
            return [vector.clone() for vector in vectors]

        while learner.progress.updates < 9:
            before, updates = parts(), learner.progress.updates
            learner.iterate()
            if learner.progress.updates > updates:
                moves.append([not x.equal(y) for x, y in zip(before, parts(), strict=True)])
    assert moves == [[moves_actor] * 2 + [True] * 2 for moves_actor in (False, False, True) * 3]


def test_a_policy_may_follow_the_mean_of_two_critics() -> None:
    """By hand: the mean of 4 and 1 is 2.5, and the bonus is 0.1 * 2."""
    learner = learner_of(**{"critic.ensemble": 2, "critic.mean": True})

    class Constant:
        def q(self, *arguments: Any) -> torch.Tensor:
            return torch.tensor([4.0, 1.0]).view(1, 2, 1, 1).repeat(2, 1, 16, 1)

    learner.policy = Constant()
    sample = SoftSample(torch.zeros(2, 16, 1), None, torch.full((2, 16, 1), 2.0))
    torch.testing.assert_close(learner.actor_loss({}, sample, torch.full((2, 1), 0.1)), torch.full((2, 16), -2.7))
