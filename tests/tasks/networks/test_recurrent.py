"""Policies with a memory: exactness, torch's own cells, resets, and a task that needs memory."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from masked import MASKED
from rekindle import A2C, PPO, PPO2, SVPG, Cohort, EnvSpec
from rekindle.tasks.networks.mlp import Parameters
from rekindle.tasks.networks.recurrent import Core, sigmoid
from rekindle.tasks.testing import VariantSuite
from torch import Tensor

SMALL: dict[str, Any] = {
    "epoch_steps": 64,
    "num_steps": 16,
    "num_envs": 4,
    "model.width": 16,
    "optimizer.lr": 0.02,
    "max_grad_norm": 0.1,
}
EPOCHS: dict[str, Any] = {"update_epochs": 2, "num_minibatches": 2, "clip_coef": 0.1, "target_kl": None}


class TestPPO(VariantSuite):
    task = PPO
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, **EPOCHS, "model.memory": "lstm"}
    variants: ClassVar = (
        {"normalize_obs": True},
        {
            "model.memory": "gru",
            "critic.name": "separate",
            "critic.update_epochs": 1,
            "critic.num_minibatches": 2,
            "num_envs": 2,
            "model.width": 17,
        },
    )
    inert = frozenset({"model.std_init", "vf_coef"})


@pytest.mark.slow
class TestPPO2OnPendulum(VariantSuite):
    task = PPO2
    env = EnvSpec("Pendulum-v1", max_episode_steps=20)  # many truncations
    hyperparameters: ClassVar = {**SMALL, **EPOCHS, "model.memory": "gru"}
    inert = frozenset({"model.std_init"})  # acts on the first state only


@pytest.mark.slow
class TestA2C(VariantSuite):
    task = A2C
    env = MASKED
    hyperparameters: ClassVar = {**SMALL, "num_steps": 5, "num_envs": 1, "model.memory": "lstm"}
    variants: ClassVar = ({"num_envs": 2, "num_minibatches": 2},)
    inert = frozenset({"model.std_init"})
    cohort_size = 3


def core(cell: str, inputs: int = 3, width: int = 5, members: int = 2) -> tuple[Core, Parameters]:
    made = Core("memory", cell, inputs, width)
    parameters = Parameters(made.shapes, members)
    for member in range(members):
        made.initialize(parameters, member, member)
    return made, parameters


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_the_cells_are_those_of_torch(cell: str) -> None:
    made, parameters = core(cell)
    x = torch.randn(2, 4, 9, 3, generator=torch.Generator().manual_seed(0))
    states = made(parameters.views, x, torch.zeros(2, 4, 9), torch.zeros(2, 4, made.state_size))
    # torch has its gates as i, f, g, o; ours have g last, for one sigmoid
    order = {"lstm": [0, 1, 3, 2], "gru": [0, 1, 2]}[cell]
    for member in range(2):
        theirs = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[cell](3, 5, batch_first=True)

        def rows(name: str, member: int = member) -> Tensor:
            gates = parameters.views[f"memory.{name}"][member].split(5, 1)
            return torch.cat([gates[i] for i in order], 1).T

        with torch.no_grad():
            theirs.weight_ih_l0.copy_(rows("input.weight"))
            theirs.weight_hh_l0.copy_(rows("hidden.weight"))
            theirs.bias_ih_l0.copy_(rows("input.bias")[:, 0])
            theirs.bias_hh_l0.zero_()
            outputs, _ = theirs(x[member])
        torch.testing.assert_close(states[member, :, :, :5], outputs)


def test_the_sigmoid_is_torchs_and_its_slope_is_finite_everywhere() -> None:
    x = torch.tensor([-1e4, -90.0, -1.0, 0.0, 2.0, 90.0, 1e4], requires_grad=True)
    torch.testing.assert_close(sigmoid(x), torch.sigmoid(x))
    (slope,) = torch.autograd.grad(sigmoid(x).sum(), x)
    assert slope.isfinite().all()


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("sequences", [1, 2, 3])
def test_a_members_gradient_is_the_same_in_company(cell: str, sequences: int) -> None:
    def gradients(members: list[int]) -> list[Tensor]:
        made, parameters = core(cell, 4, 17, len(members))
        generator = torch.Generator().manual_seed(0)
        x, before, weights = (
            torch.randn(4, sequences, *shape, generator=generator)[members].clone()
            for shape in ((16, 4), (made.state_size,), (16, made.state_size))
        )
        states = made(parameters.leaves, x, torch.zeros(len(members), sequences, 16), before)
        return list(torch.autograd.grad((states * weights).sum(), list(parameters.leaves.values())))

    for together, alone in zip(gradients([0, 1, 2, 3]), gradients([0]), strict=True):
        assert torch.equal(together[0], alone[0])


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_nothing_is_remembered_over_the_beginning_of_an_episode(cell: str) -> None:
    made, parameters = core(cell)
    x = torch.randn(2, 1, 6, 3, generator=torch.Generator().manual_seed(0))
    begins = torch.zeros(2, 1, 6)
    before = torch.randn(2, 1, made.state_size, generator=torch.Generator().manual_seed(1))
    begins[:, :, 3] = 1
    states = made(parameters.views, x, begins, before)
    fresh = made(parameters.views, x[:, :, 3:], torch.zeros(2, 1, 3), torch.zeros_like(before))
    torch.testing.assert_close(states[:, :, 3:], fresh)
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(made(parameters.views, x, begins, before)[:, :, 3:].sum(), x)
    assert not gradient[:, :, :3].any()


def learner_and_rollout(cell: str = "lstm", steps: int = 40, env: Any = "CartPole-v1") -> tuple[Any, Any]:
    """Two members, and a rollout in which many episodes end."""
    model = {"memory": cell, "width": 8}
    common = {"num_steps": steps, "num_envs": 4, "model": model, "num_minibatches": 2}
    tasks = [PPO(env, seed=seed).init(**common) for seed in range(2)]
    learner: Any = tasks[0].build_learner(tasks)
    learner.agent.collect(learner.envs, 0)
    return learner, learner.agent.collect(learner.envs, 1)


def test_more_minibatches_than_environments_are_one_for_each_environment() -> None:
    common = {"num_steps": 8, "num_envs": 3, "epoch_steps": 24, "model": {"memory": "gru", "width": 8}}
    many, three = (PPO("CartPole-v1").init(**common, num_minibatches=parts) for parts in (16, 3))
    for task in (many, three):
        task.fit(2)
    assert many.metrics == three.metrics
    assert many.metrics["updates"] == 2 * 3 * many.hyperparameters["update_epochs"]


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_learning_goes_through_what_was_remembered_while_acting(cell: str) -> None:
    learner, rollout = learner_and_rollout(cell)
    assert rollout.ended.any()
    assert rollout.memory.any()
    batch = learner.agent.advantages(rollout, learner.hp.gamma, learner.hp.gae_lambda)
    _, report = learner.loss(batch)
    assert report["approx_kl"].abs().max() < 1e-6  # the same policy on the same memories
    # ... and acting ends with what learning ends with: the last state, forgotten where the last step ended an episode.
    states = learner.policy.sequences(batch["obs"], batch["begins"], batch["memory"])[2]
    expected = states[:, :, -1] * (1 - rollout.ended[-1]).unsqueeze(-1)
    torch.testing.assert_close(learner.agent.memory.tensors["state"], expected.detach())


def test_minibatches_hold_whole_sequences() -> None:
    learner, rollout = learner_and_rollout()
    batch = learner.agent.advantages(rollout, learner.hp.gamma, learner.hp.gae_lambda)
    for part in learner.agent.minibatches(batch, learner.order, 0, 4, 2):
        assert part["memory"].shape[1] == 2
        for member in range(2):
            for row, memory in zip(part["obs"][member].unflatten(0, (2, 40)), part["memory"][member], strict=True):
                places = [n for n in range(4) if torch.equal(row, rollout.obs[member, :-1, n])]
                assert len(places) == 1
                assert torch.equal(memory, rollout.memory[member, places[0]])


def test_a_cut_episode_is_worth_what_follows_with_what_was_remembered_then() -> None:
    learner, rollout = learner_and_rollout(env=EnvSpec("Pendulum-v1", max_episode_steps=7))
    assert rollout.truncations
    values, next_values = learner.agent.values(rollout)
    begins = torch.cat([torch.zeros_like(rollout.ended[:1]), rollout.ended])
    for t, mask, final in rollout.truncations[-2:]:
        for p, n in zip(*np.nonzero(mask), strict=True):
            seen = [rollout.obs[p, s, n] for s in range(t + 1)] + [torch.from_numpy(final[p, n])]
            flags = torch.cat([begins[: t + 1, p, n], torch.zeros(1)])
            alone = torch.stack(seen).expand(2, -1, -1), flags.expand(2, -1), rollout.memory[:, n : n + 1]
            value = learner.policy.sequences(*alone, learning=False)[1][p, -1]
            torch.testing.assert_close(next_values[t, p, n], value)
    torch.testing.assert_close(next_values[:-1][rollout.ended[:-1] == 0], values[1:][rollout.ended[:-1] == 0])


def test_evaluation_remembers_from_the_beginning_and_changes_nothing() -> None:
    task = PPO("CartPole-v1").init(model={"memory": "gru"}, epoch_steps=256, num_steps=32)
    task.fit(1)
    digest, first = task.digest, task.evaluate(4)
    assert task.evaluate(4) == first
    assert task.digest == digest
    learner: Any = task.build_learner([task])
    act, obs = learner.actor(4), learner.envs.obs[:, :4]
    first = act(obs)
    act(obs)
    assert np.array_equal(first, learner.actor(4)(obs))


def test_a_player_remembers_its_episode_and_no_other() -> None:
    task = PPO("CartPole-v1").init(model={"memory": "lstm"}, epoch_steps=256, num_steps=32)
    task.fit(1)
    learner: Any = task.build_learner([task])
    hidden = learner.actor(1)
    output = [np.array([x, 0.5, -x, 0.1], np.float32) for x in (0.0, 2.0, -2.0, 1.0, -1.0)]
    play = task.player()
    assert [play(obs) for obs in output] == [int(hidden(obs[None, None])[0, 0]) for obs in output]
    assert task.player()(output[3]) == task.act(output[3])


def test_a_memory_can_be_a_particles() -> None:
    task = SVPG("CartPole-v1").init(model={"memory": "gru", "width": 8}, num_particles=2, epoch_steps=64)
    task.fit(1)
    assert task.metrics["particle_distance"] > 0


@pytest.mark.parametrize(
    ("task", "hyperparameters", "message"),
    [
        (
            PPO,
            {"num_envs": 6, "num_minibatches": 4},
            r"PPO: with a memory, num_envs \(6\) must be divisible by num_minibatches \(4\); try num_minibatches=2",
        ),
        (
            PPO2,
            {"num_minibatches": 3},
            r"PPO2: with a memory, num_envs \(8\) must be divisible by num_minibatches \(3\)",
        ),
        (A2C, {"num_minibatches": 3}, r"A2C: with a memory, num_envs \(8\) must be divisible by num_minibatches \(3\)"),
        (PPO, {"critic.name": "separate", "critic.num_minibatches": 3}, r"must be divisible by critic.num_minibatches"),
        (PPO, {"model.memory": "lstmm"}, "memory"),
    ],
)
def test_options_that_exclude_a_memory_are_refused_before_training(
    task: Any, hyperparameters: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        task("CartPole-v1").init(**{"model.memory": "lstm", **hyperparameters})


# Actor and critic share the memory, so the critic's error must not drown the policy's: rewards are normalized.
RECURRENT: dict[str, Any] = {
    "num_envs": 16,
    "num_steps": 32,
    "model.width": 32,
    "optimizer.lr": 3e-3,
    "normalize_reward": True,
}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "cell"), [(PPO, "lstm"), (PPO, "gru"), (PPO2, "lstm"), (A2C, "gru")])
def test_a_task_that_needs_a_memory_is_solved_with_one_only(task: Any, cell: str) -> None:
    settings: dict[Any, dict[str, Any]] = {
        A2C: {"optimizer.name": "adam", "num_steps": 16},
        PPO: {"update_epochs": 4, "num_minibatches": 4, "target_kl": None},  # four environments to a minibatch
    }
    changes = {**RECURRENT, **settings.get(task, {})}
    scores = {}
    for memory in (cell, "none"):
        tasks = [task(MASKED, seed=seed).init(**changes, **{"model.memory": memory}) for seed in range(9)]
        Cohort(tasks).fit(20 if task is A2C else 10)
        scores[memory] = sorted(task.evaluate() for task in tasks)
    assert scores[cell][4] > 300, scores  # the median
    assert scores["none"][-1] < 150, scores
