"""SAC from images: exactness, gradients of the encoder, targets, and refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import DQN, SAC, Cohort, EnvSpec
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.continuous.image_networks import FEATURES, CriticEncoder, ImageActorCritics
from rekindle.tasks.algorithms.continuous.sac import SACLearner
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.testing import VariantSuite
from support_path import SUPPORT
from torch import Tensor
from torch.nn import functional

BOX = EnvSpec("own_envs:Square-v0", {"side": 6, "box": True})
CHOICES = "own_envs:ImageWalk-v0"
SMALL: dict[str, Any] = {
    "epoch_steps": 48,
    "learning_starts": 24,
    "batch_size": 16,
    "buffer_size": 60,
    "num_steps": 4,
    "num_updates": 1,
    "optimizer.lr": 0.003,
    "tau": 0.05,
    "max_grad_norm": 0.5,
    "model.width": 16,
    "entropy.alpha": 0.2,
    "model.encoder": "small",
}


@pytest.fixture(autouse=True)
def own_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


@pytest.mark.slow
class TestOnSquares(VariantSuite):
    task = SAC
    env = BOX
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {
            "model.encoder": "impala",
            "n_step": 3,
            "num_envs": 3,
            "scale_reward": True,
            "optimizer.name": "adamw",
            "target_update_interval": 3,
            "max_grad_norm": None,
            "normalize_obs": True,
        },
        {
            "model.encoder": "flat",
            "replay.name": "prioritized",
            "entropy.learn": False,
            "critic_lr": 0.002,
            "use_sde": True,
            "tau": 1.0,
        },
    )
    inert = frozenset({"entropy.alpha", "entropy.choice_target"})
    cohort_size = 3


@pytest.mark.slow
class TestOnImageWalk(VariantSuite):
    task = SAC
    env = CHOICES
    hyperparameters: ClassVar = SMALL
    inert = frozenset({"entropy.alpha", "entropy.target"})
    cohort_size = 3


def learner(env: Any = BOX, members: int = 2, **changes: Any) -> Any:
    """A learner that has filled its memory, and learned a little."""
    tasks = [SAC(env, seed=seed).init(**unflatten({**SMALL, **changes})) for seed in range(members)]
    made = SACLearner(tasks[0].env, range(members), [task.hyperparameters or {} for task in tasks])
    while made.progress.updates < 3:
        made.iterate()
    return made


def features(encoder: CriticEncoder, tensors: Any, images: Tensor) -> Tensor:
    """By torch.nn's functions, one member after another."""
    rows = []
    for member, batch in enumerate(images):
        x = batch.permute(0, 3, 1, 2) / 255
        for layer in range(2):
            weight, bias = (tensors[f"features.conv{layer}.{part}"][member] for part in ("weight", "bias"))
            x = functional.relu(functional.conv2d(x, weight, bias))
        weight, bias = (tensors[f"features.dense.0.{part}"][member] for part in ("weight", "bias"))
        rows.append(torch.tanh(functional.layer_norm(x.flatten(1) @ weight + bias, (FEATURES,))))
    return torch.stack(rows)


@pytest.mark.parametrize("env", [BOX, CHOICES])
def test_the_critics_gradient_is_that_of_their_loss_in_the_encoder_too(env: Any) -> None:
    made = learner(env)
    policy: ImageActorCritics = made.policy
    batch = made.draw()[1]
    numbers, _ = made.actions.normalize(batch["action"])
    q = policy.q_and_target(policy.encode(batch), numbers, numbers)[0]
    g = torch.randn(q.shape, generator=torch.Generator().manual_seed(1)).mul_(0.1)
    gradient = policy.critic_gradient(16 * (q * g).sum((1, 3)))
    assert gradient.shape == (2, policy.critic_vector.shape[1] + policy.encoder_vector.shape[1])

    leaves = {name: x.detach().clone().requires_grad_() for name, x in policy.encoder.parameters.views.items()}
    critics = {name: x[:4].detach().clone().requires_grad_() for name, x in policy.critics.views.items()}
    seen = features(policy.encoder, leaves, batch["obs"])
    x = torch.cat([seen, numbers], -1).repeat_interleave(2, 0)
    for layer in range(3):
        x = x @ critics[f"critic.{layer}.weight"] + critics[f"critic.{layer}.bias"]
        x = torch.relu(x) if layer < 2 else x
    torch.testing.assert_close(x.unflatten(0, (2, 2)), q, rtol=1e-4, atol=1e-5)
    every = torch.autograd.grad((x.unflatten(0, (2, 2)) * g).sum(), [*critics.values(), *leaves.values()])
    of_critics, of_encoder = every[: len(critics)], every[len(critics) :]
    end = policy.critic_vector.shape[1]
    mine = gradient[:, :end].reshape(4, -1)
    theirs = torch.cat([part.flatten(1) for part in of_critics], 1)
    torch.testing.assert_close(mine[:, : theirs.shape[1]], theirs, rtol=1e-3, atol=1e-5)
    theirs = torch.cat([part.flatten(1) for part in of_encoder], 1)
    assert theirs.abs().max() > 1e-3
    torch.testing.assert_close(gradient[:, end : end + theirs.shape[1]], theirs, rtol=1e-3, atol=1e-5)


def test_the_encoder_learns_from_the_critics_loss_alone() -> None:
    still = learner(critic_lr=0.0)
    fresh = SACLearner(
        still.env, still.seeds, [SAC(BOX, seed=s).init(**unflatten(SMALL)).hyperparameters or {} for s in still.seeds]
    )
    assert torch.equal(still.policy.encoder_vector, fresh.policy.encoder_vector)
    assert not torch.equal(still.policy.actor_vector, fresh.policy.actor_vector)
    moving = learner()
    assert not torch.equal(moving.policy.encoder_vector, fresh.policy.encoder_vector)


def test_targets_see_by_a_copy_that_follows() -> None:
    made = learner(tau=0.0)
    policy: ImageActorCritics = made.policy
    copy = policy.encoder.target.vector.clone()
    assert not torch.equal(copy, policy.encoder_vector)
    batch = made.draw()[1]
    numbers, _ = made.actions.normalize(batch["action"])
    q, target = (x.clone() for x in policy.q_and_target(policy.encode(batch), numbers, numbers))
    policy.encoder_vector.neg_()
    after, same = policy.q_and_target(policy.encode(batch), numbers, numbers)
    assert not torch.equal(after, q)
    assert torch.equal(same, target)
    policy.move_target(torch.tensor([[0.0], [0.25]]))
    assert torch.equal(policy.encoder.target.vector[0], copy[0])
    torch.testing.assert_close(policy.encoder.target.vector[1], 0.75 * copy[1] + 0.25 * policy.encoder_vector[1])
    policy.copy_target(1)
    assert torch.equal(policy.encoder.target.vector[1], policy.encoder_vector[1])


def test_the_actor_sees_the_new_critics_with_the_new_encoder() -> None:
    made = learner()
    policy: ImageActorCritics = made.policy
    batch = made.draw()[1]
    numbers, _ = made.actions.normalize(batch["action"])
    batch = policy.encode(batch)
    before = policy.q_and_target(batch, numbers, numbers)[0].clone()
    assert torch.equal(policy.q(batch, numbers), before)
    with torch.no_grad():
        policy.encoder_vector.neg_()
    assert not torch.equal(policy.q(batch, numbers), before)


def test_the_memory_keeps_bytes_and_nothing_normalizes_them() -> None:
    made = learner(normalize_obs=True)
    assert made.obs_normalizer is None
    assert {image.dtype for image in made.replay.images.values()} == {np.dtype(np.uint8)}
    assert made.replay.images.keys() == {"obs", "next_obs"}
    assert made.draw()[1]["obs"].dtype == torch.uint8


def test_gradients_are_reported_of_critics_and_encoder_apart() -> None:
    task = SAC(BOX).init(**unflatten({**SMALL, "epoch_steps": 96}))  # every 16th iteration of an epoch is measured
    task.fit(1)
    for name in ("actor", "critic", "encoder"):
        assert 0 < task.metrics[f"grad_norm_clipped.{name}"] <= task.metrics[f"grad_norm.{name}"]
    whole = sum(task.metrics[f"grad_norm_clipped.{name}"] ** 2 for name in ("critic", "encoder"))
    assert whole < 0.5**2 + 1e-4


def test_a_warm_start_takes_the_encoder_over() -> None:
    source = SAC(BOX, seed=1).init(**unflatten(SMALL))
    source.fit(1)
    warm = SAC(BOX, seed=2, warm_start=source).init(**unflatten(SMALL))
    policy = warm.build_learner([warm]).policy  # type: ignore[attr-defined]
    warm.fit(0)
    mine, theirs = warm.policy(), source.policy()
    assert mine.keys() == theirs.keys()
    assert any(name.startswith("features.conv0") for name in mine)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert policy is not None


REMEMBERING = {"model.memory": "lstm", "model.sequence_length": 4, "model.burn_in": 2, "batch_size": 8}


@pytest.mark.slow
class TestWithAMemory(VariantSuite):
    task = SAC
    env = BOX
    hyperparameters: ClassVar = {**SMALL, **REMEMBERING}
    variants: ClassVar = ({"model.memory": "gru", "model.burn_in": 0, "n_step": 2, "num_envs": 2},)
    inert = frozenset({"entropy.alpha", "entropy.choice_target"})
    cohort_size = 3


@pytest.mark.parametrize("env", [BOX, EnvSpec("own_envs:CameraWalk-v0")], ids=["image", "mixed"])
def test_a_memory_of_images_has_the_bits_of_a_cohort_and_of_no_stop(env: EnvSpec) -> None:
    values = unflatten({**SMALL, **REMEMBERING, "num_envs": 2})
    together = [SAC(env, seed=seed).init(**values) for seed in (1, 2)]
    Cohort(together).fit(2)
    alone = SAC(env, seed=1).init(**values)
    alone.fit(1)
    resumed = SAC(env, seed=1).init(**values)
    resumed.load_state_dict(alone.state_dict())
    resumed.fit(2)
    assert resumed.digest == together[0].digest


def test_the_encoder_learns_from_the_critics_of_sequences_alone() -> None:
    made = learner(**REMEMBERING, num_envs=2)
    policy = made.policy
    batch = policy.encode(made.sequences.batch(0, made.hp.gamma))
    noise = torch.zeros(1, made.hp.batch_size, made.actions.continuous_dim)
    sample, next_sample = (made.actions.sample(outputs, noise) for outputs in policy.outputs_of(batch))
    leaves = [*policy.encoder.parameters.leaves.values()]
    of_actor = made.actor_loss(batch, sample, made.coefficients.alpha).sum()
    assert [
        g for g in torch.autograd.grad(of_actor, leaves, retain_graph=True, allow_unused=True) if g is not None
    ] == []
    losses = made.critic_loss(batch, batch["reward"], next_sample, made.coefficients.alpha)[0].sum()
    seen = torch.autograd.grad(losses, [batch["obs"], *leaves])
    assert all(gradient.any() for gradient in seen)
    assert not seen[0][:, :, :2].any()  # of the burn-in
    assert not seen[0][:, :, -1].any()  # which the targets alone see


def test_observations_that_the_encoder_cannot_take_are_refused() -> None:
    with pytest.raises(UnsupportedSpace, match=r"SAC on Pendulum-v1: model.encoder sees images, but got 'impala' for"):
        SAC("Pendulum-v1").init(model={"encoder": "impala"})


@pytest.mark.parametrize("task", [SAC, DQN])
def test_a_memory_that_no_machine_has_is_refused(task: type[SAC] | type[DQN]) -> None:
    needs = r"buffer_size \(1000000000\) transitions of 2,592 bytes need 2,592 GB"
    with pytest.raises(ValueError, match=rf"{needs}, but this machine has \d+ GB of memory; set buffer_size to \d+ or"):
        task("own_envs:PictureWalk-v0").init(buffer_size=10**9)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", ["small", "flat"])
def test_it_learns_to_point_at_a_bright_square(encoder: str) -> None:
    task = SAC(EnvSpec("own_envs:Square-v0", {"side": 12, "box": True}), seed=1).init(
        epoch_steps=256,
        learning_starts=256,
        batch_size=64,
        buffer_size=5000,
        gamma=0.9,
        num_updates=1,
        optimizer={"lr": 1e-3},
        model={"encoder": encoder, "width": 64},
    )
    assert task.evaluate(10) < -7
    task.fit(4)
    assert task.evaluate(10) > -3
