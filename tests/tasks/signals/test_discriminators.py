"""GAIL with a variational bottleneck: its formulas, its cost, and the information that it removes.

Exact resuming is tested in test_gail.py and test_exactness.py.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fakes import batch_of
from rekindle import PPO, EnvSpec
from rekindle.studies.study.searched import open_space
from rekindle.tasks.signals.discriminators import Bottleneck, input_gradient
from rekindle.tasks.signals.gail import GAIL, softplus
from rekindle.tasks.signals.signal import perceptron
from signal_learners import built, shown, signals_of
from torch import Tensor
from torch.distributions import Normal, kl_divergence
from torch.nn.functional import binary_cross_entropy_with_logits


def variational(members: int = 2, **more: Any) -> tuple[GAIL, dict[str, Tensor]]:
    """The signal of a learner, and a batch of its own."""
    options = {"use": True, "variational": True, "code_width": 8, "width": 16, **more}
    learner = built(gail=options, members=members)
    signal = signals_of(learner)["gail"]
    batch = batch_of(learner)
    return signal, batch


def coded(signal: GAIL, batch: dict[str, Tensor]) -> tuple[Bottleneck, dict[str, Tensor], Tensor]:
    assert signal.bottleneck is not None
    tensors = signal.trained.leaves
    return signal.bottleneck, tensors, signal._inputs(tensors, batch)


def of_encoder(tensors: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """μ and log σ, written once more."""
    for layer in range(3):
        x = x @ tensors[f"gail.encoder.{layer}.weight"] + tensors[f"gail.encoder.{layer}.bias"]
        x = torch.tanh(x) if layer < 2 else x
    mean, log_std = x.chunk(2, -1)
    return mean, log_std


def of_decision(tensors: dict[str, Tensor], z: Tensor) -> Tensor:
    return (z @ tensors["gail.discriminator.0.weight"] + tensors["gail.discriminator.0.bias"]).squeeze(-1)


def test_the_slope_of_a_discriminator_is_what_autograd_finds() -> None:
    net, x = perceptron("d", 3, 8, 1), torch.randn(2, 5, 3, requires_grad=True)
    layers = [(torch.randn(2, a, b), torch.randn(2, 1, b)) for a, b in ((3, 8), (8, 8), (8, 1))]
    torch.testing.assert_close(input_gradient(net, layers, x), torch.autograd.grad(net(layers, x).sum(), x)[0])
    numbers = torch.tensor([-200.0, -3.0, 0.0, 2.0, 200.0])
    torch.testing.assert_close(softplus(numbers), torch.nn.functional.softplus(numbers))


def test_the_information_in_a_code_is_its_divergence_from_a_standard_normal() -> None:
    signal, batch = variational(code_width=2)
    bottleneck, _, x = coded(signal, batch)
    with torch.no_grad():
        signal.trained.views["gail.encoder.2.weight"].zero_()
        signal.trained.views["gail.encoder.2.bias"].copy_(torch.tensor([1.0, 0.0, 0.0, math.log(2)]))
    _, kl = bottleneck.sample(signal.trained.views, x, 0, 0)
    # N(1, 1) and N(0, 4): 1/2, and (4 - 1)/2 - log 2.
    torch.testing.assert_close(kl, torch.full_like(kl, 0.5 + 1.5 - 0.6931472))


def test_the_loss_is_that_of_samples_and_of_what_they_tell_at_its_price() -> None:
    signal, batch = variational(information=0.3, gradient_penalty=0.0)
    bottleneck, tensors, policy = coded(signal, batch)
    bottleneck.tensors["beta"].copy_(torch.tensor([[0.7], [0.0]]))
    rows = (signal.draws(5)[:, 0] * signal.examples.steps).astype("int64")
    seen = signal.examples.batch(rows, None)
    expert = signal._inputs(tensors, seen)
    noise = bottleneck.noise(5)
    expected, told = torch.zeros(2), torch.zeros(2)
    for index, (x, label) in enumerate(((policy, 0.0), (expert, 1.0))):
        mean, log_std = of_encoder(tensors, x)
        z = of_decision(tensors, mean + log_std.exp() * noise[:, index])
        expected = expected + binary_cross_entropy_with_logits(z, torch.full_like(z, label), reduction="none").mean(1)
        kl = kl_divergence(Normal(mean, log_std.exp()), Normal(0.0, 1.0))
        told = told + 0.5 * kl.sum(-1).mean(1)
    expected = expected + torch.tensor([0.7, 0.0]) * (told - 0.3)
    losses, report = signal.loss(batch, 5)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(report["information"], told)
    gradient = signal.trained.parameters.gradient
    torch.testing.assert_close(gradient(losses), gradient(expected), rtol=1e-3, atol=1e-6)
    other, _ = signal.loss(batch, 6)
    assert (other != losses).all()  # on other noise


def test_rewards_are_of_the_mean_code_and_have_no_noise() -> None:
    signal, batch = variational()
    _, tensors, x = coded(signal, batch)
    estimate = of_decision(tensors, of_encoder(tensors, x)[0])
    expected = -torch.log(1 - torch.sigmoid(estimate))
    torch.testing.assert_close(signal.rewards(batch), expected.detach())
    before = signal.rewards(batch)
    signal.loss(batch, 3)
    assert torch.equal(signal.rewards(batch), before)


def test_the_slope_of_a_sample_is_what_autograd_finds() -> None:
    signal, batch = variational()
    bottleneck, tensors, x = coded(signal, batch)
    x = x.detach().requires_grad_()
    for place in (0, 1):
        z, _ = bottleneck.sample(tensors, x, 2, place)
        expected = torch.autograd.grad(z.sum(), x)[0]
        torch.testing.assert_close(bottleneck.input_gradient(tensors, x, 2, place), expected)


def test_the_price_rises_while_codes_tell_too_much_and_falls_to_nothing_otherwise() -> None:
    signal, _ = variational()
    assert signal.bottleneck is not None
    beta, lr = signal.bottleneck.tensors["beta"], torch.tensor([[0.1], [0.2]])
    seen = []
    for excess in (2.0, -1.0, -5.0, 1.0):
        signal.bottleneck.update_beta(torch.full((2, 1), excess), lr)
        seen.append(beta[:, 0].tolist())
    torch.testing.assert_close(seen, [[0.2, 0.4], [0.1, 0.2], [0.0, 0.0], [0.1, 0.2]])


def test_a_learner_pays_for_what_is_told_beyond_the_bound_of_each_member() -> None:
    signal, batch = variational(information=0.0, beta_lr=0.01)
    assert signal.bottleneck is not None
    signal.hp.information[1] = 1e6
    beta = signal.bottleneck.tensors["beta"]
    beta.fill_(0.5)
    for position in range(3):
        before = beta.clone()
        losses, report = signal.loss(batch, position)
        signal.trained.descend(losses, signal.hp.lr)
        signal.update_multiplier(report)
        torch.testing.assert_close(beta[0] - before[0], 0.01 * report["information"][:1].detach())
        assert report["information"][0] > 0.1
        assert beta[1] == 0


@pytest.mark.slow
def test_a_bottleneck_keeps_a_discriminator_from_being_sure() -> None:
    gaps, told = {}, {}
    for bound in (0.2, 1e6):
        signal, batch = variational(members=1, lr=3e-3, beta_lr=0.1, information=bound, gradient_penalty=0.0)
        batch["actions"] = torch.zeros_like(batch["actions"])
        signal.examples.tensors["actions"].fill_(1)  # the demonstrator pushes to the right, and the policy to the left
        for position in range(80):
            losses, report = signal.loss(batch, position)
            signal.trained.descend(losses, signal.hp.lr)
            signal.update_multiplier(report)
        gaps[bound] = report["expert_estimate"] - report["policy_estimate"]
        told[bound] = report["information"]
    assert gaps[1e6] > 0.9
    assert told[1e6] > 5
    assert gaps[0.2] < 0.3
    assert told[0.2] < 0.3


def test_without_it_adversarial_imitation_is_what_it_was() -> None:
    def made(**gail: Any) -> PPO:
        return PPO("CartPole-v1", demonstrations=shown()).init(gail={"use": True, **gail})

    assert made(variational=False).uid == made().uid != made(variational=True).uid
    mine = {name for name in made().identity.values if name.startswith("gail.")}
    names = ("use", "strength", "gamma", "lr", "width", "use_actions", "gradient_penalty")
    assert mine == {f"gail.{name}" for name in names}
    assert (
        open_space(PPO, EnvSpec("CartPole-v1"), {"gail": {"use": True}}, {}).flat().keys()
        & {f"gail.{name}" for name in ("variational", "information", "beta_lr", "code_width")}
        == set()
    )  # and a study of it searches what it did


def test_its_price_is_a_part_of_the_state() -> None:
    task = PPO("CartPole-v1", demonstrations=shown()).init(
        gail={"use": True, "variational": True}, num_steps=16, epoch_steps=128
    )
    task.fit(1)
    beta = task.state_dict()["learner"]["guidance"]["signals"]["gail"]["bottleneck"]["beta"]
    assert beta.shape == (1,)
    assert beta > 0


@pytest.mark.parametrize("information", [0.05, 5.0])
def test_each_bound_is_its_own_task(information: float) -> None:
    tasks = [
        PPO("CartPole-v1", demonstrations=shown()).init(gail={"use": True, "variational": True, **more})
        for more in ({}, {"information": information})
    ]
    assert tasks[0].uid != tasks[1].uid
    assert tasks[0].identity.structure == tasks[1].identity.structure  # so that they train in one cohort
