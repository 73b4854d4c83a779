"""PPO: exactness in two kinds of environment, and its loss."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from fakes import batch_of
from rekindle import PPO, PPO2, Cohort, EnvSpec, Store
from rekindle.tasks.algorithms.ppo import clipped_surrogate
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.compiled.loading import without_kernels
from rekindle.tasks.testing import ExactnessSuite, VariantSuite

SMALL: dict[str, Any] = {"epoch_steps": 128, "num_steps": 16, "num_envs": 4}
AGGRESSIVE: dict[str, Any] = {
    "update_epochs": 2,
    "num_minibatches": 4,
    "target_kl": None,
    "optimizer.lr": 0.03,
    "clip_coef": 0.1,
    "max_grad_norm": 0.1,
}


class TestOnCartPole(ExactnessSuite):
    task = PPO
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, **AGGRESSIVE}
    variants: ClassVar = (
        {
            "clip_value": 0.01,
            "normalize_obs": True,
            "normalize_reward": True,
            "stats_window_size": 7,
            "optimizer.name": "rmsprop",
            "lr_schedule.name": "exponential",
            "lr_schedule.horizon": 300,
            "max_grad_norm": None,
        },
        {
            "num_envs": 3,
            "num_steps": 35,
            "num_minibatches": 5,
            "model.width": 17,
            "model.layers": 3,
            "model.activation": "elu",
            "optimizer.name": "sgd",
            "optimizer.momentum": 0.5,
            "lr_schedule.name": "cosine",
            "lr_schedule.horizon": 300,
        },
        {
            "model.activation": "silu",
            "update_epochs": 4,
            "optimizer.name": "adamw",
            "clip_coef_schedule.name": "linear",
            "clip_coef_schedule.horizon": 300,
            "clip_value": 0.05,
            "clip_value_schedule.name": "exponential",
            "clip_value_schedule.horizon": 300,
            "ent_coef_schedule.name": "piecewise",
            "ent_coef_schedule.points": [[0, 1.0], [128, 0.5], [256, 2.0]],
            "lr_schedule.name": "piecewise",
            "lr_schedule.points": [[0, 1.0], [300, 0.1]],
        },
    )
    cohort_size = 4
    inert = frozenset({"model.std_init"})  # the first standard deviation of continuous actions


@pytest.mark.slow
class TestOnPendulum(VariantSuite):
    task = PPO
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, **AGGRESSIVE, "target_kl": 0.05}
    variants: ClassVar = (
        {"num_envs": 1, "num_minibatches": 2},
        {"use_sde": True, "sde_sample_freq": 5, "num_envs": 3, "model.width": 17, "model.activation": "relu"},
        {"use_sde": True, "sde_sample_freq": 100, "model.memory": "gru", "num_minibatches": 2},
    )
    inert = frozenset({"model.std_init"})  # acts on the first state only


def test_a_task_in_a_wrapped_environment_is_stored_and_carries_on(tmp_path: Path) -> None:
    stack = {"entry_point": "gymnasium.wrappers:FrameStackObservation", "kwargs": {"stack_size": 2}}
    env = EnvSpec("CartPole-v1", wrappers=[stack])
    whole = PPO(env).init(**SMALL)
    whole.fit(2)
    with Store(f"sqlite:///{tmp_path}/s.db") as store:
        first = PPO(env, storage=store).init(**SMALL)
        first.fit(1)
        first.finish()
        second = PPO(env, storage=store).init(**SMALL)
        assert second.resumed
        second.fit(2)
        assert second.digest == whole.digest
        second.finish()


def test_the_surrogate_is_the_worse_of_the_ratio_and_the_clipped_one() -> None:
    # eq. 7, clip_coef 0.2:  ratio   0.5   0.5   1.1   1.5   1.5
    #                    advantage   1    -1     2     1    -1
    #                  the smaller   0.5  -0.8   2.2   1.2  -1.5
    ratios, advantages = torch.tensor([[0.5, 0.5, 1.1, 1.5, 1.5]]), torch.tensor([[1.0, -1.0, 2.0, 1.0, -1.0]])
    log_probs = ratios.log().requires_grad_()
    loss, report = clipped_surrogate(log_probs, torch.zeros(1, 5), advantages, torch.tensor([0.2]))
    torch.testing.assert_close(loss, torch.tensor([-(0.5 - 0.8 + 2.2 + 1.2 - 1.5) / 5]))
    assert report["clip_fraction"].tolist() == pytest.approx([0.8])
    gradient = torch.autograd.grad(loss.sum(), log_probs)[0][0]
    assert (gradient == 0).tolist() == [False, True, False, True, False]


def built(**hyperparameters: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """A learner of two members, and a rollout of its."""
    tasks = [PPO("Pendulum-v1", seed=seed).init(num_steps=16, **hyperparameters) for seed in range(2)]
    learner = tasks[0].build_learner(tasks)
    return learner, batch_of(learner)


def test_the_loss_is_that_of_the_paper() -> None:
    learner, batch = built(vf_coef=0.7, ent_coef=0.03, normalize_advantage=False)
    batch["log_probs"] = batch["log_probs"] + 0.3 * torch.randn_like(batch["log_probs"])
    params, values = learner.policy(batch)
    normal = torch.distributions.Normal(params[..., :1], params[..., 1:].exp())
    ratio = (normal.log_prob(batch["actions"]).sum(-1) - batch["log_probs"]).exp()
    surrogate = torch.min(ratio * batch["advantages"], ratio.clamp(0.8, 1.2) * batch["advantages"])
    error, entropy = (values - batch["returns"]) ** 2, normal.entropy().sum(-1)
    expected = -(surrogate - 0.7 * 0.5 * error + 0.03 * entropy).mean(1)
    losses, _ = learner.loss(batch)
    torch.testing.assert_close(losses, expected)
    gradient = learner.policy.parameters.gradient
    torch.testing.assert_close(gradient(losses), gradient(expected), rtol=1e-3, atol=1e-5)


def test_values_are_kept_near_the_old_ones_by_a_range_of_their_own() -> None:
    learner, batch = built(clip_value=0.05, ent_coef=0.0, normalize_advantage=False)  # clip_coef is 0.2
    batch["advantages"] = torch.zeros_like(batch["advantages"])
    offsets = torch.linspace(-0.1, 0.1, batch["values"].shape[1])
    batch["values"] = batch["values"] - offsets  # the values are by this much above the old ones
    near = batch["values"] + offsets.clamp(-0.05, 0.05)
    losses, report = learner.loss(batch)
    torch.testing.assert_close(report["value_loss"], 0.5 * (near - batch["returns"]).square().mean(1))
    torch.testing.assert_close(losses, 0.5 * report["value_loss"])


def test_the_ratio_is_of_the_actions_that_were_taken() -> None:
    # Olympus' PPO sampled new actions in its update, so that the ratio compared two different actions.
    learner, batch = built()
    _, report = learner.loss(batch)
    assert report["approx_kl"].abs().max() < 1e-6
    assert report["clip_fraction"].tolist() == [0, 0]


def test_a_member_that_moved_too_far_takes_no_further_step_and_its_neighbour_does() -> None:
    values = {"num_steps": 16, "update_epochs": 4, "num_minibatches": 4, "optimizer": {"lr": 0.05}}
    tasks = [PPO("CartPole-v1", seed=0).init(target_kl=kl, **values) for kl in (1e-6, 1e3)]
    learner = tasks[0].build_learner(tasks)
    learner.iterate()
    steps = learner.optimizer.tensors["steps"][:, 0].tolist()
    assert steps[1] == 4 * 4
    assert 1 <= steps[0] < 4  # the first one finds nothing moved yet


@pytest.mark.parametrize("task", [PPO, PPO2])
def test_a_member_that_is_stopped_keeps_the_metrics_that_it_has_alone(
    task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, no minibatch follows the one on which it had moved too far.

    Without kernels, that is; those compute no member's minibatch in vain.
    """
    values = {"num_steps": 16, "num_envs": 4, "epoch_steps": 64, "update_epochs": 4, "num_minibatches": 4}
    make = lambda seed, kl: task("CartPole-v1", seed=seed).init(target_kl=kl, optimizer={"lr": 0.02}, **values)  # noqa: E731
    together, alone, losses = [make(seed, kl) for seed, kl in enumerate((0.01, 1e3))], make(0, 0.01), 0
    loss = task.learner.loss

    def counted(*args: Any) -> Any:
        nonlocal losses
        losses += 1
        return loss(*args)

    with without_kernels():
        Cohort(together).fit(3)
        monkeypatch.setattr(task.learner, "loss", counted)
        alone.fit(3)
    assert alone.history == together[0].history
    assert difference(alone.state_dict(), together[0].state_dict()) == []
    assert alone.metrics["updates"] < losses <= alone.metrics["updates"] + 3 < 3 * 16
    assert together[1].metrics["updates"] == 3 * 16


def test_actions_begin_with_the_standard_deviation_that_is_asked_for() -> None:
    tasks = [PPO("Pendulum-v1", seed=seed).init(model={"std_init": std}) for seed, std in enumerate((0.5, 2.0))]
    learner = tasks[0].build_learner(tasks)
    params = learner.policy.action_params(torch.from_numpy(learner.envs.obs))
    torch.testing.assert_close(params[..., 1].exp(), torch.tensor([[0.5], [2.0]]).expand(2, 8))
