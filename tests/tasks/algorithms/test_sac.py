"""SAC: exactness in three kinds of environment, its losses, and refusals."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import tiny
import torch
from rekindle import DQN, SAC, EnvSpec
from rekindle.spaces import unflatten
from rekindle.spaces.choices import Fixed
from rekindle.tasks.algorithms.continuous.actions import SoftActions, SoftSample
from rekindle.tasks.algorithms.continuous.learner import soft_value
from rekindle.tasks.algorithms.continuous.sac import SACLearner
from rekindle.tasks.envs import Joined
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.experience.normalizers import RewardNormalizer
from rekindle.tasks.testing import ExactnessSuite, VariantSuite
from torch.distributions import Categorical, Normal, TanhTransform, TransformedDistribution

SMALL = tiny.SAC
START = frozenset({"entropy.alpha"})  # where a learned coefficient starts
BOX = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
HYBRID = gym.spaces.Dict({"mode": gym.spaces.Discrete(2), "push": BOX, "size": gym.spaces.Discrete(3, start=1)})
SPACES = [BOX, gym.spaces.Discrete(3), gym.spaces.MultiBinary(2), Joined(HYBRID)]


class TestOnPendulum(ExactnessSuite):
    task = SAC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "epoch_steps": 64}
    variants: ClassVar = (
        {
            "entropy.lr": 0.01,
            "critic_lr": 0.002,
            "n_step": 3,
            "num_envs": 3,
            "buffer_size": 101,
            "scale_reward": True,
            "normalize_obs": True,
        },
        {
            "entropy.learn": False,
            "replay.name": "prioritized",
            "replay.beta_horizon": 300,
            "tau": 1.0,
            "target_update_interval": 7,
            "optimizer.name": "rmsprop",
            "optimizer.momentum": 0.5,
            "lr_schedule.name": "exponential",
            "lr_schedule.horizon": 600,
            "max_grad_norm": None,
            "num_steps": 4,
            "num_updates": 3,
        },
        {
            "optimizer.name": "adamw",
            "lr_schedule.name": "cosine",
            "lr_schedule.horizon": 600,
            "model.width": 17,
            "model.layers": 3,
            "model.activation": "elu",
            "batch_size": 33,
            "num_steps": 3,
            "num_envs": 2,
            "use_sde": True,
            "sde_sample_freq": 5,
        },
    )
    inert = START | {"entropy.choice_target"}  # of choices, and there are none


class TestOnCartPole(VariantSuite):
    task = SAC
    env = "CartPole-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"max_grad_norm": None, "num_envs": 3, "batch_size": 33, "model.activation": "elu", "stats_window_size": 4},
    )
    inert = START | {"entropy.target"}  # of numbers, and there are none


def learner(env: Any = "Pendulum-v1", seeds: tuple[int, ...] = (0, 1), **changes: Any) -> SACLearner:
    """A learner with small networks that has filled its memory."""
    task = SAC(env).init(**_nested({**SMALL, **changes}))
    made = SACLearner(task.env, seeds, [task.hyperparameters or {}] * len(seeds))
    while made.filling:
        made.iterate()
    return made


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    return dict(unflatten(values))


def sampled(actions: SoftActions, outputs: torch.Tensor, noise: torch.Tensor) -> SoftSample:
    """Actions by these outputs and this noise."""
    return actions.sample(outputs, noise)


def next_sample_of(made: SACLearner, batch: dict[str, torch.Tensor]) -> SoftSample:
    """The policy's actions for the next observations of a batch, as an update draws them."""
    return made.actions.sample(made.policy.outputs_of(batch)[1], made.update_noise(1)[:, 32:])


def batch_of(made: SACLearner) -> dict[str, torch.Tensor]:
    return made.sampler.draw(0, made.hp.gamma, made.env_steps)[1]


def mean_of(made: SACLearner, obs: torch.Tensor | None = None) -> torch.Tensor:
    """The first output (P, N) of the policy for observations, by default those that come next."""
    obs = torch.from_numpy(made.envs.obs) if obs is None else obs
    return made.policy.outputs(obs)[..., 0]


class TestSquashedNormal:
    def test_its_log_probability_is_that_of_torch(self) -> None:
        torch.manual_seed(0)
        mean, log_std, noise = (torch.randn(1, 50, 2, dtype=torch.float64) for _ in range(3))
        log_std = log_std.clamp(max=0.5)  # torch's own is infinite where tanh rounds to one
        sample = sampled(SoftActions(BOX, "a test"), torch.cat([mean, log_std], -1), noise)
        reference = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
        log_prob = reference.log_prob(sample.continuous).sum(-1)
        torch.testing.assert_close(-sample.entropies[..., 0], log_prob, rtol=1e-6, atol=1e-6)

    def test_it_is_finite_where_tanh_has_rounded_to_one(self) -> None:
        outputs = torch.tensor([[[50.0, 50.0, 0.0, 0.0], [-50.0, -50.0, 0.0, 0.0]]], requires_grad=True)
        sample = sampled(SoftActions(BOX, "a test"), outputs, torch.zeros(1, 2, 2))
        assert sample.continuous.abs().unique().tolist() == [1.0]
        # log N(u; u, 1) - log(1 - tanh(u)²) per number, where 1 - tanh(u)² = 4 exp(-2 |u|) to all digits
        expected = torch.full((1, 2), 2 * (-0.5 * math.log(2 * math.pi) - math.log(4) + 100))
        torch.testing.assert_close(-sample.entropies[..., 0].detach(), expected)
        sample.entropies.sum().backward()
        assert outputs.grad is not None
        assert outputs.grad[..., :2].tolist() == [[[-2.0, -2.0], [2.0, 2.0]]]  # towards where the entropy is

    def test_the_log_std_is_clipped_with_no_gradient_beyond(self) -> None:
        actions, noise = SoftActions(BOX, "a test"), torch.ones(1, 1, 2)
        outputs = torch.tensor([[[0.0, 0.0, -100.0, 100.0]]], requires_grad=True)
        sample = sampled(actions, outputs, noise)
        limits = sampled(actions, torch.tensor([[[0.0, 0.0, -20.0, 2.0]]]), noise)
        assert torch.equal(sample.entropies, limits.entropies)
        (sample.continuous.sum() + sample.entropies.sum()).backward()
        assert outputs.grad is not None
        assert outputs.grad[..., 2:].tolist() == [[[0.0, 0.0]]]


def made_up_q(sample: SoftSample, space: SoftActions) -> torch.Tensor:
    """Twin values (P, 2, B, n) that depend on the numbers and on the choice."""
    ways = torch.linspace(-1, 1, 2 * space.num_discrete, dtype=torch.float64).view(1, 2, 1, space.num_discrete)
    return ways + (sample.continuous.sum(-1)[:, None, :, None] * (ways + 0.3)).sin()


class TestGradients:
    @pytest.mark.parametrize("space", SPACES, ids=str)
    def test_of_the_soft_value(self, space: gym.Space[Any]) -> None:
        torch.manual_seed(0)
        actions = SoftActions(space, "a test")
        outputs = torch.randn(3, 5, actions.outputs, dtype=torch.float64, requires_grad=True)
        noise = torch.randn(3, 5, actions.continuous_dim, dtype=torch.float64)
        alpha = torch.rand(3, actions.entropy_terms, dtype=torch.float64)

        def value(outputs: torch.Tensor) -> torch.Tensor:
            sample = sampled(actions, outputs, noise)
            return soft_value(made_up_q(sample, actions).amin(1), sample, alpha)

        assert torch.autograd.gradcheck(value, outputs)

    def test_where_the_twins_agree_it_goes_to_the_first(self) -> None:
        actions = SoftActions(BOX, "a test")
        q = torch.ones(1, 2, 3, 1, requires_grad=True)
        sample = sampled(actions, torch.zeros(1, 3, 4), torch.zeros(1, 3, 2))
        soft_value(q.min(1).values, sample, torch.ones(1, 1)).sum().backward()
        assert q.grad is not None
        assert q.grad[0, :, :, 0].tolist() == [[1, 1, 1], [0, 0, 0]]

    @pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
    def test_of_the_critics_loss_on_the_actions_taken(self, env: str) -> None:
        made = learner(env)
        batch, policy = batch_of(made), made.policy
        losses, errors, _ = made.critic_loss(batch, made.total_reward(batch), next_sample_of(made, batch), made.alpha())
        gradient = policy.critic_gradient(losses)
        numbers, choices = made.actions.normalize(batch["action"])
        mlp, x = policy.critic_form, torch.cat([batch["obs"], numbers], -1)
        q = mlp(mlp.layers(policy.critics.leaves), x.repeat_interleave(2, 0)).unflatten(0, (2, 2))
        taken = torch.zeros_like(q[..., 0]).long() if choices is None else choices.unsqueeze(1).expand(-1, 2, -1)
        q_taken = q.gather(-1, taken.unsqueeze(-1)).squeeze(-1)
        targets = (errors + q_taken).detach()
        loss = 0.5 * (targets - q_taken).square().mean(-1).sum(1)
        torch.testing.assert_close(losses.mean(1), loss)
        torch.testing.assert_close(gradient, policy.critics.gradient(loss).reshape(2, -1))

    @pytest.mark.parametrize("env", ["Pendulum-v1", "CartPole-v1"])
    def test_of_the_actors_loss(self, env: str) -> None:
        made = learner(env)
        batch, policy, alpha = batch_of(made), made.policy, torch.full((2, 1), 0.3)
        noise = made.update_noise(1)[:, :32]
        sample = made.actions.sample(policy.outputs_of(batch)[0], noise)
        gradient = policy.actor_gradient(made.actor_loss(batch, sample, alpha))
        pi = policy.pi(policy.pi.layers(policy.actor.leaves), batch["obs"])
        sample = sampled(made.actions, pi, noise)
        x = torch.cat([batch["obs"], sample.continuous[..., : made.actions.continuous_dim]], -1)
        layers = policy.critic_form.layers(policy.critics.views)
        q = policy.critic_form(layers, x.repeat_interleave(2, 0)).unflatten(0, (2, 2))
        expected = policy.actor.gradient(-soft_value(q.amin(1), sample, alpha).mean(1))
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("more", [{}, {"use_sde": True}, {"model.memory": "gru", "model.sequence_length": 4}])
def test_a_constant_coefficient_learns_as_one_that_does_not_move(more: dict[str, Any]) -> None:
    """Of numbers and choices together, whether gradients are ours or torch's."""
    policies = []
    for entropy in ({"entropy.learn": False}, {"entropy.lr": 0.0}):
        task = SAC("own_envs:HybridWalk-v0", seed=1)
        task.init(**_nested({**SMALL, "epoch_steps": 64, "entropy.alpha": 0.2, **more, **entropy})).fit(1)
        assert task.ref is not None
        policies.append(task.ref.learner.policy)
    torch.testing.assert_close(policies[0].actor_vector, policies[1].actor_vector)
    torch.testing.assert_close(policies[0].critics.vector, policies[1].critics.vector)


@pytest.mark.slow
class TestOnHybridWalk(VariantSuite):
    task = SAC
    env = "own_envs:HybridWalk-v0"
    hyperparameters: ClassVar = {**SMALL, "epoch_steps": 64}
    variants: ClassVar = ({"use_sde": True, "num_envs": 2},)
    inert = START
    cohort_size = 3


class TestActions:
    def test_numbers_come_to_the_environments_bounds_and_back(self) -> None:
        actions = SoftActions(BOX, "a test")
        unit = torch.tensor([[[-1.0, -1.0], [1.0, 0.5]]])
        scaled = actions.denormalize(unit, None)
        assert scaled.tolist() == [[[-2.0, 0.0], [2.0, 0.75]]]
        back, choices = actions.normalize(scaled)
        assert choices is None
        torch.testing.assert_close(back, unit)

    def test_choices_are_drawn_as_often_as_the_policy_says(self) -> None:
        actions = SoftActions(gym.spaces.Discrete(3), "a test")
        logits = torch.tensor([0.0, 1.0, -1.0]).expand(1, 20_000, 3)
        uniforms = np.random.default_rng(0).uniform(size=(1, 20_000, 1))
        drawn = np.bincount(actions.act(logits, torch.zeros(1, 20_000, 1), uniforms)[0], minlength=3) / 20_000
        np.testing.assert_allclose(drawn, torch.softmax(logits[0, 0], -1), atol=0.01)

    def test_numbers_and_choices_come_to_rows_and_back(self) -> None:
        space = Joined(HYBRID)
        actions = SoftActions(space, "a test")
        assert (actions.continuous_dim, actions.num_discrete, actions.entropy_terms) == (2, 6, 2)
        numbers, choices = torch.tensor([[[-1.0, 0.5], [1.0, -1.0]]]), torch.tensor([[1, 5]])
        rows = actions.denormalize(numbers, choices)
        assert rows.tolist() == [[[0, -2, 0.75, 1], [1, 2, 0, 2]]]
        taken = space.split(rows[0, 1].numpy())
        assert HYBRID.contains(taken)
        assert (taken["mode"], taken["push"].tolist(), taken["size"]) == (1, [2.0, 0.0], 3)
        back, chosen = actions.normalize(rows)
        torch.testing.assert_close(back, numbers)
        assert chosen is not None
        assert torch.equal(chosen, choices)

    @pytest.mark.parametrize(
        ("space", "row"), [(gym.spaces.MultiDiscrete([3, 4]), [2, 1]), (gym.spaces.MultiBinary((2, 2)), [1, 0, 0, 1])]
    )
    def test_several_choices_are_one_of_all_combinations(self, space: gym.Space[Any], row: list[int]) -> None:
        actions = SoftActions(space, "a test")
        assert (actions.continuous_dim, actions.entropy_terms) == (0, 1)
        numbers, choice = actions.normalize(torch.tensor([[row]]))
        assert numbers.shape == (1, 1, 0)
        assert choice is not None
        assert choice.item() == 9  # 2 * 4 + 1, and 1001 in binary
        assert actions.denormalize(numbers, choice).tolist() == [[row]]

    def test_evaluation_is_greedy(self) -> None:
        made = learner()
        obs = made.envs.obs
        np.testing.assert_allclose(made.actor(2)(obs.repeat(2, 1))[:, :1, 0], 2 * torch.tanh(mean_of(made)), rtol=1e-5)


class TestSoftValue:
    def test_the_value_of_numbers_is_the_least_q_less_their_log_probability(self) -> None:
        torch.manual_seed(0)
        actions, outputs, noise = SoftActions(BOX, "a test"), torch.randn(2, 7, 4), torch.randn(2, 7, 2)
        q, alpha = torch.randn(2, 2, 7, 1), torch.tensor([[0.5], [2.0]])
        sample = sampled(actions, outputs, noise)
        normal = Normal(outputs[..., :2], outputs[..., 2:].clamp(-20, 2).exp())
        policy = TransformedDistribution(normal, [TanhTransform()])
        expected = q.amin(1)[..., 0] - alpha * policy.log_prob(sample.continuous).sum(-1)
        torch.testing.assert_close(soft_value(q.amin(1), sample, alpha), expected, rtol=1e-4, atol=1e-4)

    def test_the_value_of_choices_is_the_expected_least_q_plus_their_entropy(self) -> None:
        torch.manual_seed(0)
        actions = SoftActions(gym.spaces.Discrete(4), "a test")
        logits, q = torch.randn(2, 7, 4), torch.randn(2, 2, 7, 4)
        alpha = torch.tensor([[0.5], [2.0]])
        value = soft_value(q.amin(1), sampled(actions, logits, torch.zeros(2, 7, 0)), alpha)
        policy = Categorical(logits=logits)
        torch.testing.assert_close(value, (policy.probs * q.amin(1)).sum(-1) + alpha * policy.entropy())

    def test_both_entropies_of_a_hybrid_action_raise_its_value(self) -> None:
        torch.manual_seed(0)
        actions, outputs = SoftActions(Joined(HYBRID), "a test"), torch.randn(1, 7, 10)
        sample, q = sampled(actions, outputs, torch.randn(1, 7, 2)), torch.randn(1, 2, 7, 6)
        policy = Categorical(logits=outputs[..., 4:])
        torch.testing.assert_close(sample.entropies[..., 1], policy.entropy())
        plain = (policy.probs * q.amin(1)).sum(-1)
        value = soft_value(q.amin(1), sample, torch.tensor([[0.5, 2.0]]))
        torch.testing.assert_close(value, plain + 0.5 * sample.entropies[..., 0] + 2 * policy.entropy())


class TestLearning:
    def test_the_target_is_the_reward_and_the_discounted_soft_value_of_the_target_critics(self) -> None:
        made = learner()
        batch = batch_of(made)
        made.policy.target_vector.mul_(1.5)  # so that targets and critics differ
        following, alpha = next_sample_of(made, batch), torch.full((2, 1), 0.3)
        _, errors, _ = made.critic_loss(batch, made.total_reward(batch), following, alpha)
        numbers = made.actions.normalize(batch["action"])[0]
        both = made.policy.q_and_target(batch, numbers, following.continuous)
        q, next_q = (x.detach().clone() for x in both)
        made.policy.critic_vector.copy_(made.policy.target_vector)
        torch.testing.assert_close(made.policy.q({"obs": batch["next_obs"]}, following.continuous), next_q)
        next_value = next_q.amin(1)[..., 0] + 0.3 * following.entropies[..., 0]
        targets = batch["reward"] + batch["discount"] * next_value
        torch.testing.assert_close(errors, targets.unsqueeze(1) - q[..., 0])

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
        assert torch.equal(policy.target_vector, policy.critic_vector)
        assert not torch.equal(*policy.critics.vector[:2])

    def test_tau_is_the_fraction_taken_from_the_online_critics(self) -> None:
        policy = learner().policy
        policy.target_vector.zero_()
        policy.critic_vector.fill_(1.0)
        policy.move_target(torch.tensor([[0.25], [0.0]]))
        assert policy.target_vector[0].unique().tolist() == [0.25]
        assert policy.target_vector[1].unique().tolist() == [0.0]
        policy.move_target(torch.tensor([[1.0], [1.0]]))
        assert torch.equal(policy.target_vector, policy.critic_vector)

    def test_targets_move_every_so_many_updates(self) -> None:
        made = learner(target_update_interval=3, tau=1.0)
        while made.progress.updates < 2:
            made.iterate()
        assert not torch.equal(made.policy.target_vector, made.policy.critic_vector)
        made.iterate()
        assert torch.equal(made.policy.target_vector, made.policy.critic_vector)

    def test_a_step_goes_from_critics_to_actor_to_coefficient_to_targets(self) -> None:
        rates = {"critic_lr": 0.01, "entropy.lr": 0.01}
        made, old_critics, old_actor = learner(**rates), learner(**{**rates, "critic_lr": 0.0}), learner(**rates)
        batch, target = batch_of(made), made.policy.target_vector.clone()
        old_actor.hp.optimizer.lr = torch.zeros(2, 1)
        for copy in (made, old_critics, old_actor):
            copy.update(batch)
        for mine, theirs in zip(made.policy.actor_vector, old_critics.policy.actor_vector, strict=True):
            assert not torch.equal(mine, theirs)  # the actor sees the critics after their step
        assert not torch.equal(made.policy.actor_vector, old_actor.policy.actor_vector)
        for learners in (made, old_actor):  # and nobody else sees the actor after its own
            assert torch.equal(learners.policy.critic_vector, made.policy.critic_vector)
            assert torch.equal(learners.coefficients.alpha, made.coefficients.alpha)
        torch.testing.assert_close(made.policy.target_vector, target.lerp(made.policy.critic_vector, 0.05))

    def test_the_actor_climbs_q(self) -> None:
        made = learner(seeds=(0,), **{"entropy.learn": False, "entropy.alpha": 1e-12, "critic_lr": 0.0})
        made.policy.critic_vector.zero_()  # critics that know one thing: the larger the action, the better
        for name, view in made.policy.critics.views.items():
            if name.endswith("weight"):
                view[:, -1] = 1.0
        obs = torch.from_numpy(made.envs.obs)
        before = float(mean_of(made, obs)[0, 0])
        for _ in range(20):
            made.iterate()
        assert float(mean_of(made, obs)[0, 0]) > before + 0.1


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
        before = made.coefficients.alpha.clone()
        made.coefficients.descend(torch.tensor([[-3.0], [2.0]]), torch.full((2, 1), 0.01))
        assert float(made.coefficients.alpha[0] - before[0]) > 0 > float(made.coefficients.alpha[1] - before[1])

    def test_a_fixed_one_stays(self) -> None:
        task = SAC("Pendulum-v1").init(**_nested({**SMALL, "entropy.learn": False, "entropy.alpha": 0.35}))
        assert task.fit(2)["alpha"] == pytest.approx(0.35)
        assert "coefficients" not in task.state_dict()["learner"]

    def test_the_targets_are_by_the_numbers_and_choices_of_the_space(self) -> None:
        assert learner().coefficients.targets.tolist() == [[-1.0], [-1.0]]
        half = learner("CartPole-v1", seeds=(0,), **{"entropy.choice_target": 0.5})
        assert half.coefficients.targets.tolist() == [[pytest.approx(0.5 * math.log(2))]]


class TestRewardScale:
    def test_it_is_state_and_divides_by_what_is_known_now(self) -> None:
        made = learner(scale_reward=True)
        assert isinstance(made.rewards, RewardNormalizer)
        reward = torch.ones(2, 5)
        scaled = made.rewards.scale(reward)
        np.testing.assert_allclose(scaled[:, 0], made.rewards.variance[:, 0] ** -0.5, rtol=1e-5)
        assert torch.equal(made.rewards.scale(reward[:, :2]), scaled[:, :2])  # no matter which batch
        assert "rewards" in made.member_state(0)

    def test_the_critics_target_is_made_of_scaled_rewards(self) -> None:
        made, plain = learner(scale_reward=True), learner()
        batch, alpha = batch_of(plain), torch.full((2, 1), 0.3)
        following = next_sample_of(plain, batch)
        difference = (
            made.critic_loss(batch, made.total_reward(batch), following, alpha)[1]
            - plain.critic_loss(batch, plain.total_reward(batch), following, alpha)[1]
        )
        expected = made.rewards.scale(batch["reward"]) - batch["reward"]
        assert expected.abs().min() > 0.1
        torch.testing.assert_close(difference, expected.unsqueeze(1).expand_as(difference), rtol=1e-4, atol=1e-4)


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"buffer_size": 20, "learning_starts": 20}, r"batch_size \(32\) must be at most buffer_size \(20\)"),
            ({"learning_starts": 300}, r"learning_starts \(300\) must be at most buffer_size \(200\)"),
            (
                {"learning_starts": 150, "refill_interval": 1},
                r"learning_starts \(150\) must be at most refill_interval \* epoch_steps \(96\)",
            ),
        ],
    )
    def test_contradicting_values_are_refused_before_training(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=f"SAC: {message}"):
            SAC("Pendulum-v1").init(**_nested({**SMALL, **changes}))

    def test_a_buffer_may_be_filled_for_longer_than_an_epoch(self) -> None:
        def make() -> SAC:
            return SAC("Pendulum-v1").init(**_nested({**SMALL, "learning_starts": 150}))

        task, resumed = make(), make()
        task.fit(1)
        assert task.metrics["updates"] == 0
        resumed.load_state_dict(task.state_dict())
        for training in (task, resumed):
            training.fit(2)
        assert task.metrics["updates"] > 0
        assert resumed.digest == task.digest

    def test_other_action_spaces_are_refused_by_name(self) -> None:
        with pytest.raises(UnsupportedSpace, match=r"SAC on own_envs:BoxWalk-v0 acts in Discrete, MultiDiscrete and"):
            SAC("own_envs:BoxWalk-v0").init(**_nested(SMALL))
        with pytest.raises(UnsupportedSpace, match=r"at most 4096 combinations of its choices, .* has 8192; use PPO"):
            SoftActions(gym.spaces.MultiBinary(13), "here")

    def test_dqn_refuses_hybrid_actions(self) -> None:
        with pytest.raises(UnsupportedSpace, match=r"but got Joined\(Dict"):
            DQN("own_envs:HybridWalk-v0").init()


@pytest.mark.slow
def test_it_learns_to_swing_a_pendulum_up() -> None:
    task = SAC("Pendulum-v1", seed=1).init(
        model={"width": 64}, optimizer={"lr": 1e-3}, learning_starts=256, epoch_steps=1000
    )
    task.fit(8)
    assert task.evaluate() > -250


def test_only_the_entropy_that_an_action_has_is_searched() -> None:
    expected = {"Pendulum-v1": {"entropy.target"}, "CartPole-v1": {"entropy.choice_target"}}
    for env, names in expected.items():
        space = SAC(env).get_space().flat()
        targets = {"entropy.target", "entropy.choice_target"}
        assert {name for name in targets if not isinstance(space[name], Fixed)} == names
