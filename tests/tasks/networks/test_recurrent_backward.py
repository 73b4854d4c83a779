"""Recurrent cores with the gradient written out: the same as the cores', and autograd's."""

from __future__ import annotations

import pytest
import torch
from rekindle.tasks.networks.mlp import Parameters
from rekindle.tasks.networks.recurrent import Core
from rekindle.tasks.networks.recurrent_backward import unrolled
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inputs", [1, 3])
def test_what_is_remembered_is_what_the_core_remembers(kind: str, inputs: int) -> None:
    core, parameters = made(kind, inputs)
    given = sequences(core)
    outputs, last = unrolled(core)(parameters.views, *given)
    states = core(parameters.views, *given)
    torch.testing.assert_close(outputs, states[..., :5])
    torch.testing.assert_close(last, states[:, :, -1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inputs", [1, 3])
@pytest.mark.parametrize("first", [3, 2])
def test_the_gradient_is_autograds(kind: str, inputs: int, first: int) -> None:
    core, parameters = made(kind, inputs)
    given = sequences(core)
    slopes = torch.randn(3, 4, 9, 5, generator=torch.Generator().manual_seed(2))
    through_time = unrolled(core)
    through_time(parameters.views, *given, learning=True)
    gradient = through_time.to_vector(slopes[:first])
    losses = (core(parameters.leaves, *given)[..., :5] * slopes).sum((1, 2, 3))
    expected = parameters.gradient(losses)[:first, : gradient.shape[1]]
    assert gradient.shape[1] == sum(view[0].numel() for view in parameters.views.values())
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("inputs", "batch", "width"), [(1, 2, 2), (4, 3, 17), (3, 16, 64)])
def test_a_member_is_the_same_in_company(kind: str, inputs: int, batch: int, width: int) -> None:
    core, parameters = made(kind, inputs, 4, width)
    given = sequences(core, 4, batch)
    slopes = torch.randn(4, batch, 9, width, generator=torch.Generator().manual_seed(2))
    together, alone = unrolled(core), unrolled(core)
    outputs, last = together(parameters.views, *given, learning=True)
    gradient = together.to_vector(slopes)
    for member in range(4):
        part = slice(member, member + 1)
        views = {name: view[part].clone() for name, view in parameters.views.items()}
        # others in its place forget at other steps
        own_outputs, own_last = alone(views, *(x[part].clone() for x in given), learning=True)
        assert torch.equal(own_outputs, outputs[part])
        assert torch.equal(own_last, last[part])
        assert torch.equal(alone.to_vector(slopes[part]), gradient[part])
