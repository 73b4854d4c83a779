"""Fused recurrent cores give the states and gradients of plain cores."""

from __future__ import annotations

import pytest
import torch
from rekindle.tasks.networks.fused.recurrent import fused
from rekindle.tasks.networks.mlp import Parameters
from rekindle.tasks.networks.recurrent import Core
from torch import Tensor

KINDS = ["lstm", "gru"]


def made(kind: str, inputs: int, members: int = 3, width: int = 5) -> tuple[Core, Parameters]:
    core = Core("memory", kind, inputs, width)
    parameters = Parameters(core.shapes, members)
    parameters.vector.copy_(0.5 * torch.randn(parameters.vector.shape, generator=torch.Generator().manual_seed(7)))
    return core, parameters


def sequences(core: Core, members: int = 3, batch: int = 4, steps: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    """What is seen, beginnings at some places (steps at which nobody begins are there too), and a first state."""
    generator = torch.Generator().manual_seed(1)
    begins = (torch.rand(members, batch, steps, generator=generator) < 0.15).float()
    begins[..., 4] = 0
    return (
        torch.randn(members, batch, steps, core.inputs, generator=generator),
        begins,
        torch.randn(members, batch, core.state_size, generator=generator),
    )


def vector_of(core: Core, parameters: Parameters, members: int) -> Tensor:
    """All parameters of a core, without the padding, of the first members."""
    size = sum(view[0].numel() for view in parameters.views.values())
    return parameters.vector[:members, :size].clone().requires_grad_()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inputs", [1, 3])
def test_the_states_are_those_of_the_core(kind: str, inputs: int) -> None:
    core, parameters = made(kind, inputs)
    given = sequences(core)
    states = core(parameters.views, *given)
    outputs, saved = fused(core).run(parameters.views, *given)
    torch.testing.assert_close(outputs, states[..., :5])
    torch.testing.assert_close(saved["state"], states[:, :, -1])
    learned, others = fused(core)(vector_of(core, parameters, 2), parameters.views, *given)
    assert torch.equal(torch.cat([learned, others]), outputs)
    assert (learned.requires_grad, others.requires_grad) == (True, False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inputs", [1, 3])
@pytest.mark.parametrize("first", [3, 2])
def test_the_gradient_is_autograds(kind: str, inputs: int, first: int) -> None:
    core, parameters = made(kind, inputs)
    given = sequences(core)
    slopes = torch.randn(3, 4, 9, 5, generator=torch.Generator().manual_seed(2))
    vector, x = vector_of(core, parameters, first), given[0].requires_grad_()
    learned, _ = fused(core)(vector, parameters.views, *given)
    gradient, of_inputs = torch.autograd.grad((learned * slopes[:first]).sum(), [vector, x])
    losses = (core(parameters.leaves, *given)[..., :5] * slopes).sum((1, 2, 3))
    (theirs,) = torch.autograd.grad(losses[:first].sum(), x, retain_graph=True)
    expected = parameters.gradient(losses)[:first, : gradient.shape[1]]
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(of_inputs, theirs, rtol=1e-4, atol=1e-5)
    assert not of_inputs[first:].any()


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_through_time_is_that_of_differences(kind: str) -> None:
    core, parameters = made(kind, 2, members=2, width=3)
    obs, begins, state = (x.double() for x in sequences(core, 2, 2, 5))

    def outputs(vector: Tensor) -> Tensor:
        flat = vector.detach()
        views = {name: flat[:, span].unflatten(1, core.shapes[name]) for name, span in parameters.spans.items()}
        learned, _ = fused(core)(vector, views, obs, begins, state)
        return learned

    vector = vector_of(core, parameters, 2).detach().double().requires_grad_()
    assert torch.autograd.gradcheck(outputs, vector, check_undefined_grad=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "batch", "width"), [(1, 2, 2), (4, 3, 17), (3, 16, 64)])
def test_a_member_is_the_same_in_company(kind: str, inputs: int, batch: int, width: int) -> None:
    core, parameters = made(kind, inputs, 4, width)
    given = sequences(core, 4, batch)
    slopes = torch.randn(4, batch, 9, width, generator=torch.Generator().manual_seed(2))
    vector = vector_of(core, parameters, 4)
    outputs, _ = fused(core)(vector, parameters.views, *given)
    (gradient,) = torch.autograd.grad((outputs * slopes).sum(), vector)
    for member in range(4):
        part = slice(member, member + 1)
        views = {name: view[part].clone() for name, view in parameters.views.items()}
        # other episodes begin at other steps
        own_vector = vector.detach()[part].clone().requires_grad_()
        own, _ = fused(core)(own_vector, views, *(x[part].clone() for x in given))
        assert torch.equal(own, outputs[part])
        (own_gradient,) = torch.autograd.grad((own * slopes[part]).sum(), own_vector)
        assert torch.equal(own_gradient, gradient[part])
