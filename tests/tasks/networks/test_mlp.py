"""Stacked networks against torch.nn, and every member against itself alone."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from rekindle.tasks.networks.mlp import ACTIVATIONS, ALIGNMENT, MLP, Parameters, affine, orthogonal
from rekindle.tasks.rng import streams
from rekindle.tasks.runtime.threads import one_thread
from threadpoolctl import threadpool_info
from torch import Tensor, nn


@pytest.fixture(autouse=True)
def as_in_training() -> Iterator[None]:
    """On two threads, torch adds up the gradients of convolutions in any order."""
    with one_thread():
        yield


MODULES = {"tanh": nn.Tanh, "relu": nn.ReLU, "silu": nn.SiLU, "elu": nn.ELU}


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def build(mlp: MLP, seeds: list[int]) -> Parameters:
    """Initialized parameters, with biases that are not zero."""
    parameters = Parameters(mlp.shapes, len(seeds))
    for member, seed in enumerate(seeds):
        mlp.initialize(parameters, member, seed)
        for name, view in parameters.views.items():
            if name.endswith("bias"):
                view[member] = draw(*view.shape[1:], seed=seed, scale=0.1)
    return parameters


def module_of(mlp: MLP, parameters: Parameters, member: int, activation: str) -> nn.Sequential:
    """The same network as torch.nn has it."""
    layers: list[nn.Module] = []
    for weight, bias in mlp.layers(parameters.views):
        linear = nn.Linear(*weight.shape[1:])
        linear.weight.data, linear.bias.data = weight[member].T.clone(), bias[member, 0].clone()
        layers += [linear, MODULES[activation]()]
    return nn.Sequential(*layers[:-1])


@pytest.mark.parametrize("activation", MODULES)
def test_a_multilayer_perceptron_is_that_of_torch(activation: str) -> None:
    mlp = MLP("actor", [5, 16, 16, 3], activation, last_gain=1.0)
    parameters = build(mlp, [1, 2, 3])
    x = draw(3, 10, 5)
    out = mlp(mlp.layers(parameters.views), x)
    assert out.shape == (3, 10, 3)
    for member in range(3):
        torch.testing.assert_close(out[member], module_of(mlp, parameters, member, activation)(x[member]))


@pytest.mark.parametrize("activation", MODULES)
def test_gradients_are_those_of_torch(activation: str) -> None:
    mlp = MLP("critic", [4, 8, 2], activation, last_gain=1.0)
    parameters = build(mlp, [1, 2])
    x = draw(2, 6, 4)
    losses = mlp(mlp.layers(parameters.leaves), x).square().mean((1, 2))
    gradient = parameters.gradient(losses)
    assert gradient.shape == parameters.vector.shape
    for member in range(2):
        module = module_of(mlp, parameters, member, activation)
        module(x[member]).square().mean().backward()
        theirs = torch.cat([p.grad.t().reshape(-1) for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(gradient[member, : len(theirs)], theirs, rtol=1e-5, atol=1e-6)
        assert not gradient[member, len(theirs) :].any()


@pytest.mark.parametrize("activation", MODULES)
def test_activations_and_their_slopes_are_those_of_torch(activation: str) -> None:
    x = torch.tensor([-1e30, -200.0, -100.0, -89.0, -20.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 20.0, 89.0, 200.0, 1e30])
    mine, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    a, b = ACTIVATIONS[activation](mine), MODULES[activation]()(theirs)
    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    (da,), (db,) = torch.autograd.grad(a.sum(), mine), torch.autograd.grad(b.sum(), theirs)
    torch.testing.assert_close(da, db, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", MODULES)
@pytest.mark.parametrize("size", [1, 2, 7, 8, 15, 33, 100])
def test_activations_do_not_depend_on_the_place_in_an_array(activation: str, size: int) -> None:
    x = draw(256, scale=3.0)
    function = ACTIVATIONS[activation]
    whole_in = x.clone().requires_grad_()
    whole = function(whole_in)
    (slopes,) = torch.autograd.grad(whole.sum(), whole_in)
    for start in (0, 1, 5, 101):
        part = x[start : start + size].clone().requires_grad_()
        out = function(part)
        assert torch.equal(out, whole[start : start + size])
        assert torch.equal(torch.autograd.grad(out.sum(), part)[0], slopes[start : start + size])


# Members


SHAPES = [
    (batch, inputs, outputs) for batch in (1, 2, 3, 8, 33) for inputs in (1, 2, 3, 17) for outputs in (1, 2, 5, 64)
]


@pytest.mark.parametrize(("batch", "inputs", "outputs"), SHAPES)
def test_a_product_is_that_of_the_member_alone(batch: int, inputs: int, outputs: int) -> None:
    x, weight, bias = draw(6, batch, inputs), draw(6, inputs, outputs, seed=1), draw(6, 1, outputs, seed=2)
    together = affine(x, weight, bias)
    torch.testing.assert_close(together, x @ weight + bias, rtol=1e-5, atol=1e-5)
    for member in (0, 3, 5):
        alone = affine(*(t[member : member + 1].clone() for t in (x, weight, bias)))
        assert torch.equal(alone[0], together[member])


@pytest.mark.parametrize("activation", MODULES)
@pytest.mark.parametrize("batch", [1, 2, 7, 64])
@pytest.mark.parametrize("sizes", [(1, 8, 1), (4, 64, 64, 2), (3, 17, 1), (1, 1, 1), (10, 33, 7, 5)])
def test_a_member_equals_the_network_alone_bit_for_bit(activation: str, batch: int, sizes: tuple[int, ...]) -> None:
    mlp = MLP("actor", sizes, activation, last_gain=1.0)
    seeds = [11, 12, 13, 14, 15]
    together = build(mlp, seeds)
    x = draw(len(seeds), batch, sizes[0])
    outs = mlp(mlp.layers(together.leaves), x)
    gradients = together.gradient(outs.square().mean((1, 2)))
    for member in (0, 2, 4):
        alone = build(mlp, [seeds[member]])
        assert torch.equal(alone.vector[0], together.vector[member])
        out = mlp(mlp.layers(alone.leaves), x[member : member + 1].clone())
        assert torch.equal(out[0], outs[member])
        assert torch.equal(alone.gradient(out.square().mean((1, 2)))[0], gradients[member])


def test_a_member_of_nan_leaves_the_others_alone() -> None:
    mlp = MLP("actor", [3, 8, 2], "tanh", last_gain=1.0)
    parameters = build(mlp, [1, 2, 3])
    x = draw(3, 4, 3)
    before = mlp(mlp.layers(parameters.views), x)
    parameters.vector[1] = math.nan
    outs = mlp(mlp.layers(parameters.leaves), x)
    assert outs[1].isnan().all()
    gradient = parameters.gradient(outs.square().mean((1, 2)))
    for member in (0, 2):
        assert torch.equal(outs[member], before[member])
        assert gradient[member].isfinite().all()


# Parameters


def test_parameters_lie_in_one_padded_vector_that_the_views_share() -> None:
    parameters = Parameters({"w": (2, 3), "b": (1, 3), "scale": ()}, members=2)
    assert parameters.vector.shape == (2, ALIGNMENT)
    parameters.vector.copy_(torch.arange(2 * ALIGNMENT).view(2, ALIGNMENT))
    assert parameters.views["w"][1].tolist() == [[64, 65, 66], [67, 68, 69]]
    assert parameters.views["b"][0].tolist() == [[6, 7, 8]]
    assert parameters.views["scale"].tolist() == [9, 73]
    assert parameters.leaves["w"].data_ptr() == parameters.views["w"].data_ptr()


def test_named_parameters_are_views_of_one_member() -> None:
    parameters = Parameters({"w": (2,), "b": (1,)}, members=2)
    named = parameters.of(1)
    named["w"].fill_(5)
    assert parameters.vector[:, :3].tolist() == [[0, 0, 0], [5, 5, 0]]
    assert {name: tuple(t.shape) for name, t in named.items()} == {"w": (2,), "b": (1,)}


def test_unused_parameters_have_no_gradient() -> None:
    parameters = Parameters({"used": (3,), "unused": (4,)}, members=2)
    gradient = parameters.gradient(parameters.leaves["used"].sum(1) * torch.tensor([1.0, 2.0]))
    assert gradient[:, :3].tolist() == [[1, 1, 1], [2, 2, 2]]
    assert not gradient[:, 3:].any()


def test_a_members_state_loads_at_another_index() -> None:
    mlp = MLP("actor", [3, 8, 2], "tanh", last_gain=1.0)
    one, other = build(mlp, [1, 2]), build(mlp, [3, 4, 5])
    kept = other.vector.clone()
    state = one.member_state(1)
    other.load_member(2, state)
    assert torch.equal(other.vector[2], one.vector[1])
    assert torch.equal(other.vector[:2], kept[:2])
    assert torch.equal(other.leaves["actor.0.weight"][2], one.views["actor.0.weight"][1])
    state["vector"].zero_()
    assert one.vector[1].any()


# First weights


@pytest.mark.parametrize(("rows", "columns"), [(4, 4), (8, 3), (3, 8), (1, 5), (5, 1), (1, 1), (64, 64)])
def test_first_weights_are_orthonormal_times_their_gain(rows: int, columns: int) -> None:
    matrix = orthogonal(streams.key(1, "w"), rows, columns, gain=2.0)
    assert matrix.shape == (rows, columns)
    product = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
    torch.testing.assert_close(product, 4 * torch.eye(min(rows, columns)), rtol=0, atol=1e-5)


def test_first_weights_are_a_function_of_their_key() -> None:
    one = orthogonal(streams.key(1, "w"), 5, 4, 1.0)
    assert torch.equal(one, orthogonal(streams.key(1, "w"), 5, 4, 1.0))
    assert not torch.allclose(one, orthogonal(streams.key(2, "w"), 5, 4, 1.0))


def test_first_weights_are_computed_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    compute = np.linalg.qr

    def watched(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        threads.extend(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas")
        q, r = compute(matrix)
        return q, r

    monkeypatch.setattr(np.linalg, "qr", watched)
    orthogonal(streams.key(1, "w"), 64, 64, 1.0)
    assert threads
    assert set(threads) == {1}


def test_first_weights_favour_no_direction() -> None:
    corners = torch.stack([orthogonal(streams.key(seed, "w"), 3, 3, 1.0) for seed in range(2000)])
    assert corners.mean(0).abs().max() < 0.06  # the deviation of an entry is sqrt(1 / 3) / sqrt(2000) = 0.013
    torch.testing.assert_close(corners.square().mean(0), torch.full((3, 3), 1 / 3), rtol=0, atol=0.03)


def test_the_last_layer_has_its_own_gain_and_biases_begin_at_zero() -> None:
    mlp = MLP("actor", [6, 8, 8, 4], "tanh", last_gain=0.01)
    parameters = Parameters(mlp.shapes, 1)
    mlp.initialize(parameters, 0, seed=5)
    norms = [torch.linalg.matrix_norm(weight[0], 2).item() for weight, _ in mlp.layers(parameters.views)]
    assert norms == pytest.approx([math.sqrt(2), math.sqrt(2), 0.01], rel=1e-5)
    assert not any(bias.any() for _, bias in mlp.layers(parameters.views))


def test_networks_of_one_seed_begin_differently() -> None:
    actor, critic = (MLP(name, [4, 4], "tanh", last_gain=1.0) for name in ("actor", "critic"))
    parameters = Parameters({**actor.shapes, **critic.shapes}, 1)
    for net in (actor, critic):
        net.initialize(parameters, 0, seed=5)
    assert not torch.allclose(parameters.views["actor.0.weight"], parameters.views["critic.0.weight"])


def test_uniform_numbers_of_initialization_are_no_training_stream() -> None:
    names = [streams.key(1, "init", "actor.0.weight"), streams.key(1, "action"), streams.key(1, "order")]
    assert len({int(np.uint64(name)) for name in names}) == 3
