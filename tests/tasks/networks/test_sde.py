"""State-dependent exploration: inputs of its noise, its distribution, and its resampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from fakes import batch_of
from gymnasium import spaces
from rekindle import A2C, PPO, PPO2, Cohort, EnvSpec, Task
from rekindle.spaces import UnknownParameter
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.networks.sde import Perturbations, StateDependentGaussian, state_dependent
from rekindle.tasks.rng import streams
from torch import Tensor

K, L = 2, 5
DIST = StateDependentGaussian((K,), L)


def draws(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def perturbations(
    members: list[int], log_std: Tensor, num_envs: int = 3, steps: int = 8, every: int = -1
) -> Perturbations:
    return Perturbations(streams.keys(members, "sde"), num_envs, DIST, log_std, steps, every)


def learner_of(task: type[Task] = PPO, members: int = 2, **hyperparameters: Any) -> Any:
    options = {"num_steps": 16, "num_envs": 4, "use_sde": True, **hyperparameters}
    tasks = [task("Pendulum-v1", seed=seed).init(**options) for seed in range(members)]
    return tasks[0].build_learner(tasks)


# The distribution


def test_the_density_is_that_of_a_normal_variable_with_the_deviation_of_the_paper() -> None:
    mean, z, log_std, actions = draws(2, 7, K), draws(2, 7, L, seed=1), draws(2, L, K, seed=2), draws(2, 7, K, seed=3)
    log_prob, entropy = DIST.log_prob_and_entropy(DIST.params(mean, z, log_std), actions)
    deviation = torch.einsum("pbl,plk->pbk", z**2, log_std.exp() ** 2).sqrt()
    expected = torch.distributions.Independent(torch.distributions.Normal(mean, deviation), 1)
    torch.testing.assert_close(log_prob, expected.log_prob(actions), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(entropy, expected.entropy(), rtol=1e-4, atol=1e-4)


def test_the_gradient_reaches_the_deviations_and_not_the_features_by_way_of_the_noise() -> None:
    mean, z, log_std = (x.requires_grad_() for x in (draws(2, 7, K), draws(2, 7, L, seed=1), draws(2, L, K, seed=2)))
    actions = draws(2, 7, K, seed=3)
    log_prob, _ = DIST.log_prob_and_entropy(DIST.params(mean, z, log_std), actions)
    deviation = torch.einsum("pbl,plk->pbk", z.detach() ** 2, log_std.exp() ** 2).sqrt()
    expected = torch.distributions.Normal(mean, deviation).log_prob(actions).sum(-1)
    for mine, theirs in zip(
        torch.autograd.grad(log_prob.sum(), (mean, log_std)),
        torch.autograd.grad(expected.sum(), (mean, log_std)),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert torch.autograd.grad(DIST.params(mean, z, log_std)[..., : 2 * K].sum(), z, allow_unused=True)[0] is None


def test_sampled_actions_have_the_deviation_that_their_density_says() -> None:
    mean, z, log_std = draws(1, 1, K), draws(1, 1, L, seed=1), draws(1, L, K, seed=2)
    params = DIST.params(mean, z, log_std)
    theta = perturbations([0], log_std, num_envs=20_000)(0)[0]
    actions = DIST.sample(params.expand(1, 20_000, -1), theta)[0]
    torch.testing.assert_close(actions.mean(0), mean[0, 0], rtol=0, atol=0.1)
    torch.testing.assert_close(actions.std(0), params[0, 0, K : 2 * K].exp(), rtol=0.03, atol=0)


def test_the_mode_is_the_mean_whatever_was_drawn() -> None:
    params = DIST.params(draws(1, 4, K), draws(1, 4, L, seed=1), draws(1, L, K, seed=2))
    assert torch.equal(DIST.mode(params), draws(1, 4, K))


def test_activations_of_zero_leave_a_finite_density() -> None:
    params = DIST.params(draws(1, 4, K), torch.zeros(1, 4, L), draws(1, L, K))
    assert DIST.log_prob_and_entropy(params, draws(1, 4, K))[0].isfinite().all()


@pytest.mark.parametrize("size", [1, 2, 3, 8, 67])
@pytest.mark.parametrize("shape", [(1,), (3,), (2, 2)])
def test_a_member_does_not_depend_on_its_neighbours(size: int, shape: tuple[int, ...]) -> None:
    dist = StateDependentGaussian(shape, 17)
    mean, z, log_std = draws(4, size, dist.size), draws(4, size, 17, seed=1), draws(4, 17, dist.size, seed=2)
    theta = draws(4, size, dist.size, 17, seed=3)
    params = dist.params(mean, z, log_std)
    actions = dist.sample(params, theta)
    whole = dist.log_prob_and_entropy(params, actions)
    for p in (0, 3):
        member = slice(p, p + 1)
        alone = dist.params(mean[member].clone(), z[member].clone(), log_std[member].clone())
        assert torch.equal(alone, params[member])
        assert torch.equal(dist.sample(alone, theta[member].clone()), actions[member])
        for mine, other in zip(dist.log_prob_and_entropy(alone, actions[member].clone()), whole, strict=True):
            assert torch.equal(mine, other[member])


# When it is drawn


@pytest.mark.parametrize(("every", "changes"), [(-1, [0]), (3, [0, 3, 6]), (1, [0, 1, 2, 3, 4, 5, 6, 7]), (100, [0])])
def test_noise_is_drawn_at_the_beginning_and_after_every_so_many_steps(every: int, changes: list[int]) -> None:
    drawn = perturbations([0, 1], torch.zeros(2, L, K), every=every)
    rollouts = [drawn(i) for i in range(3)]
    for steps in rollouts:
        new = [t for t in range(8) if t == 0 or not torch.equal(steps[t], steps[t - 1])]
        assert new == changes
    firsts = torch.stack([steps[t] for steps in rollouts for t in changes])
    assert len(firsts.flatten(1).unique(dim=0)) == 3 * len(changes)


def test_noise_is_the_members_own_whenever_it_is_asked_for() -> None:
    log_std = draws(3, L, K)
    together, alone = perturbations([4, 5, 6], log_std, every=3), perturbations([6], log_std[2:].clone(), every=3)
    for rollout in (0, 7, 3):
        for a, b in zip(together(rollout), alone(rollout), strict=True):
            assert torch.equal(a[2], b[0])
            assert len(a[2].flatten(1).unique(dim=0)) == 3  # and each environment's own


def test_noise_is_as_large_as_its_deviation_says() -> None:
    log_std = torch.tensor([[0.1, 1.0], [2.0, 0.5]]).log()[None]
    dist = StateDependentGaussian((2,), 2)
    theta = Perturbations(streams.keys([1], "sde"), 50_000, dist, log_std, 1, -1)(0)[0][0]
    np.testing.assert_allclose(theta.std(0).T, log_std[0].exp(), rtol=0.02)
    np.testing.assert_allclose(theta.mean(0).T / log_std[0].exp(), 0, atol=0.02)


# In the algorithms


@pytest.mark.parametrize("task", [PPO, PPO2, A2C])
def test_in_a_rollout_noise_is_a_function_of_the_state(task: type[Task]) -> None:
    learner = learner_of(task)
    rollout = learner.agent.collect(learner.envs, 0)
    params = learner.policy.action_params(rollout.obs[:, :-1].flatten(1, 2))
    z = params[..., 2:].unflatten(1, (16, 4))
    noise = (rollout.actions - params[..., :1].unflatten(1, (16, 4)))[..., 0]
    for p in range(2):
        for n in range(4):  # 16 numbers of noise from one linear function of z
            theta = learner.agent.noise(0)[0][p, n, 0]
            torch.testing.assert_close(z[p, :, n] @ theta, noise[p, :, n], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_the_density_of_stored_actions_is_that_of_when_they_were_taken(memory: str) -> None:
    learner = learner_of(PPO2, model={"memory": memory}, num_minibatches=1)
    batch = batch_of(learner)
    _, report = learner.loss(batch)
    assert report["approx_kl"].abs().max() < 1e-6
    assert report["clip_fraction"].tolist() == [0, 0]


def test_the_first_deviation_of_an_action_is_std_init_where_features_are_one() -> None:
    learner = learner_of(model={"std_init": 0.5, "width": 32})
    log_std = learner.policy.parameters.views["actor.log_std"]
    params = learner.policy.distribution.params(torch.zeros(2, 1, 1), torch.ones(2, 1, 32), log_std)
    torch.testing.assert_close(params[..., 1].exp(), torch.full((2, 1), 0.5))


def test_the_deviations_are_learned() -> None:
    learner = learner_of(A2C)
    before = learner.policy.parameters.views["actor.log_std"].clone()
    for _ in range(3):
        learner.iterate()
    assert (learner.policy.parameters.views["actor.log_std"] != before).any(1).all()


def test_evaluation_is_deterministic_and_draws_nothing() -> None:
    learner = learner_of()
    obs = learner.envs.obs
    assert np.array_equal(learner.actor(4)(obs), learner.actor(4)(obs))
    mean = learner.policy.action_params(torch.from_numpy(obs))[..., :1]
    assert np.array_equal(learner.actor(4)(obs), mean.numpy())


@pytest.mark.parametrize("task", [PPO, PPO2, A2C])
def test_an_action_space_without_numbers_is_refused_before_any_training(task: type[Task]) -> None:
    message = rf"{task.learner.algorithm()} on CartPole-v1: use_sde explores in a Box of floats, but got Discrete\(2\)"
    with pytest.raises(UnsupportedSpace, match=message + "; leave use_sde out"):
        task("CartPole-v1").init(use_sde=True)
    with pytest.raises(UnsupportedSpace, match="use_sde"):
        task(EnvSpec("LunarLander-v3")).init(use_sde=True)


def test_the_shape_of_the_box_is_kept() -> None:
    assert state_dependent(spaces.Box(-1, 1, (2, 3)), 4, "here").action_shape == (2, 3)


@pytest.mark.parametrize(
    ("hyperparameters", "error", "message"),
    [
        ({"use_sde": True, "sde_sample_freq": 0}, ValueError, r"sde_sample_freq must be -1, .* but got 0; try 1"),
        (
            {"use_sde": True, "sde_sample_freq": -2},
            ValueError,
            r"sde_sample_freq must be one of -1, .* or an integer in \[-1, ",
        ),
        ({"sde_sample_freq": 4}, UnknownParameter, "sde_sample_freq applies only when use_sde is True"),
    ],
)
def test_a_frequency_that_means_nothing_is_refused(hyperparameters: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        PPO("Pendulum-v1").init(**hyperparameters)


@pytest.mark.slow
def test_a_pendulum_is_swung_up() -> None:
    settings: dict[str, Any] = {"gamma": 0.9, "num_steps": 1024, "num_envs": 4}
    settings |= {"update_epochs": 10, "num_minibatches": 64, "target_kl": None}  # a bound would stop 19 of 20 steps
    tasks = [PPO("Pendulum-v1", seed=seed).init(use_sde=True, sde_sample_freq=4, **settings) for seed in range(4)]
    Cohort(tasks).fit(25)
    returns = sorted(task.metrics["episode_return"] for task in tasks)
    assert returns[1] > -500, returns  # of about -1200 at first
