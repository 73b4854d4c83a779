"""Options of critics' networks: dropout, layer normalization, residual blocks; exactness and refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from rekindle import SAC, TD3, TQC
from rekindle.spaces import SpaceError, UnknownParameter, unflatten
from rekindle.tasks import load
from rekindle.tasks.algorithms.off_policy_learner import ReplaySteps
from rekindle.tasks.networks.dropout import Dropout
from rekindle.tasks.networks.mlp import Parameters, initialize
from rekindle.tasks.networks.residual import ResidualMLP
from rekindle.tasks.rng import streams
from rekindle.tasks.testing import VariantSuite

SMALL: dict[str, Any] = {
    "epoch_steps": 48,
    "learning_starts": 32,
    "batch_size": 16,
    "buffer_size": 100,
    "optimizer.lr": 0.01,
    "max_grad_norm": 0.1,
    "model.width": 16,
    "critic.dropout": 0.1,
}
DROQ = {"critic.norm": "layer"}
SIMBA = {"critic.block": "simba", "model.block": "simba", "normalize_obs": True}
RARE = frozenset({"entropy.alpha", "entropy.choice_target", "target_update_interval"})


class TestSAC(VariantSuite):
    task = SAC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (DROQ, SIMBA)
    inert = RARE


@pytest.mark.slow
class TestOthers(VariantSuite):
    task = SAC
    env = "CartPole-v1"
    hyperparameters: ClassVar = {**SMALL, **SIMBA}
    variants: ClassVar = ({"critic.ensemble": 3},)
    inert = RARE | {"entropy.target"}


@pytest.mark.slow
class TestTD3(VariantSuite):
    task = TD3
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "num_updates": 2}
    variants: ClassVar = (DROQ, SIMBA)
    inert = frozenset({"target_noise_clip"})


@pytest.mark.slow
class TestTQC(VariantSuite):
    task = TQC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = {**SMALL, "quantiles": 5, "critics": 3}
    variants: ClassVar = (DROQ, {**SIMBA, "use_sde": True}, {**DROQ, "model.memory": "gru", "model.sequence_length": 8})
    inert = RARE


def learner_of(task: Any = SAC, **changes: Any) -> Any:
    made = task("Pendulum-v1").init(**unflatten({**SMALL, **changes}))
    return task.learner(made.env, (0, 1), [made.hyperparameters or {}] * 2)


def test_critics_drop_units_before_they_normalize_them_as_in_droq() -> None:
    """Against torch's layer normalization, for one critic of one member, in learning, targets and the policy's loss."""
    learner = learner_of(**DROQ)
    policy, critics = learner.policy, learner.policy.critics
    assert type(learner.steps) is ReplaySteps, "kernels must not compute it"
    generator = torch.Generator().manual_seed(0)
    for name in ("critic.0.norm_scale", "critic.1.norm_shift"):
        for parameters in (critics, policy.targets):
            parameters.views[name].copy_(torch.rand(critics.views[name].shape, generator=generator))
    batch = {name: torch.randn(2, 16, 3, generator=generator) for name in ("obs", "next_obs")}
    numbers, factors = torch.rand(2, 16, 1, generator=generator), learner.dropout(7)
    assert factors.shape == (2, 3, 2, 16, 32)
    q, target = policy.q_and_target({**batch, "dropout": factors}, numbers, numbers)
    policy_q = policy.q({**batch, "dropout": factors}, numbers)
    for use, values, obs in ((0, q, "obs"), (1, target, "next_obs"), (2, policy_q, "obs")):
        views, number = (policy.targets if use == 1 else critics).views, 3  # member 1's second critic, or its target
        x = torch.cat([batch[obs][1], numbers[1]], -1)
        for layer, dropped in enumerate(factors[1, use, 1].split(16, -1)):
            of = {part: views[f"critic.{layer}.{part}"][number] for part in ("weight", "bias")}
            scale, shift = (views[f"critic.{layer}.norm_{part}"][number] for part in ("scale", "shift"))
            y = (x @ of["weight"] + of["bias"]) * dropped
            x = torch.nn.functional.layer_norm(y, (16,), scale[0], shift[0]).relu()
        expected = x @ views["critic.2.weight"][number] + views["critic.2.bias"][number]
        torch.testing.assert_close(values[1, 1].detach(), expected, rtol=1e-4, atol=1e-5)


def test_residual_blocks_are_those_of_simba() -> None:
    network = ResidualMLP("q", [4, 8, 8, 2], "relu", last_gain=1.0)
    parameters = initialize([network], Parameters(network.shapes, 1), [0])
    generator = torch.Generator().manual_seed(0)
    for name in ("q.block1.norm_scale", "q.block0.up.bias", "q.out.norm_shift"):
        parameters.views[name].copy_(torch.rand(parameters.views[name].shape, generator=generator))
    x, of = torch.randn(1, 5, 4, generator=generator), {name: view[0] for name, view in parameters.views.items()}
    z = x[0] @ of["q.in.weight"] + of["q.in.bias"]
    for block in ("q.block0", "q.block1"):
        y = torch.nn.functional.layer_norm(z, (8,), of[f"{block}.norm_scale"][0], of[f"{block}.norm_shift"][0])
        y = (y @ of[f"{block}.up.weight"] + of[f"{block}.up.bias"]).relu()
        z = z + y @ of[f"{block}.down.weight"] + of[f"{block}.down.bias"]
    z = torch.nn.functional.layer_norm(z, (8,), of["q.out.norm_scale"][0], of["q.out.norm_shift"][0])
    expected = z @ of["q.out.weight"] + of["q.out.bias"]
    torch.testing.assert_close(network(network.layers(parameters.views), x)[0], expected, rtol=1e-4, atol=1e-5)
    wide = ResidualMLP("q", [4, 64, 1], "relu", last_gain=1.0)
    weights = initialize([wide], Parameters(wide.shapes, 1), [0]).views
    for part, inputs in (("up", 64), ("down", 256)):
        assert weights[f"q.block0.{part}.weight"].std().item() == pytest.approx((2 / inputs) ** 0.5, rel=0.05)


def test_dropout_is_a_function_of_member_and_step_and_keeps_the_mean() -> None:
    keys = streams.keys((0, 1), "dropout")
    dropout = Dropout(keys, 0.25, (100, 101), "cpu")
    first, again = dropout(3), Dropout(keys[1:], 0.25, (100, 101), "cpu")(3)
    assert torch.equal(first[1:], again)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, dropout(4))
    assert first.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert first.mean().item() == pytest.approx(1, abs=4 * (1 / 3 / 20_200) ** 0.5)


def test_gradients_of_composed_critics_are_those_of_the_loss() -> None:
    learner = learner_of(**SIMBA, **{"model.activation": "tanh"})
    while not learner.progress.updates:
        learner.iterate()
    _, batch = learner.draw()
    sample = learner.actions.sample(learner.policy.outputs_of(batch)[1], learner.update_noise(1)[:, 16:])
    alpha, vector = learner.coefficients.alpha, learner.policy.critic_vector

    def loss() -> torch.Tensor:
        losses: torch.Tensor = learner.critic_loss(batch, batch["reward"], sample, alpha)[0]
        return losses

    gradient, before = learner.policy.critic_gradient(loss()).clone(), vector.clone()
    for i in gradient[0].abs().topk(3).indices.tolist():
        values = []
        for shift in (-1e-2, 1e-2):
            vector.copy_(before)
            vector[0, i] += shift
            values.append(loss()[0].mean().item())
        assert (values[1] - values[0]) / 2e-2 == pytest.approx(gradient[0, i].item(), rel=0.1, abs=1e-3)


def test_forms_that_contradict_themselves_are_refused_and_defaults_keep_their_uid() -> None:
    with pytest.raises(ValueError, match=r"SAC: residual blocks .* critic\.block is simba and .* \[32, 64\]; give eq"):
        SAC("Pendulum-v1").init(critic={"block": "simba"}, model={"critic_hidden": [32, 64]})
    with pytest.raises(SpaceError, match=r"critic\.norm"):
        TQC("Pendulum-v1").init(critic={"block": "simba", "norm": "layer"})
    with pytest.raises(SpaceError, match=r"critic"):
        load("crossq")("Pendulum-v1").init(critic={"norm": "layer"})
    same = {"critic": {"dropout": 0.0, "norm": "none", "block": "none"}}
    for task in (SAC, TD3):
        assert task("Pendulum-v1").init().uid == task("Pendulum-v1").init(**same).uid


@pytest.mark.parametrize(
    ("task", "name", "reason"),
    [
        ("crossq", "tau", "it has no target networks; use sac"),
        ("crossq", "critic.norm", "its critics have batch renormalization alone; use sac"),
        ("crossq", "model.block", "its policy has batch renormalization alone; use sac"),
        ("crossq", "use_sde", "it has no state-dependent exploration; use sac or tqc"),
        ("td3", "target_update_interval", "targets move with the actor, once in policy_delay gradient steps; set that"),
        ("td3", "use_sde", "its noise is added to actions, see exploration; use sac or tqc for state-dependent noise"),
        ("ddpg", "entropy.alpha", "its policy is deterministic; use sac, tqc or crossq"),
        ("td3", "ent_coef", "its policy is deterministic; use sac, tqc or crossq"),  # names of other libraries
        ("ddpg", "policy_noise", "its target policy has no noise; use td3"),
        ("ddpg", "target_policy_noise", "its target policy has no noise; use td3"),
        (
            "tqc",
            "critic.ensemble",
            "ensembles whose least values count are those of sac; use it, or tqc with other critics",
        ),
        ("tqc", "critic_loss", "it is always Huber's; leave it out"),
    ],
)
def test_an_algorithm_says_why_it_lacks_a_hyperparameter_of_its_family(task: str, name: str, reason: str) -> None:
    for space in (load(task).learner.hyperparameters, load(task)("Pendulum-v1").get_space()):
        with pytest.raises(UnknownParameter) as caught:
            space.validate(unflatten({name: 1}))
        assert str(caught.value) == f"there is no hyperparameter {name!r}: {reason}"
