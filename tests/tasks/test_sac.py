"""SAC: exactness on three kinds of environment, what its losses must do, and what it refuses."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from rekindle import SAC, EnvSpec
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.sac import SACLearner
from rekindle.tasks.soft_actions import Sample, SoftActions, SquashedNormal
from rekindle.tasks.testing import ExactnessSuite
from torch.distributions import Categorical, Normal, TanhTransform, TransformedDistribution

SMALL: dict[str, Any] = {
    "epoch_steps": 96, "learning_starts": 40, "batch_size": 32, "buffer_size": 200, "num_updates": 1,
    "optimizer.lr": 0.003, "tau": 0.05, "max_grad_norm": 0.5, "model.width": 32, "entropy.alpha": 0.2,
}  # fmt: skip
START = frozenset({"entropy.alpha"})  # where a learned coefficient starts
TESTS = str(Path(__file__).parents[1])
BOX = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))


class TestOnPendulum(ExactnessSuite):
    task = SAC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"entropy.lr": 0.01, "critic_lr": 0.002, "n_step": 3, "num_envs": 3, "buffer_size": 101, "scale_reward": True},
        {"entropy.learn": False, "replay.name": "prioritized", "replay.beta_horizon": 300, "tau": 1.0,
         "target_update_interval": 7},
        {"optimizer.name": "rmsprop", "optimizer.momentum": 0.5, "lr_schedule.name": "exponential",
         "lr_schedule.horizon": 600, "max_grad_norm": None, "num_steps": 4, "num_updates": 3},
        {"optimizer.name": "adamw", "lr_schedule.name": "cosine", "lr_schedule.horizon": 600, "model.width": 17,
         "model.layers": 3, "model.activation": "silu", "batch_size": 33, "num_steps": 3, "num_envs": 2},
        {"optimizer.name": "sgd", "optimizer.momentum": 0.5, "model.activation": "tanh", "model.layers": 1},
    )  # fmt: skip
    inert = START | {"entropy.choice_target"}  # of choices, and there are none


class TestOnInvertedPendulum(ExactnessSuite):
    task = SAC
    env = "InvertedPendulum-v5"
    hyperparameters: ClassVar = {**SMALL, "epoch_steps": 64}
    inert = START | {"entropy.choice_target"}
    cohort_size = 3


class TestOnCartPole(ExactnessSuite):
    task = SAC
    env = "CartPole-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"max_grad_norm": None},
        {"entropy.learn": False, "num_envs": 3, "batch_size": 33, "model.activation": "elu"},
    )
    inert = START | {"entropy.target"}  # of numbers, and there are none
    cohort_size = 5


def learner(env: Any = "Pendulum-v1", seeds: tuple[int, ...] = (0, 1), **changes: Any) -> SACLearner:
    """A learner with small networks that has filled its memory."""
    task = SAC(env).init(**_nested({**SMALL, **changes}))
    made = SACLearner(task.env, seeds, [task.hyperparameters or {}] * len(seeds))
    while made.filling:
        made.iterate()
    return made


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    from rekindle.spaces import unflatten

    return dict(unflatten(values))


def batch_of(made: SACLearner) -> dict[str, torch.Tensor]:
    return made.replay.returns(made.sampler.rows(0), made.hp.gamma, made.hp.n_step)


class TestSquashedNormal:
    def test_its_log_probability_is_that_of_torch(self) -> None:
        torch.manual_seed(0)
        mean, log_std, noise = (torch.randn(50, 3, dtype=torch.float64) for _ in range(3))
        log_std = log_std.clamp(max=0.5)  # torch's own is infinite where tanh rounds to one
        action, log_prob = SquashedNormal.apply(mean, log_std, noise)
        reference = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
        torch.testing.assert_close(log_prob, reference.log_prob(action).sum(-1), rtol=1e-6, atol=1e-6)

    def test_its_gradient_is_that_of_its_value(self) -> None:
        torch.manual_seed(0)
        mean, log_std = (torch.randn(5, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
        noise = torch.randn(5, 2, dtype=torch.float64)
        assert torch.autograd.gradcheck(lambda m, s: SquashedNormal.apply(m, s, noise), (mean, log_std))

    def test_it_is_finite_where_tanh_has_rounded_to_one(self) -> None:
        mean = torch.tensor([[50.0], [-50.0]], requires_grad=True)
        action, log_prob = SquashedNormal.apply(mean, torch.zeros(2, 1), torch.zeros(2, 1))
        assert action.abs().tolist() == [[1.0], [1.0]]
        # log N(u; u, 1) - log(1 - tanh(u)²), where 1 - tanh(u)² = 4 exp(-2 |u|) to all digits
        torch.testing.assert_close(log_prob, torch.full((2,), -0.5 * math.log(2 * math.pi) - math.log(4) + 100))
        (gradient,) = torch.autograd.grad(log_prob.sum(), mean)
        torch.testing.assert_close(gradient, torch.tensor([[2.0], [-2.0]]))

    def test_the_log_std_is_clipped(self) -> None:
        actions = SoftActions(BOX, "a test")
        _, log_std, _ = actions.split(torch.tensor([[[0.0, 0.0, -100.0, 100.0]]]))
        assert log_std.tolist() == [[[-20.0, 2.0]]]


class TestActions:
    def test_numbers_come_to_the_environments_bounds_and_back(self) -> None:
        actions = SoftActions(BOX, "a test")
        unit = torch.tensor([[[-1.0, -1.0], [1.0, 0.5]]])
        scaled = actions.actions(unit, None)
        assert scaled.tolist() == [[[-2.0, 0.0], [2.0, 0.75]]]
        back, choices = actions.unit(torch.from_numpy(scaled))
        assert choices is None
        torch.testing.assert_close(back, unit)

    def test_choices_are_drawn_as_often_as_the_policy_says(self) -> None:
        actions = SoftActions(gym.spaces.Discrete(3), "a test")
        logits = torch.tensor([0.0, 1.0, -1.0]).expand(1, 20_000, 3)
        uniforms = np.random.default_rng(0).uniform(size=(1, 20_000, 3))
        drawn = np.bincount(actions.act(logits, None, uniforms)[0], minlength=3) / 20_000
        np.testing.assert_allclose(drawn, torch.softmax(logits[0, 0], -1), atol=0.01)

    def test_evaluation_is_greedy(self) -> None:
        made = learner()
        obs = made.envs.obs
        mean = made.policy.policy(torch.from_numpy(obs))[..., 0]
        np.testing.assert_allclose(made.act(obs)[..., 0], 2 * torch.tanh(mean), rtol=1e-5)


class TestSoftValue:
    def test_the_value_of_numbers_is_the_least_q_less_their_log_probability(self) -> None:
        torch.manual_seed(0)
        actions, outputs, noise = SoftActions(BOX, "a test"), torch.randn(2, 7, 4), torch.randn(2, 7, 2)
        q, alpha = torch.randn(2, 2, 7, 1), torch.tensor([[0.5], [2.0]])
        sample = Sample(actions, outputs, noise)
        normal = Normal(outputs[..., :2], outputs[..., 2:].clamp(-20, 2).exp())
        policy = TransformedDistribution(normal, [TanhTransform()])
        log_prob = policy.log_prob(sample.numbers).sum(-1)
        torch.testing.assert_close(sample.value(q, alpha), q.amin(1)[..., 0] - alpha * log_prob, rtol=1e-4, atol=1e-4)

    def test_the_value_of_choices_is_the_expected_least_q_plus_their_entropy(self) -> None:
        torch.manual_seed(0)
        actions = SoftActions(gym.spaces.Discrete(4), "a test")
        logits, q = torch.randn(2, 7, 4), torch.randn(2, 2, 7, 4)
        alpha = torch.tensor([[0.5], [2.0]])
        value = Sample(actions, logits, torch.zeros(2, 7, 1)).value(q, alpha)
        policy = Categorical(logits=logits)
        torch.testing.assert_close(value, (policy.probs * q.amin(1)).sum(-1) + alpha * policy.entropy())


class TestLearning:
    def test_the_target_is_the_reward_and_the_discounted_soft_value_of_the_target_critics(self) -> None:
        made = learner()
        batch = batch_of(made)
        made.policy.target.vector.mul_(1.5)  # so that targets and critics differ
        noise, alpha = made.update_noise(1)[:, 0], torch.full((2, 1), 0.3)
        losses, errors, q = made.critic_loss(batch, noise, alpha)
        sample = Sample(made.actions, made.policy.policy(batch["next_obs"]), noise)
        next_q = made.policy.target_q(batch["next_obs"], sample.numbers).amin(1)[..., 0]
        targets = batch["reward"] + batch["discount"] * (next_q + 0.3 * sample.minus_log_probs[..., 0])
        torch.testing.assert_close(errors, targets - q[:, 0])
        torch.testing.assert_close(losses, 0.5 * ((targets - q[:, 0]) ** 2 + (targets - q[:, 1]) ** 2).mean(1))

    def test_a_truncation_is_no_termination(self) -> None:
        made = learner(seeds=(0,), learning_starts=96)
        while made.replay.steps < 200:  # Pendulum truncates after 200 steps, and never terminates
            made.iterate()
        ends = made.replay.batch(np.array([[199]]), ("terminated", "truncated"))
        assert (float(ends["terminated"]), float(ends["truncated"])) == (0.0, 1.0)
        batch = made.replay.returns(np.array([[199]]), made.hp.gamma, 1)
        torch.testing.assert_close(batch["discount"], made.hp.gamma)

    def test_a_termination_has_no_future(self) -> None:
        made = learner("CartPole-v1", seeds=(0,))
        fields = made.replay.batch(np.arange(40)[None], ("terminated",))
        last = int(fields["terminated"][0].nonzero()[0])
        assert float(made.replay.returns(np.array([[last]]), made.hp.gamma, 1)["discount"]) == 0

    def test_targets_begin_as_copies_and_the_twins_differ(self) -> None:
        policy = SACLearner(EnvSpec("Pendulum-v1"), [0], [SAC("Pendulum-v1").init().hyperparameters or {}]).policy
        assert torch.equal(policy.target.vector, policy.critic.vector)
        assert not torch.equal(policy.critic.vector[0], policy.critic.vector[1])

    def test_tau_is_the_fraction_taken_from_the_online_critics(self) -> None:
        policy = learner().policy
        policy.target.vector.zero_()
        policy.critic.vector.fill_(1.0)
        policy.move_target(torch.tensor([[0.25], [0.0]]))
        assert policy.target_vector[0].unique().tolist() == [0.25]
        assert policy.target_vector[1].unique().tolist() == [0.0]
        policy.move_target(torch.tensor([[1.0], [1.0]]))
        assert torch.equal(policy.target.vector, policy.critic.vector)

    def test_targets_move_every_so_many_updates(self) -> None:
        made = learner(target_update_interval=3, tau=1.0)
        while made.progress.updates < 2:
            made.iterate()
        assert not torch.equal(made.policy.target.vector, made.policy.critic.vector)
        made.iterate()
        assert torch.equal(made.policy.target.vector, made.policy.critic.vector)

    def test_the_actor_climbs_q_and_learns_nothing_for_the_critics(self) -> None:
        made = learner(seeds=(0,), **{"entropy.learn": False, "entropy.alpha": 1e-12})
        with torch.no_grad():  # critics that know one thing: the larger the action, the better
            made.policy.critic.vector.zero_()
            for name, view in made.policy.critic.views.items():
                if name.endswith("weight"):
                    view[:, -1] = 1.0
        made.policy.target.vector.copy_(made.policy.critic.vector)
        obs = torch.from_numpy(made.envs.obs)
        before = float(made.policy.policy(obs)[0, 0, 0])
        batch = batch_of(made)
        for _ in range(20):
            critics = made.policy.critic.vector.clone()
            sample = Sample(made.actions, made.policy.policy(batch["obs"], learn=True), made.update_noise(0)[:, 1])
            value = sample.value(made.policy.q(batch["obs"], sample.numbers), made.hp.entropy.alpha).mean(1)
            made.actor_optimizer.step(made.policy.actor.gradient(-value), torch.full((1, 1), 0.01))
            assert torch.equal(critics, made.policy.critic.vector)
        assert float(made.policy.policy(obs)[0, 0, 0]) > before


class TestEntropyCoefficient:
    def test_it_and_its_optimizer_are_in_the_state(self) -> None:
        task = SAC("Pendulum-v1").init(**_nested(SMALL))
        task.fit(1)
        state = task.state_dict()["learner"]["coefficients"]
        assert float(state["log_alpha"][0]) != pytest.approx(math.log(0.2))
        assert float(state["steps"][0]) > 0
        assert float(state["mean"][0]) != 0
        again = SAC("Pendulum-v1").init(**_nested(SMALL))
        again.load_state_dict(task.state_dict())
        assert torch.equal(again.state_dict()["learner"]["coefficients"]["log_alpha"], state["log_alpha"])

    def test_it_grows_where_the_entropy_is_below_its_target_and_shrinks_above(self) -> None:
        made = learner()
        coefficients = made.coefficients
        assert coefficients is not None
        target, lr = torch.full((2, 1), -1.0), torch.full((2, 1), 0.01)
        before = coefficients.alpha.clone()
        coefficients.step(torch.tensor([[-3.0], [2.0]]), target, lr)
        assert float(coefficients.alpha[0] - before[0]) > 0 > float(coefficients.alpha[1] - before[1])

    def test_a_fixed_one_stays(self) -> None:
        task = SAC("Pendulum-v1").init(**_nested({**SMALL, "entropy.learn": False, "entropy.alpha": 0.35}))
        assert task.fit(2)["alpha"] == pytest.approx(0.35)
        assert "coefficients" not in task.state_dict()["learner"]

    def test_the_targets_are_by_the_numbers_and_choices_of_the_space(self) -> None:
        assert learner().target_entropy.tolist() == [[-1.0], [-1.0]]
        half = learner("CartPole-v1", seeds=(0,), **{"entropy.choice_target": 0.5})
        assert half.target_entropy.tolist() == [[pytest.approx(0.5 * math.log(2))]]


class TestRewardScale:
    def test_it_is_state_and_divides_by_what_is_known_now(self) -> None:
        made = learner(scale_reward=True)
        assert made.rewards is not None
        reward = torch.ones(2, 5)
        scaled = made.scaled(reward)
        np.testing.assert_allclose(scaled[:, 0], made.rewards.moments.variance[:, 0] ** -0.5, rtol=1e-5)
        assert torch.equal(made.scaled(reward[:, :2]), scaled[:, :2])  # no matter which batch
        assert "rewards" in made.member_state(0)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"buffer_size": 20, "learning_starts": 20}, r"batch_size \(32\) must be at most buffer_size \(20\)"),
            ({"learning_starts": 300}, r"learning_starts \(300\) must be at most buffer_size \(200\)"),
            ({"learning_starts": 150}, r"learning_starts \(150\) must be at most epoch_steps \(96\)"),
        ],
    )
    def test_what_does_not_go_together_is_refused_before_training(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"SAC: {message}"):
            SAC("Pendulum-v1").init(**_nested({**SMALL, **changes}))

    @pytest.mark.parametrize("name", ["BoxWalk", "BitsWalk"])
    def test_other_action_spaces_are_refused_by_name(self, name: str) -> None:
        with pytest.raises(UnsupportedSpace, match=rf"SAC on own_envs:{name}-v0 acts in Discrete spaces"):
            SAC(f"own_envs:{name}-v0").init(**_nested(SMALL))

    def test_images_are_refused(self) -> None:
        with pytest.raises(UnsupportedSpace, match="sees vectors, but got images"):
            SAC("own_envs:ImageWalk-v0").init(**_nested(SMALL))


@pytest.mark.slow
def test_it_learns_to_swing_a_pendulum_up() -> None:
    task = SAC("Pendulum-v1", seed=1).init(
        model={"width": 64}, optimizer={"lr": 1e-3}, learning_starts=256, epoch_steps=1000
    )
    task.fit(8)
    assert task.evaluate() > -250
