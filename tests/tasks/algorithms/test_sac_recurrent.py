"""SAC with a memory: exactness, remembered states, gradients, and refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from masked import MASKED
from rekindle import SAC, Cohort, EnvSpec
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.continuous.actions import SoftSample
from rekindle.tasks.algorithms.continuous.sac import SACLearner
from rekindle.tasks.testing import VariantSuite
from torch import Tensor

SMALL: dict[str, Any] = {
    "epoch_steps": 96,
    "learning_starts": 48,
    "batch_size": 32,
    "buffer_size": 200,
    "num_steps": 4,
    "num_updates": 1,
    "optimizer.lr": 0.003,
    "tau": 0.05,
    "max_grad_norm": 0.5,
    "model.width": 16,
    "entropy.alpha": 0.2,
    "model.memory": "lstm",
    "model.sequence_length": 8,
    "model.burn_in": 4,
}


class TestOnMaskedCartPole(VariantSuite):
    task = SAC
    env = MASKED
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {
            "model.memory": "gru",
            "n_step": 3,
            "num_envs": 3,
            "buffer_size": 151,
            "learning_starts": 90,
            "model.burn_in": 5,
            "scale_reward": True,
            "model.width": 17,
            "normalize_obs": True,
        },
    )
    inert = frozenset({"entropy.alpha", "entropy.target"})
    cohort_size = 3


@pytest.mark.slow
class TestOnPendulum(VariantSuite):
    task = SAC
    env = EnvSpec("Pendulum-v1", max_episode_steps=20)  # many truncations
    hyperparameters: ClassVar = {**SMALL, "model.memory": "gru"}
    variants: ClassVar = (
        {"model.memory": "lstm", "target_update_interval": 5, "num_envs": 2, "num_updates": 2, "use_sde": True},
    )
    inert = frozenset({"entropy.alpha", "entropy.choice_target"})
    cohort_size = 3


def learner(env: Any = MASKED, members: int = 2, filled: bool = True, **changes: Any) -> Any:
    """A learner that has filled its memory, and learned nothing yet."""
    tasks = [SAC(env, seed=seed).init(**unflatten({**SMALL, **changes})) for seed in range(members)]
    made = SACLearner(tasks[0].env, range(members), [task.hyperparameters or {} for task in tasks])
    while filled and made.filling:
        made.iterate()
    return made


KINDS = ["lstm", "gru"]


@pytest.mark.parametrize("cell", KINDS)
def test_learning_goes_through_what_was_remembered_while_acting(cell: str) -> None:
    made = learner(
        **{"model.memory": cell, "num_envs": 3, "buffer_size": 600, "learning_starts": 540, "epoch_steps": 600}
    )
    sequences, networks = made.sequences, made.policy
    _, batch = made.draw()
    assert batch["begins"].any()
    assert batch["memory"].any()
    number, env = sequences.starts(0)
    size = networks.state_size
    seen = batch["obs"], batch["begins"], batch["memory"][..., :size]
    states = networks.cores[0](networks.actor.views, *seen)
    critic_states = networks.cores[1](networks.critics.views, *networks.of_critics(batch)).unflatten(0, (2, 2))
    later = number + 1  # whose states were stored 8 steps on
    rows = later % sequences.states.slots * 3 + env
    known = torch.from_numpy(later * 8 < made.replay.steps)
    stored = sequences.states.batch(rows, ("state",))["state"]
    going_on = (1 - batch["begins"][:, :, 8]).unsqueeze(-1)  # what was stored is forgotten already
    torch.testing.assert_close((states[:, :, 7] * going_on)[known], stored[..., :size][known])
    for twin in range(2):
        mine = (critic_states[:, twin, :, 7] * going_on)[known]
        torch.testing.assert_close(mine, stored[..., (1 + twin) * size : (2 + twin) * size][known])


def test_the_state_holds_what_is_remembered() -> None:
    made = learner()
    state = made.member_state(1)
    assert state["memory"]["state"].shape == (1, 3 * 2 * 16)
    assert state["memory"]["state"].any()
    assert state["sequences"]["numbers"].tensor.any()
    plain = SAC(MASKED).init(batch_size=32, learning_starts=48, epoch_steps=96)
    assert not {"memory", "sequences"} & plain.state_dict()["learner"].keys()


def test_a_memory_ends_with_its_episode() -> None:
    made = learner(EnvSpec("Pendulum-v1", max_episode_steps=20), scale_reward=True)
    while made.replay.steps % 20:
        made.iterate()
    assert not made.memory.tensors["state"].any()
    made.iterate()
    assert made.memory.tensors["state"].any()
    assert made.rewards.returns.any()
    made.truncate_all()  # environments are made anew
    assert not made.memory.tensors["state"].any()
    assert not made.rewards.returns.any()


def changed(batch: dict[str, Tensor], mask: Tensor) -> dict[str, Tensor]:
    """The batch with other rewards, discounts and actions at these rows (P, R)."""
    other = {name: batch[name].clone() for name in batch}
    other["reward"][mask] = 1e3
    other["discount"][mask] = 7.0
    other["action"][mask] = 1 - other["action"][mask]
    return other


def test_masked_rows_count_nowhere() -> None:
    made, same = learner(), learner()
    _, batch = made.draw()
    counts = torch.ones(2, 32)
    counts[0, 3:17] = 0
    counts[1, 31] = 0
    batch["mask"] = counts * 32 / counts.sum(1, keepdim=True)
    other = changed(batch, counts == 0)
    report, _ = made.update(batch)
    theirs, _ = same.update(other)
    for name in ("actor_vector", "critic_vector", "target_vector"):
        assert torch.equal(getattr(made.policy, name), getattr(same.policy, name))
    assert torch.equal(made.coefficients.alpha, same.coefficients.alpha)
    for name, value in report.items():
        assert torch.equal(value, theirs[name]), name
    assert torch.equal(made.loss(batch)[0], made.loss(other)[0])


def test_losses_are_means_over_what_counts_alone() -> None:
    made = learner()
    _, batch = made.draw()
    errors = made.critic_loss(batch, made.total_reward(batch), next_sample_of(made, batch), made.coefficients.alpha)[1]
    counts = torch.ones(2, 32)
    counts[:, 5:29] = 0
    batch["mask"] = counts * 32 / counts.sum(1, keepdim=True)
    kept = errors[:, :, [0, 1, 2, 3, 4, 29, 30, 31]]
    torch.testing.assert_close(made.loss(batch)[0], kept.square().sum(1).mean(1) / 2)


def next_sample_of(made: Any, batch: dict[str, Tensor]) -> SoftSample:
    return made.actions.sample(made.policy.outputs_of(batch)[1], torch.zeros(2, 32, made.actions.continuous_dim))


def remembered(made: Any, core: int, tensors: Any, obs: Tensor, begins: Tensor, state: Tensor) -> Tensor:
    """The memory at every step of sequences, by autograd, where nothing comes through the burn-in."""
    core, first = made.policy.cores[core], made.policy.burn_in
    if first:
        state = core(tensors, obs[:, :, :first], begins[..., :first], state)[:, :, -1].detach()
    return core(tensors, obs[:, :, first:], begins[..., first:], state)[..., : made.policy.width]


@pytest.mark.parametrize("cell", KINDS)
@pytest.mark.parametrize("changes", [{"model.burn_in": 0}, {"n_step": 3}])
def test_the_policys_gradient_is_autograds_through_time(cell: str, changes: dict[str, Any]) -> None:
    made = learner(**{"model.memory": cell, "num_envs": 2, **changes})
    policy = made.policy
    _, batch = made.draw()
    outputs, later = policy.outputs_of(batch)
    slopes = torch.randn(2, 32, outputs.shape[-1], generator=torch.Generator().manual_seed(0))
    gradient = policy.actor_gradient(32 * (outputs * slopes).sum(-1))
    seen = batch["obs"], batch["begins"], batch["memory"][..., : policy.state_size]
    memory = remembered(made, 0, policy.actor.leaves, *seen)
    n = made.hp.n_step
    head = policy.pi.layers(policy.actor.leaves)
    mine = policy.pi(head, memory[:, :, :8].flatten(1, 2))
    torch.testing.assert_close(outputs, mine)
    torch.testing.assert_close(later, policy.pi(head, memory[:, :, n : n + 8].flatten(1, 2)))
    expected = policy.actor.gradient((mine * slopes).sum((1, 2)))
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("env", [MASKED, "Pendulum-v1"])
def test_the_critics_gradient_is_autograds_through_time(env: str) -> None:
    made = learner(env)
    policy = made.policy
    policy.target_vector.mul_(1.5)
    _, batch = made.draw()
    numbers, _ = made.actions.normalize(batch["action"])
    q, target = policy.q_and_target(batch, numbers, -numbers)
    slopes = torch.randn(q.shape, generator=torch.Generator().manual_seed(0))
    gradient = policy.critic_gradient(32 * (q * slopes).sum((1, 3)))
    q, target = (x.clone() for x in policy.q_and_target(batch, numbers, -numbers))
    torch.testing.assert_close(policy.q(batch, numbers), q)
    sequence, leaves, form = policy.of_critics(batch), policy.critics.leaves, policy.critic_form
    now = remembered(made, 1, leaves, *sequence)[:, :, :8].flatten(1, 2)
    later = remembered(made, 1, policy.targets.views, *sequence)[:, :, 1:9].flatten(1, 2)
    every = numbers.repeat_interleave(2, 0)
    values = form(form.layers(leaves), torch.cat([now, every], -1)).unflatten(0, (2, 2))
    next_values = form(form.layers(policy.targets.views), torch.cat([later, -every], -1)).unflatten(0, (2, 2))
    torch.testing.assert_close(q, values)
    torch.testing.assert_close(target, next_values)
    losses = (values * slopes).sum((2, 3)).flatten()
    expected = policy.critics.gradient(losses).reshape(2, -1)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-5)


def test_acting_follows_what_is_remembered_and_evaluation_changes_nothing() -> None:
    task = SAC(MASKED).init(**unflatten(SMALL))
    task.fit(1)
    digest, first = task.digest, task.evaluate(4)
    assert task.evaluate(4) == first
    assert task.digest == digest
    made: Any = task.build_learner([task])
    rng = np.random.default_rng(0)
    play, outputs = made.actor(3), []
    for _ in range(6):
        obs = rng.standard_normal((1, 3, 2)).astype(np.float32)
        play(obs)
        outputs.append(made.actor(3)(obs))
    with torch.no_grad():
        assert np.array_equal(made.actor(3)(obs), outputs[-1])  # from the beginning, each time


def test_a_memory_survives_a_refill() -> None:
    made = learner(num_envs=2, buffer_size=100)
    for _ in range(20):
        made.iterate()
    before = made.memory.tensors["state"].clone()
    made.refill_all()
    assert torch.equal(made.memory.tensors["state"], before)
    updates = made.progress.updates
    while made.filling:
        made.iterate()
    assert made.progress.updates == updates
    _, batch = made.draw()
    assert batch["memory"].any()
    made.iterate()
    assert made.progress.updates == updates + 1


LEARNING: dict[str, Any] = {
    "model.width": 64,
    "optimizer.lr": 1e-3,
    "num_envs": 4,
    "num_steps": 2,
    "num_updates": 2,
    "learning_starts": 1000,
    "epoch_steps": 2000,
    "tau": 0.01,
    "entropy.alpha": 0.2,
    "batch_size": 128,
    "n_step": 3,
    "eval_interval": 1,
}


@pytest.mark.slow
def test_a_task_that_needs_a_memory_is_solved_with_one_only() -> None:
    scores = {}
    for memory, more in (("gru", {"model.sequence_length": 8, "model.burn_in": 8}), ("none", {})):
        hp = unflatten({**LEARNING, "model.memory": memory, **more})
        tasks = [SAC(MASKED, seed=seed).init(**hp) for seed in range(3)]
        Cohort(tasks).fit(3)
        scores[memory] = sorted(max(row["eval_return"] for _, row in task.history) for task in tasks)
    assert scores["gru"][0] > 300, scores
    assert scores["none"][-1] < 100, scores


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"batch_size": 33},
            r"with a memory, batch_size \(33\) must be a multiple of model.sequence_length \(8\); try "
            r"batch_size=32",
        ),
        ({"batch_size": 9}, r"must be a multiple of model.sequence_length \(8\); try batch_size=16"),
        ({"batch_size": 8}, r"with a memory, batch_size \(8\) must be at least two sequences of model.sequence_length"),
        (
            {"model.sequence_length": 32, "batch_size": 64, "learning_starts": 64},
            r"\(model.burn_in \+ 2 model.sequence_length \+ n_step - 2\) \* num_envs \(67\) must be at most "
            r"learning_starts \(64\)",
        ),
        ({"num_envs": 5}, r"\* num_envs \(95\) must be at most learning_starts \(48\)"),
        (
            {"replay.name": "prioritized"},
            r"replay.name=prioritized draws single transitions, but model.memory=lstm learns",
        ),
        ({"model.memory": "none"}, r"model.sequence_length applies only when model.memory"),
        ({"model.width": 1}, r"with a memory, model.width must be at least 2"),
    ],
)
def test_options_that_exclude_a_memory_are_refused_before_training(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SAC(MASKED).init(**unflatten({**SMALL, **changes}))
