"""Operations with their own backward pass: gradients, rounding, and refused misuse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from rekindle.tasks.compiled.loading import without_kernels
from rekindle.tasks.networks.fused.autograd import Autograd, Operation, Tape, apply
from rekindle.tasks.networks.fused.losses import (
    SoftSample,
    huber,
    soft_samples,
    soft_value,
    state_dependent_log_std,
    twins,
)
from rekindle.tasks.networks.fused.mlp import ActingMLP, FusedMLP, joined
from rekindle.tasks.networks.mlp import ACTIVATIONS, MLP, PRODUCT_RULE_TANH, Activation, Layers, Parameters, initialize
from torch import Tensor
from torch.autograd import gradcheck
from torch.autograd.function import once_differentiable

IN_PLACE = {name: a for name, a in ACTIVATIONS.items() if a.apply_} | {"product rule": PRODUCT_RULE_TANH}
SIZES = [3, 5, 4, 2]
DOUBLE = torch.float64


def layers_in(vector: Tensor) -> Layers:
    """The layers of SIZES that lie in parameter vectors (P, D)."""
    layers, start = [], 0
    for inputs, outputs in pairwise(SIZES):
        weight = vector[:, start : start + inputs * outputs].unflatten(1, (inputs, outputs))
        start += (inputs + 1) * outputs
        layers.append((weight, vector[:, start - outputs : start].unsqueeze(1)))
    return layers


def fused(activation: Activation, learned: int = 2) -> tuple[FusedMLP, Tensor]:
    generator = torch.Generator().manual_seed(3)
    vector = torch.randn(4, 64, dtype=DOUBLE, generator=generator)
    return FusedMLP(SIZES, activation, vector[:learned], 4, 10), vector


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def alike(function: Callable[..., Any], *inputs: Tensor) -> bool:
    return gradcheck(function, [x.clone().requires_grad_() for x in inputs], check_undefined_grad=False)


@pytest.mark.parametrize("activation", IN_PLACE)
def test_the_gradient_of_a_perceptron(activation: str) -> None:
    mlp, vector = fused(IN_PLACE[activation])

    def outputs(own: Tensor, x: Tensor) -> Tensor:
        fresh = FusedMLP(SIZES, IN_PLACE[activation], own.detach(), 2, 6)
        fresh.leaf = own
        return fresh(own.detach(), x)[0]

    assert alike(outputs, vector[:2], draw(2, 6, 3))
    assert mlp.leaf.shape == (2, 64)


@pytest.mark.parametrize("by_rows", [False, True])
def test_further_members_or_rows_are_computed_beside_and_get_no_gradient(by_rows: bool) -> None:
    mlp, vector = fused(ACTIVATIONS["elu"], learned=4 if by_rows else 2)
    layers = layers_in(vector)
    x, rest = (draw(4, 5, 3), draw(4, 3, 3)) if by_rows else (draw(2, 5, 3), draw(2, 5, 3, seed=1))
    x.requires_grad_()
    outputs, others, hidden = mlp(vector, x, no_grad_inputs=rest)
    reference = MLP("q", SIZES, "elu", last_gain=1.0)
    together = reference(layers, torch.cat([x, rest], int(by_rows)))
    torch.testing.assert_close(torch.cat([outputs, others], int(by_rows)), together)
    torch.testing.assert_close(hidden, reference.hidden(layers, torch.cat([x, rest], int(by_rows))))
    assert not others.requires_grad
    assert not hidden.requires_grad
    g = draw(*outputs.shape, seed=2)
    mine = torch.autograd.grad((outputs * g).sum(), [mlp.leaf, x])
    leaf = vector.clone().requires_grad_()
    own = reference([(w[: len(x)], b[: len(x)]) for w, b in layers_in(leaf)], x)
    to_vector, to_x = torch.autograd.grad((own * g).sum(), [leaf, x])
    torch.testing.assert_close(mine[0], to_vector[: len(mlp.leaf)])
    torch.testing.assert_close(mine[1], to_x)


def test_parameters_that_do_not_learn_get_no_gradient_but_the_inputs_do() -> None:
    mlp, vector = fused(ACTIVATIONS["tanh"])
    x = draw(2, 5, 3).requires_grad_()
    outputs, _, _ = mlp(vector[:2], x, learn=False)
    to_vector, to_x = torch.autograd.grad(outputs.sum(), [mlp.leaf, x], allow_unused=True)
    assert to_vector is None
    assert to_x.any()


@pytest.mark.parametrize("kind", [DOUBLE, torch.float32])  # kernels compute the latter
def test_a_call_that_was_overwritten_cannot_be_differentiated(kind: torch.dtype) -> None:
    vector = fused(ACTIVATIONS["relu"])[1][:2].to(kind)
    mlp = FusedMLP(SIZES, ACTIVATIONS["relu"], vector, 2, 5)
    outputs, _, _ = mlp(vector, draw(2, 5, 3).to(kind))
    mlp(vector, draw(2, 5, 3, seed=1).to(kind))
    with pytest.raises(RuntimeError, match=r"modified (by an )?inplace"):
        torch.autograd.grad(outputs.sum(), mlp.leaf)


@pytest.mark.parametrize(
    ("x", "copies"),
    [((4, 11, 3), 1), ((1, 20, 3), 1), ((5, 5, 3), 1), ((3, 5, 3), 2), ((4, 5, 2), 1), ((4, 5, 4), 1), ((2, 5, 4), 2)],
)
def test_kernels_refuse_inputs_that_their_arrays_have_no_room_for(x: tuple[int, ...], copies: int) -> None:
    vector = draw(4, 64).float()
    mlp = FusedMLP(SIZES, ACTIVATIONS["tanh"], vector, 4, 10)
    assert mlp(vector, torch.zeros(4 // copies, 10, 3), num_copies=copies)[0].any()
    with pytest.raises(ValueError, match="no room"):
        mlp(vector, torch.zeros(x), num_copies=copies)


def test_kernels_refuse_parameters_that_are_too_few() -> None:
    vector = draw(4, 64).float()
    mlp = FusedMLP(SIZES, ACTIVATIONS["tanh"], vector[:2], 4, 10)
    for own in (vector[:1], vector[:, :40].contiguous()):
        with pytest.raises(ValueError, match="no room"):
            mlp(own, torch.zeros(2, 5, 3))
    outputs, _, _ = mlp(vector, torch.zeros(4, 5, 3))  # of which only two learn
    with pytest.raises(ValueError, match="no room"):
        torch.autograd.grad(outputs.sum(), mlp.leaf)
    with pytest.raises(ValueError, match="no room"):
        FusedMLP(SIZES, ACTIVATIONS["tanh"], vector[:, :40].contiguous(), 4, 10)
    acting = ActingMLP.of(SIZES, ACTIVATIONS["tanh"], vector[:2])
    assert acting is not None
    for x in (torch.zeros(3, 5, 3), torch.zeros(2, 5, 4)):
        with pytest.raises(ValueError, match="no room"):
            acting(x)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_perceptron_rounds_as_autograd_does(activation: str, compiled: bool) -> None:
    net = MLP("q", [3, 17, 8, 2], activation, last_gain=1.0)
    parameters = initialize([net], Parameters(net.shapes, 3), [1, 2, 3])
    with nullcontext() if compiled else without_kernels():
        mlp = FusedMLP(net.sizes, ACTIVATIONS[activation], parameters.vector, 3, 33)
    same = torch.testing.assert_close if compiled else partial(torch.testing.assert_close, rtol=0, atol=0)
    x, g = draw(3, 33, 3).float(), draw(3, 33, 2, seed=1).float()
    outputs, _, _ = mlp(parameters.vector, x)
    expected = net(net.layers(parameters.leaves), x)
    same(outputs, expected)
    (gradient,) = torch.autograd.grad((outputs * g).sum(), mlp.leaf)
    same(gradient, parameters.gradient((expected * g).sum((1, 2))))


@pytest.mark.parametrize(("numbers", "choices"), [(3, 0), (0, 4), (2, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_soft_samples_is_that_of_a_mean(numbers: int, choices: int, weighted: bool) -> None:
    noise, outputs = draw(2, 10, numbers), draw(2, 5, 2 * numbers + choices, seed=1)
    weight = draw(2, 5, seed=2).abs() if weighted else None
    outputs[0, 0, numbers : numbers + 1] = 9.0  # beyond the limits, if it is a log standard deviation

    def parts(outputs: Tensor, rows: int = 1, weight: Tensor | None = None) -> list[Tensor]:
        sample, following = soft_samples(outputs, draw(*outputs.shape), noise, numbers, rows, weight)
        assert not following.entropies.requires_grad
        return [x for x in (sample.continuous if numbers else None, *sample[1:]) if x is not None]

    assert alike(lambda outputs: sum(x.sin().sum() for x in parts(outputs)), outputs)
    leaf = outputs.clone().requires_grad_()
    (one,) = torch.autograd.grad(sum(x.sum() for x in parts(leaf)), leaf)
    (mean,) = torch.autograd.grad(sum(x.sum() for x in parts(leaf, 7, weight)), leaf)
    assert torch.equal(mean, (one if weight is None else one * weight.unsqueeze(-1)) / 7)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("choices", [1, 3])
def test_the_gradient_of_the_soft_value(choices: int, sign: int) -> None:
    alpha, q, entropies = draw(2, 2, seed=1).abs(), draw(2, 2, 5, choices, seed=2), draw(2, 5, 2, seed=3)

    def value(q: Tensor, entropies: Tensor, *probs: Tensor) -> Tensor:
        return soft_value(q, SoftSample(q, probs[0] if probs else None, entropies), alpha, sign)

    assert alike(value, q, entropies, *([torch.softmax(draw(2, 5, choices), -1)] if choices > 1 else []))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_gradient_of_half_a_square_is_that_of_a_mean(n: int, weighted: bool) -> None:
    q, targets, weight = draw(2, 2, 7, n), draw(2, 7, seed=1), draw(2, 7, seed=2).abs() if weighted else None
    choices = torch.arange(14).view(2, 7) % n
    given = choices if n > 1 else None
    assert alike(lambda q: twins(q, given, targets, weight, 1)[0], q)
    leaf = q.clone().requires_grad_()
    losses, errors, taken = twins(leaf, given, targets, weight, 7)
    assert torch.equal(taken, q.gather(-1, choices[:, None, :, None].expand(-1, 2, -1, 1)).squeeze(-1))
    assert torch.equal(errors, targets.unsqueeze(1) - taken)
    (mine,) = torch.autograd.grad(losses.sum(), leaf)
    expected = (errors if weight is None else errors * weight.unsqueeze(1)) / -7
    assert torch.equal(mine.sum(-1), expected)
    assert int((mine != 0).sum()) == expected.numel()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_twins_huber_loss_is_torchs_and_so_is_its_gradient(weighted: bool) -> None:
    q, targets, weight = 3 * draw(2, 2, 7, 1), draw(2, 7, seed=1), draw(2, 7, seed=2).abs() if weighted else None
    leaf = q.clone().requires_grad_()
    losses, errors, _ = twins(leaf, None, targets, weight, 7, 1.0)
    other = q.clone().requires_grad_()
    rows = torch.nn.functional.huber_loss(other.squeeze(-1), targets.unsqueeze(1).expand_as(errors), reduction="none")
    expected = (rows if weight is None else rows * weight.unsqueeze(1)).sum(1)
    torch.testing.assert_close(losses, expected)
    (mine,), (theirs,) = torch.autograd.grad(losses.sum(), leaf), torch.autograd.grad(expected.sum() / 7, other)
    torch.testing.assert_close(mine, theirs)
    assert float(errors.abs().max()) > 1


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_tape_gives_every_bit_of_what_autograd_gives(activation: str) -> None:
    net = MLP("q", [3, 17, 8, 3], activation, last_gain=1.0)
    parameters = initialize([net], Parameters(net.shapes, 2), [1, 2])
    mlp = FusedMLP(net.sizes, ACTIVATIONS[activation], parameters.vector, 2, 33)
    x, targets = draw(2, 33, 3).float(), draw(2, 33, seed=1).float()

    def gradient(graph: Autograd | Tape) -> Tensor:
        with graph:
            losses, _ = huber(mlp(parameters.vector, x)[0], torch.arange(66).view(2, 33) % 3, targets)
            return graph.gradient(losses, mlp.leaf).clone()

    assert torch.equal(gradient(Tape()), gradient(Autograd()))
    assert gradient(Autograd()).any()


class Sum(Operation):
    inputs = 2

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a + 2 * b

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        return g, 2 * g


def test_an_input_used_twice_gets_the_sum_of_both_gradients() -> None:
    leaf = draw(2, 3).requires_grad_()
    with Tape() as tape:
        assert tape.gradient(apply(Sum, leaf, leaf), leaf).unique().tolist() == [3.0]
    with pytest.raises(KeyError):
        tape.gradient(leaf.sum(), leaf)  # nothing is recorded outside


def test_copies_of_a_network_see_the_same_inputs() -> None:
    mlp, vector = fused(ACTIVATIONS["tanh"], learned=4)
    layers, obs, numbers = layers_in(vector), draw(2, 5, 2).requires_grad_(), draw(2, 5, 1, seed=1).requires_grad_()
    outputs, _, _ = mlp(vector, obs, numbers, num_copies=2)
    assert outputs.shape == (2, 2, 5, 2)
    x = joined(obs, numbers, 2)
    assert torch.equal(x, torch.cat([obs, numbers], -1).repeat_interleave(2, 0))
    expected = MLP("q", SIZES, "tanh", last_gain=1.0)(layers, x).unflatten(0, (2, 2))
    torch.testing.assert_close(outputs, expected)
    g = draw(2, 2, 5, 2, seed=2)
    for mine, theirs in zip(
        torch.autograd.grad((outputs * g).sum(), [obs, numbers]),
        torch.autograd.grad((expected * g).sum(), [obs, numbers]),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("compiled", [False, True])
def test_slopes_and_inputs_may_lie_in_memory_in_any_order(compiled: bool) -> None:
    vector, x, g = draw(4, 64).float(), draw(2, 5, 3).float(), draw(2, 2, 2, 5).float().transpose(2, 3)
    with nullcontext() if compiled else without_kernels():
        mlp = FusedMLP(SIZES, ACTIVATIONS["tanh"], vector, 4, 5)
    for slopes in (g, torch.ones(1).expand(g.shape)):
        result = [
            torch.autograd.grad(mlp(vector, x, num_copies=2)[0], mlp.leaf, own)[0].clone()
            for own in (slopes, slopes.contiguous())
        ]
        assert torch.equal(*result)
    every = draw(4, 5, 3).float()
    turned = every.transpose(1, 2).contiguous().transpose(1, 2)
    assert torch.equal(mlp.evaluate(vector, turned), mlp.evaluate(vector, every))


@pytest.mark.parametrize("numbers", [1, 3])
def test_the_gradient_of_a_state_dependent_deviation(numbers: int) -> None:
    z = draw(2, 6, 4)
    assert alike(lambda log_std: state_dependent_log_std(log_std, z, 4)[0], draw(2, 4, numbers))
    learned, others = state_dependent_log_std(draw(2, 4, numbers).requires_grad_(), z, 4)
    assert (learned.requires_grad, others.requires_grad) == (True, False)
    expected = 0.5 * ((z * z) @ (2 * draw(2, 4, numbers)).exp() + 1e-6).log()
    torch.testing.assert_close(torch.cat([learned, others], 1), expected)


@pytest.mark.parametrize("weights", [None, draw(2, 6, seed=5).abs()])
def test_the_gradient_of_hubers_loss(weights: Tensor | None) -> None:
    targets = torch.tensor([[0.5, -0.5, 3.0, -3.0, 0.9, 0.1]], dtype=DOUBLE).repeat(2, 1)
    choices, q = torch.arange(12).view(2, 6) % 2, torch.zeros(2, 6, 2, dtype=DOUBLE)
    assert alike(lambda q: huber(q, choices, targets, weights)[0], q)
    losses, errors = huber(q, choices, targets, weights)
    assert torch.equal(errors, targets)
    reference = torch.nn.functional.huber_loss(errors, torch.zeros_like(errors), reduction="none")
    torch.testing.assert_close(losses, (reference * (1 if weights is None else weights)).mean(1))
