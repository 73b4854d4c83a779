"""Optimizers against torch.optim step by step, and schedules at points computed by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rekindle.spaces import Space
from rekindle.tasks.checkpoint.state import difference, pack, unpack
from rekindle.tasks.compiled.loading import without_kernels
from rekindle.tasks.hyperparameters import stack_hyperparameters
from rekindle.tasks.networks.optimizers import (
    Optimizer,
    adam,
    decay_space,
    optimizer_of,
    optimizer_space,
    schedule,
    schedule_space,
)
from torch import Tensor

STEPS, SIZE = 30, 64
RATES = [1e-3, 1e-2, 0.1, 1e-4]

# name -> hyperparameters of every member, and the same optimizer as torch has it
CASES: dict[str, tuple[list[dict[str, Any]], Callable[..., torch.optim.Optimizer]]] = {
    "adam": (
        [
            {"beta1": 0.9, "beta2": 0.999, "eps": 1e-5},
            {"beta1": 0.8, "beta2": 0.99, "eps": 1e-8},
            {"beta1": 0.0, "beta2": 0.9, "eps": 1e-3},
            {"beta1": 0.99, "beta2": 0.0, "eps": 0.1},
        ],
        lambda p, lr, hp: torch.optim.Adam(p, lr, betas=(hp["beta1"], hp["beta2"]), eps=hp["eps"]),
    ),
    "adamw": (
        [{"weight_decay": decay} for decay in (0.0, 0.01, 0.1, 1.0)],
        lambda p, lr, hp: torch.optim.AdamW(p, lr, eps=1e-5, weight_decay=hp["weight_decay"]),
    ),
    "sgd": (
        [{"momentum": momentum} for momentum in (0.0, 0.5, 0.9, 0.99)],
        lambda p, lr, hp: torch.optim.SGD(p, lr, momentum=hp["momentum"]),
    ),
    "rmsprop": (
        [{"alpha": alpha, "momentum": m} for alpha, m in ((0.99, 0.0), (0.9, 0.9), (0.5, 0.5), (0.0, 0.0))],
        lambda p, lr, hp: torch.optim.RMSprop(p, lr, alpha=hp["alpha"], eps=1e-5, momentum=hp["momentum"]),
    ),
}


@pytest.fixture(params=["kernels", "torch"], autouse=True)
def _path(request: pytest.FixtureRequest) -> Iterator[None]:
    with nullcontext() if request.param == "kernels" else without_kernels():
        yield


def values_of(space: Space, **values: Any) -> SimpleNamespace:
    return stack_hyperparameters(space, [space.validate(values)], "cpu")


def build(name: str, members: list[int] | None = None) -> tuple[Optimizer, Tensor]:
    """The optimizer of these members of a case, and their learning rates (P, 1)."""
    members = list(range(4)) if members is None else members
    space = optimizer_space(lr=1e-3)
    hp = stack_hyperparameters(space, [space.validate({"name": name, **CASES[name][0][i]}) for i in members], "cpu")
    vector = torch.randn(4, SIZE, generator=torch.Generator().manual_seed(0))[members].clone()
    return optimizer_of(vector, hp), torch.tensor(RATES)[members].unsqueeze(1)


def gradients(scale: float = 1.0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [scale * torch.randn(4, SIZE, generator=generator) for _ in range(STEPS)]


@pytest.mark.parametrize("name", CASES)
def test_every_step_is_that_of_torch(name: str) -> None:
    optimizer, lr = build(name)
    theirs = []
    for member, hp in enumerate(CASES[name][0]):
        parameter = torch.nn.Parameter(optimizer.vector[member].clone())
        theirs.append((parameter, CASES[name][1]([parameter], RATES[member], hp)))
    for gradient in gradients():
        optimizer.step(gradient.clone(), lr)
        for member, (parameter, other) in enumerate(theirs):
            parameter.grad = gradient[member].clone()
            other.step()
            torch.testing.assert_close(optimizer.vector[member], parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_rate_that_changes_on_the_way_is_followed_at_once(name: str) -> None:
    optimizer, lr = build(name)
    parameter = torch.nn.Parameter(optimizer.vector[1].clone())
    other = CASES[name][1]([parameter], 1.0, CASES[name][0][1])
    for t, gradient in enumerate(gradients()):
        factor = 1 / (1 + t)
        other.param_groups[0]["lr"] = RATES[1] * factor
        optimizer.step(gradient.clone(), lr * factor)
        parameter.grad = gradient[1].clone()
        other.step()
    torch.testing.assert_close(optimizer.vector[1], parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_member_equals_the_optimizer_alone_bit_for_bit(name: str) -> None:
    together, lr = build(name)
    for gradient in gradients():
        together.step(gradient.clone(), lr)
    for member in range(4):
        alone, rate = build(name, [member])
        for gradient in gradients():
            alone.step(gradient[member : member + 1].clone(), rate)
        assert torch.equal(alone.vector[0], together.vector[member])
        assert difference(alone.member_state(0), together.member_state(member)) == []


@pytest.mark.parametrize("name", CASES)
def test_members_that_are_not_active_stay_untouched(name: str) -> None:
    masked, lr = build(name)
    free, _ = build(name)
    for gradient in gradients()[:3]:
        for optimizer in (masked, free):
            optimizer.step(gradient.clone(), lr)
    before, states = masked.vector.clone(), [masked.member_state(i) for i in range(4)]
    active = torch.tensor([[True], [False], [True], [False]])
    gradient = gradients()[3]
    masked.step(gradient.clone(), lr, active)
    free.step(gradient.clone(), lr)
    for member in (1, 3):
        assert torch.equal(masked.vector[member], before[member])
        assert difference(masked.member_state(member), states[member]) == []
    for member in (0, 2):
        assert torch.equal(masked.vector[member], free.vector[member])
        assert difference(masked.member_state(member), free.member_state(member)) == []


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_of_nan_stays_with_its_member(name: str) -> None:
    optimizer, lr = build(name)
    other, _ = build(name)
    for gradient in gradients()[:3]:
        other.step(gradient.clone(), lr)
        gradient[2] = math.nan
        optimizer.step(gradient, lr)
    assert optimizer.vector[2].isnan().all()
    for member in (0, 1, 3):
        assert torch.equal(optimizer.vector[member], other.vector[member])
    masked, _ = build(name)
    masked.step(gradient, lr, torch.tensor([[True], [True], [False], [True]]))
    assert masked.vector.isfinite().all()


@pytest.mark.parametrize("name", CASES)
def test_a_rate_of_zero_moves_nothing(name: str) -> None:
    optimizer, lr = build(name)
    before = optimizer.vector.clone()
    for gradient in gradients()[:3]:
        optimizer.step(gradient, lr * 0)
    assert torch.equal(optimizer.vector, before)


@pytest.mark.parametrize("name", CASES)
def test_parameters_without_gradient_stay_at_zero(name: str) -> None:
    """The padding of the parameter vectors."""
    optimizer, lr = build(name)
    optimizer.vector[:, -5:] = 0
    for gradient in gradients():
        gradient[:, -5:] = 0
        optimizer.step(gradient, lr)
    assert not optimizer.vector[:, -5:].any()


@pytest.mark.parametrize("name", CASES)
def test_a_packed_state_continues_at_another_index(name: str) -> None:
    one, lr = build(name)
    for gradient in gradients()[:10]:
        one.step(gradient.clone(), lr)
    packed = pack(one.member_state(2))
    other, _ = build(name, [0, 2])
    other.load_member(1, unpack(packed.manifest, packed.blobs.__getitem__))
    other.vector[1] = one.vector[2]
    for gradient in gradients()[10:]:
        one.step(gradient.clone(), lr)
        other.step(gradient[[0, 2]].clone(), lr[[0, 2]])
    assert torch.equal(other.vector[1], one.vector[2])
    assert difference(other.member_state(1), one.member_state(2)) == []


def test_huge_and_tiny_gradients_stay_finite() -> None:
    for name in ("adam", "adamw", "rmsprop"):
        for scale in (1e-30, 1e15):
            optimizer, lr = build(name)
            for gradient in gradients(scale):
                optimizer.step(gradient, lr)
            assert optimizer.vector.isfinite().all()


# Clipping


@pytest.mark.parametrize("size", [1, 7, 64, 4992])
def test_gradients_are_clipped_as_torch_does_member_by_member(size: int) -> None:
    gradient = torch.randn(5, size, generator=torch.Generator().manual_seed(0))
    gradient *= torch.tensor([[1e-3], [1.0], [10.0], [1e3], [0.0]])
    limit = torch.tensor([[0.5], [0.5], [1.0], [3.0], [0.5]])
    clipped = adam(gradient).clip(gradient.clone(), limit).gradient
    for member in range(5):
        parameter = torch.nn.Parameter(torch.zeros(size))
        parameter.grad = gradient[member].clone()
        torch.nn.utils.clip_grad_norm_([parameter], limit[member].item())
        torch.testing.assert_close(clipped[member], parameter.grad)
        alone = adam(gradient).clip(gradient[member : member + 1].clone(), limit[member : member + 1]).gradient
        assert torch.equal(alone[0], clipped[member])


def test_without_a_limit_nothing_is_clipped() -> None:
    gradient = torch.full((1, 3), 1e9)
    assert adam(gradient).clip(gradient, None).gradient is gradient
    assert gradient.tolist() == [[1e9] * 3]


# Schedules


def factor(env_steps: float, **values: Any) -> float:
    result = schedule(values_of(schedule_space(), **values), torch.tensor([[float(env_steps)]]))
    assert result.shape == (1, 1)
    return result.item()


@pytest.mark.parametrize(
    ("values", "points"),
    [
        ({"name": "constant"}, {0: 1, 10**9: 1}),
        ({"name": "linear", "horizon": 1000}, {0: 1, 250: 0.75, 500: 0.5, 1000: 0, 5000: 0}),
        ({"name": "exponential", "horizon": 1000, "final": 0.01}, {0: 1, 500: 0.1, 1000: 0.01, 5000: 0.01}),
        ({"name": "cosine", "horizon": 1000, "final": 0.2}, {0: 1, 500: 0.6, 250: 0.8828427, 1000: 0.2, 5000: 0.2}),
        ({"name": "constant", "warmup": 99}, {0: 0.01, 49: 0.5, 99: 1, 10**6: 1}),
        ({"name": "linear", "horizon": 1000, "warmup": 499}, {0: 0.002, 249: 0.5 * 0.751, 499: 0.501, 600: 0.4}),
        ({"name": "constant", "warmup": 0}, {0: 1, 1: 1}),
        (
            {"name": "piecewise", "points": [[100, 1.0], [200, 0.5], [400, 2.0]]},
            {0: 1, 100: 1, 150: 0.75, 200: 0.5, 300: 1.25, 400: 2, 10**9: 2},
        ),
        ({"name": "piecewise", "points": [[0, 0.3]], "warmup": 9}, {0: 0.03, 9: 0.3, 10**6: 0.3}),
    ],
)
def test_schedules_at_points_computed_by_hand(values: dict[str, Any], points: dict[int, float]) -> None:
    for env_steps, expected in points.items():
        assert factor(env_steps, **values) == pytest.approx(expected, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("name", ["linear", "exponential", "cosine"])
def test_a_coefficient_falls_to_a_part_of_itself_and_stays_there(name: str) -> None:
    # ML-Agents' epsilon and beta fell to absolute floors, so that a smaller epsilon than 0.1 rose, and over the budget,
    # so that training further bent what had been.
    hp = values_of(decay_space(), name=name, horizon=1000, final=0.25)
    factors = [schedule(hp, torch.tensor([[float(t)]])).item() for t in (0, 250, 500, 750, 1000, 10**6)]
    assert factors[0] == 1
    assert factors == sorted(factors, reverse=True)
    assert factors[-2:] == pytest.approx([0.25, 0.25])
    assert factors[2] == pytest.approx({"linear": 0.625, "exponential": 0.5, "cosine": 0.625}[name])


def test_points_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match=r"points must be points such as .*, x rising from 0"):
        decay_space().validate({"name": "piecewise", "points": [[5, 1.0], [5, 0.5]]})
    with pytest.raises(ValueError, match="points applies only when name is 'piecewise'"):
        decay_space().validate({"points": [[0, 1.0]]})


def test_every_member_has_its_own_schedule() -> None:
    space = schedule_space()
    values = [space.validate({"name": "exponential", "horizon": h, "final": f}) for h, f in ((100, 0.1), (200, 0.01))]
    hp = stack_hyperparameters(space, values, "cpu")
    factors = schedule(hp, torch.full((2, 1), 100.0))
    torch.testing.assert_close(factors, torch.tensor([[0.1], [0.1]]))


def test_the_names_of_another_optimizers_hyperparameters_are_refused() -> None:
    with pytest.raises(ValueError, match="momentum"):
        optimizer_space(lr=1e-3).validate({"name": "adam", "momentum": 0.9})
    with pytest.raises(ValueError, match="horizon"):
        schedule_space().validate({"name": "constant", "horizon": 5})


def test_the_defaults_of_an_algorithm_are_its_own() -> None:
    values = optimizer_space(lr=3e-4, eps=1e-7, name="rmsprop").validate({})
    assert values == {"name": "rmsprop", "lr": 3e-4, "alpha": 0.99, "momentum": 0.0, "eps": 1e-7}
