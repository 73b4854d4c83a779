"""SVPG: exactness of the coupled cohort, Stein's gradient on known densities, and one particle as the base learner."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import A2C, PPO, SVPG, Cohort, EnvSpec
from rekindle.tasks import load
from rekindle.tasks.algorithms.svpg import SVPGPPO, SVPGPPO2, SVPGLearner, kernel, stein_gradient
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.errors import Diverged, StateMismatch, UnsupportedSpace
from rekindle.tasks.testing import ExactnessSuite, VariantSuite
from torch import Tensor

SMALL: dict[str, Any] = {
    "epoch_steps": 96,
    "num_envs": 3,
    "num_particles": 3,
    "optimizer.lr": 0.01,
    "max_grad_norm": 0.1,
}


class TestOnCartPole(ExactnessSuite):
    task = SVPG
    env = "CartPole-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = ({"horizon": 150, "temperature": 10.0, "optimizer.momentum": 0.5},)
    inert = frozenset({"model.std_init"})  # the first standard deviation of continuous actions
    cohort_size = 3


@pytest.mark.slow
class TestOfPPO2OnPendulum(VariantSuite):
    task = SVPGPPO2
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "num_steps": 16, "update_epochs": 2, "clip_coef": 0.1}
    inert = frozenset({"model.std_init"})  # acts on the first state only
    cohort_size = 3


def descend(particles: Tensor, slope: Any, temperature: float, steps: int = 400, lr: float = 0.1) -> Tensor:
    """Particles (1, n, D) after steps down Stein's gradient of a loss with this slope, by RMSprop."""
    history = torch.zeros_like(particles)
    for _ in range(steps):
        gradient = stein_gradient(particles, slope(particles), temperature)
        history = 0.9 * history + 0.1 * gradient.square()
        particles = particles - lr * gradient / (history.sqrt() + 1e-6)
        lr *= 0.99
    return particles


def start(count: int, size: int) -> Tensor:
    return torch.randn(1, count, size, generator=torch.Generator().manual_seed(0)) - 3


@pytest.mark.parametrize("temperature", [0.25, 1.0, 4.0])
def test_particles_spread_as_the_target_density(temperature: float) -> None:
    # L = (x - 2)² / (2 s²): at temperature α the density exp(-L / α) is normal with variance α s².
    scale = torch.tensor([1.0, 0.5])
    particles = descend(start(40, 2), lambda x: (x - 2) / scale.square(), temperature)[0]
    torch.testing.assert_close(particles.mean(0), torch.full((2,), 2.0), rtol=0, atol=0.1 * math.sqrt(temperature))
    torch.testing.assert_close(particles.std(0), math.sqrt(temperature) * scale, rtol=0.2, atol=0)


def test_particles_find_both_modes_of_a_mixture() -> None:
    def slope(x: Tensor) -> Tensor:  # of -log(1/3 N(-2, 1) + 2/3 N(2, 1)), the example of Liu and Wang (2016)
        log_weights = torch.stack([math.log(1 / 3) - (x + 2) ** 2 / 2, math.log(2 / 3) - (x - 2) ** 2 / 2])
        left, right = log_weights.softmax(0)
        return left * (x + 2) + right * (x - 2)

    particles = descend(start(40, 1) - 7, slope, 1.0, steps=500, lr=0.3)[0, :, 0]
    assert 0.5 < (particles > 0).float().mean() < 0.8
    assert particles.mean().item() == pytest.approx(2 / 3, abs=0.4)


def test_without_repulsion_they_would_all_meet() -> None:
    # What Pyrado really did: the Stein gradient was computed and never applied.
    particles = descend(start(20, 2), lambda x: x - 2, temperature=0.0)[0]
    assert particles.std(0).max() < 0.05


def test_the_gradient_is_the_papers_sum() -> None:
    x = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1))
    g = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(2))
    alpha = torch.tensor([0.5, 3.0])
    h = kernel(x).bandwidth
    expected = torch.zeros_like(g)
    for p in range(2):
        for i in range(5):
            for j in range(5):
                theta = x[p, j].clone().requires_grad_()
                k = (-(theta - x[p, i]).square().sum() / h[p, 0, 0]).exp()
                (slope,) = torch.autograd.grad(k, theta)
                expected[p, i] += (k.detach() * g[p, j] - alpha[p] * slope) / 5
    torch.testing.assert_close(stein_gradient(x, g, alpha.view(2, 1, 1)), expected)


def test_particles_are_driven_apart_where_there_is_nothing_to_learn() -> None:
    x = torch.tensor([[[0.0, 0.0], [1.0, 0.0]]])
    step = -stein_gradient(x, torch.zeros_like(x), 1.0)[0]
    assert step[0, 0] < 0 < step[1, 0]
    assert step[:, 1].tolist() == [0, 0]


def test_the_bandwidth_is_the_median_of_the_pairs_without_the_diagonal() -> None:
    x = torch.tensor([[[0.0], [1.0], [3.0]]])  # squared distances 1, 4, 9
    assert kernel(x).bandwidth.item() == pytest.approx(4 / math.log(4))


@pytest.mark.parametrize("count", [1, 2, 7])
def test_identical_particles_share_their_gradients_and_stay_finite(count: int) -> None:
    x = torch.ones(1, count, 3).mul(0.3)
    g = torch.randn(1, count, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(kernel(x).values, torch.ones(1, count, count))
    torch.testing.assert_close(stein_gradient(x, g, 5.0), g.mean(1, keepdim=True).expand_as(g))


def test_a_few_that_differ_among_identical_ones_stay_finite() -> None:
    x = torch.zeros(1, 6, 3)
    x[0, 5] = 1e-3
    direction = stein_gradient(x, torch.zeros_like(x), 1.0)
    assert direction.isfinite().all()
    assert direction[0, 5].max() < 0 < direction[0, 0].max()  # one goes up, the others down


def test_a_trial_does_not_see_the_particles_of_another() -> None:
    x = torch.randn(3, 4, 33, generator=torch.Generator().manual_seed(0))
    g = torch.randn(3, 4, 33, generator=torch.Generator().manual_seed(1))
    together = stein_gradient(x, g, torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1))
    for p in range(3):
        alone = stein_gradient(x[p : p + 1].clone(), g[p : p + 1].clone(), torch.full((1, 1, 1), p + 1.0))
        assert torch.equal(alone[0], together[p])


@pytest.mark.parametrize(("coupled", "base"), [(SVPG, A2C), (SVPGPPO, PPO)])
def test_one_particle_is_the_base_learner_bit_for_bit(coupled: Any, base: Any) -> None:
    common: dict[str, Any] = {"epoch_steps": 256, "num_steps": 16}
    one = coupled("CartPole-v1", seed=5).init(**common, num_particles=1)
    other = base("CartPole-v1", seed=5).init(**common)
    one.fit(2)
    other.fit(2)
    assert difference(one.particle_state(0)["learner"], other.state_dict()["learner"]) == []
    assert one.metrics == other.metrics
    assert one.evaluate(3) == other.evaluate(3)


def fitted(seed: int = 1, epochs: int = 1, **changes: Any) -> SVPG:
    task = SVPG("CartPole-v1", seed=seed).init(epoch_steps=128, **{"num_particles": 3, "temperature": 5.0, **changes})
    task.fit(epochs)
    return task


def test_the_steins_gradient_is_what_the_optimizers_get() -> None:
    assert fitted(temperature=1.0).digest != fitted(temperature=50.0).digest
    cold, hot = fitted(epochs=4, temperature=0.1), fitted(epochs=4, temperature=100.0)
    assert hot.metrics["particle_distance"] > cold.metrics["particle_distance"]


def test_policies_are_coupled_within_a_trial_and_critics_are_not() -> None:
    tasks = [SVPG("Pendulum-v1", seed=seed).init(num_particles=3, temperature=5.0) for seed in range(2)]
    learner: Any = SVPGLearner(tasks[0].env, [0, 1], [task.hyperparameters or {} for task in tasks])
    parameters = learner.particles.policy.parameters
    parameters.vector += torch.randn(parameters.vector.shape, generator=torch.Generator().manual_seed(0))
    vectors = torch.randn(parameters.vector.shape, generator=torch.Generator().manual_seed(1))
    coupled = learner.mix_gradients(vectors.clone())
    place, policies, gradients, result = 0, [], [], []
    for name, view in parameters.views.items():
        columns = slice(place, place := place + view[0].numel())
        if name.startswith("critic."):
            assert torch.equal(coupled[:, columns], vectors[:, columns])
        else:
            for parts, vector in ((policies, parameters.vector), (gradients, vectors), (result, coupled)):
                parts.append(vector[:, columns])
    stacked = [torch.cat(parts, 1).unflatten(0, (2, 3)) for parts in (policies, gradients, result)]
    torch.testing.assert_close(stacked[2], stein_gradient(stacked[0], stacked[1], 5.0))
    assert not torch.allclose(stacked[2], stacked[1])


def test_every_particle_has_an_optimizer_of_its_own() -> None:
    task = fitted()
    squares = [task.particle_state(j)["learner"]["optimizer"]["square"] for j in range(3)]
    assert not torch.equal(squares[0], squares[1])


def test_the_temperature_falls_to_nothing_at_the_horizon() -> None:
    task = SVPG("CartPole-v1").init(temperature=8.0, horizon=1024)
    learner: Any = task.build_learner([task])
    values = []
    for steps in (0, 256, 1024, 9999):
        learner.particles.env_steps = steps
        values.append(learner.temperature().item())
    assert values == [8, 6, 0, 0]


def test_each_particle_is_saved_and_loaded_alone() -> None:
    task, other = fitted(1), fitted(2)
    before, uid = [task.particle_state(j) for j in range(3)], task.uid
    taken = other.particle_state(2)
    task.load_particle(1, taken)
    assert difference(task.particle_state(1), taken) == []
    for j in (0, 2):
        assert difference(task.particle_state(j), before[j]) == []
    assert task.uid != uid  # it is the result of its seed and hyperparameters no more
    task.fit(2)


def test_each_particle_acts_and_is_taken_over_alone(tmp_path: Path) -> None:
    task = fitted()
    returns = task.evaluate_particles(4)
    assert len(set(returns)) > 1
    for j in range(3):
        alone = A2C("CartPole-v1", seed=9, warm_start=task.policy(j)).init()
        assert alone.evaluate(4) == returns[j]
        rng = np.random.default_rng(j)
        some = rng.standard_normal((20, 4)).astype(np.float32)
        np.testing.assert_array_equal(task.value(some, particle=j), alone.value(some))
        for obs in some:
            assert task.act(obs, particle=j) == task.player(j)(obs) == alone.act(obs)
    first, file = task.policy(0), task.save_policy(tmp_path / "second.safetensors", particle=1)
    assert {f"0.{name}" for name in first} < task.policy().keys()
    assert A2C("CartPole-v1", warm_start=file).init().evaluate(4) == returns[1]
    with pytest.raises(ValueError, match="a particle must be one of 0 to 2, but got 3"):
        task.act(obs, particle=3)


def test_a_particle_of_another_point_or_structure_is_refused_and_changes_nothing() -> None:
    task = fitted()
    digest = task.digest
    with pytest.raises(StateMismatch, match="must be at the same point"):
        task.load_particle(0, fitted(epochs=2).particle_state(0))
    with pytest.raises(StateMismatch, match="another structure"):
        task.load_particle(0, fitted(model={"width": 16}).particle_state(0))
    with pytest.raises(ValueError, match="a particle must be one of 0 to 2, but got 3"):
        task.load_particle(3, task.particle_state(0))
    assert task.digest == digest
    task.fit(2)


def test_particles_that_wait_for_whole_episodes_resume_exactly() -> None:
    small = {"num_particles": 2, "num_envs": 2, "epoch_steps": 128, "num_steps": 16, "min_steps": 60}
    whole, begun, resumed = (SVPG("CartPole-v1", seed=1).init(**small) for _ in range(3))
    whole.fit(3)
    begun.fit(1)
    resumed.load_state_dict(begun.state_dict())
    resumed.fit(3)
    assert resumed.digest == whole.digest


def test_a_fault_of_a_particle_s_environment_is_named() -> None:
    env = EnvSpec("own_envs:Faulty-v0", {"what": "reward", "at": 5})
    task = SVPG(env, seed=1).init(num_particles=2, num_envs=2, epoch_steps=32, num_steps=8)
    with pytest.raises(Diverged, match=r"Faulty-v0 gave a reward that is not finite in 32 bits at step 5 .*; fix it"):
        task.fit(1)


def test_a_state_has_every_particle() -> None:
    task, state = fitted(), fitted().state_dict()
    del state["learner"]["particles"]["1"]
    with pytest.raises(StateMismatch, match="particles"):
        task.load_state_dict(state)


def test_the_loss_of_a_batch_is_the_mean_of_the_particles() -> None:
    task, batch = fitted(), {"obs": torch.linspace(-1, 1, 24).view(6, 4), "actions": torch.zeros(6, dtype=torch.int64)}
    batch |= {name: torch.linspace(-1, 1, 6) for name in ("log_probs", "values", "advantages", "returns")}
    losses = task.eval_loss(batch)
    alone = [A2C("CartPole-v1", warm_start=task.policy(j)).init(num_envs=3).eval_loss(batch) for j in range(3)]
    assert len({report["policy_loss"] for report in alone}) == 3
    for name in ("policy_loss", "value_loss", "entropy"):
        assert losses[name] == pytest.approx(sum(report[name] for report in alone) / 3)


def test_bad_input_is_refused_before_any_training() -> None:
    for count in (0, -1):
        with pytest.raises(ValueError, match="num_particles"):
            SVPG("CartPole-v1").init(num_particles=count)
    with pytest.raises(ValueError, match=r"^SVPGPPO of PPO: num_steps \* num_envs .* must be divisible by num_minib"):
        SVPGPPO("CartPole-v1").init(num_steps=5, num_minibatches=3)
    with pytest.raises(UnsupportedSpace):
        SVPG("own_envs:GraphActionWalk-v0").init()


def test_particles_of_every_base_are_found_by_name() -> None:
    assert [load(name) for name in ("svpg", "svpg-ppo", "svpg-ppo2")] == [SVPG, SVPGPPO, SVPGPPO2]


@pytest.mark.slow
def test_the_defaults_learn_cartpole() -> None:
    tasks = [SVPG("CartPole-v1", seed=seed).init() for seed in range(4)]
    Cohort(tasks).fit(25)
    returns = sorted(task.evaluate() for task in tasks)
    assert returns[1] > 350, returns
