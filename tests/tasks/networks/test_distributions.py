"""Action distributions against torch.distributions, and samples against probabilities."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from rekindle.tasks.envs import Joined
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.networks.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    Hybrid,
    MultiCategorical,
    distribution_for,
    log_softmax,
    units_in,
)
from rekindle.tasks.rng import streams
from torch import Tensor
from torch import distributions as td

HYBRID = gym.spaces.Dict({"a": gym.spaces.Discrete(3), "b": gym.spaces.Box(-1, 1, (2,)), "c": gym.spaces.Discrete(2)})
EVERY: dict[str, Distribution] = {
    "Categorical": Categorical(5),
    "Categorical of one": Categorical(1),
    "MultiCategorical": MultiCategorical([3, 2, 4]),
    "Bernoulli": Bernoulli((4,)),
    "Bernoulli of a table": Bernoulli((2, 3)),
    "Gaussian": Gaussian((3,)),
    "Gaussian of a table": Gaussian((2, 2)),
    "Hybrid": Hybrid(Joined(HYBRID)),
    "Hybrid of choices": Hybrid(Joined(gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiBinary(2)]))),
}


def params_of(dist: Distribution, *shape: int, seed: int = 0) -> Tensor:
    """Outputs of a network that were drawn at random, with moderate standard deviations."""
    generator = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(*shape, dist.outputs, generator=generator)
    size = dist.log_std_shape[-1] if dist.log_std_shape else 0
    return torch.cat([outputs, 0.5 * torch.randn(*shape, size, generator=generator)], -1)


def noise_of(dist: Distribution, *shape: int, purpose: str = "noise") -> Tensor:
    size = int(np.prod(shape)) * dist.noise_size
    uniforms = streams.open_uniform(streams.key(1, purpose), np.arange(size)).reshape(*shape, dist.noise_size)
    return torch.from_numpy(dist.noise(uniforms).astype(np.float32))


def torch_log_prob_and_entropy(dist: Distribution, params: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
    """What torch.distributions says."""
    if isinstance(dist, Categorical):
        other = td.Categorical(logits=params)
        return other.log_prob(actions), other.entropy()
    if isinstance(dist, MultiCategorical):
        parts = [td.Categorical(logits=part) for part in params.split(dist.sizes, -1)]
        log_probs = [part.log_prob(action) for part, action in zip(parts, actions.unbind(-1), strict=True)]
        return torch.stack(log_probs).sum(0), torch.stack([part.entropy() for part in parts]).sum(0)
    if isinstance(dist, Hybrid):
        pairs = zip((dist.numbers, dist.choices), dist.split(params), dist.parts(actions), strict=True)
        parts = [torch_log_prob_and_entropy(of, *rest) for of, *rest in pairs if of.outputs]
        return sum(part[0] for part in parts), sum(part[1] for part in parts)  # type: ignore[return-value]
    flat = actions.flatten(-len(dist.action_shape)).float()
    if isinstance(dist, Bernoulli):
        independent = td.Independent(td.Bernoulli(logits=params), 1)
    else:
        mean, log_std = params.split(dist.outputs, -1)
        independent = td.Independent(td.Normal(mean, log_std.exp()), 1)
    return independent.log_prob(flat), independent.entropy()


def test_a_dict_of_numbers_alone_is_one_gaussian() -> None:
    space = Joined(gym.spaces.Dict({"a": gym.spaces.Box(-1, 1, (2,)), "b": gym.spaces.Box(0, 5, (1,))}))
    result = distribution_for(space, "here")
    assert isinstance(result, Gaussian)
    assert result.action_shape == (3,)


@pytest.mark.parametrize("name", EVERY)
def test_log_prob_and_entropy_are_those_of_torch(name: str) -> None:
    dist = EVERY[name]
    params = params_of(dist, 7, 11)
    actions = dist.sample(params, noise_of(dist, 7, 11))
    for mine, theirs in zip(
        dist.log_prob_and_entropy(params, actions), torch_log_prob_and_entropy(dist, params, actions), strict=True
    ):
        torch.testing.assert_close(mine, theirs.expand_as(mine), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EVERY)
def test_a_divergence_is_the_mean_difference_of_log_probabilities(name: str) -> None:
    dist, samples = EVERY[name], 4000
    old, new = (params_of(dist, 1, 1, seed=seed) for seed in (0, 1))
    many = old.expand(1, samples, -1)
    actions = dist.sample(many, noise_of(dist, 1, samples))
    before, after = (dist.log_prob_and_entropy(x.expand_as(many), actions)[0] for x in (old, new))
    difference = (before - after).double()
    error = 5 * difference.std().item() / samples**0.5 + 1e-5
    assert dist.kl(old, new).item() == pytest.approx(difference.mean().item(), abs=error)
    torch.testing.assert_close(dist.kl(old, old), torch.zeros(1, 1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_gradients_are_those_of_torch(name: str) -> None:
    dist = EVERY[name]
    params = params_of(dist, 4, 5).double().requires_grad_()
    actions = dist.sample(params.detach().float(), noise_of(dist, 4, 5))
    for which in (0, 1):
        mine = dist.log_prob_and_entropy(params, actions)[which].sum()
        theirs = torch_log_prob_and_entropy(dist, params, actions)[which].sum()
        if theirs.requires_grad and dist.outputs > 1:
            a, b = (torch.autograd.grad(x, params, allow_unused=True)[0] for x in (mine, theirs))
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", EVERY)
def test_actions_have_the_declared_shape_and_type(name: str) -> None:
    dist = EVERY[name]
    params = params_of(dist, 2, 3)
    for actions in (dist.sample(params, noise_of(dist, 2, 3)), dist.mode(params)):
        assert actions.shape == (2, 3, *dist.action_shape)
        assert actions.dtype == dist.action_type


@pytest.mark.parametrize("name", EVERY)
def test_no_action_is_more_probable_than_the_mode(name: str) -> None:
    dist = EVERY[name]
    params = params_of(dist, 200)
    best, _ = dist.log_prob_and_entropy(params, dist.mode(params))
    for purpose in ("a", "b", "c"):
        other, _ = dist.log_prob_and_entropy(params, dist.sample(params, noise_of(dist, 200, purpose=purpose)))
        assert (other <= best + 1e-6).all()


COUNT = 40_000


def samples(dist: Distribution, params: Tensor) -> Tensor:
    return dist.sample(params.expand(COUNT, -1), noise_of(dist, COUNT))


def test_choices_are_as_frequent_as_they_are_probable() -> None:
    params = torch.tensor([1.0, -1.0, 0.5, -3.0])
    counts = torch.bincount(samples(Categorical(4), params), minlength=4).double()
    expected = params.double().softmax(0) * COUNT
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 3 degrees of freedom, one in a thousand


def test_choices_of_several_are_independent() -> None:
    params = torch.tensor([1.0, 0.0, -1.0, 0.5])
    actions = samples(MultiCategorical([2, 2]), params)
    counts = torch.bincount(actions[:, 0] * 2 + actions[:, 1], minlength=4).double()
    expected = torch.outer(params[:2].double().softmax(0), params[2:].double().softmax(0)).flatten() * COUNT
    assert ((counts - expected) ** 2 / expected).sum() < 16.3


def test_bits_are_set_as_often_as_they_are_probable() -> None:
    params = torch.tensor([-2.0, 0.0, 1.0])
    frequencies = samples(Bernoulli((3,)), params).double().mean(0)
    torch.testing.assert_close(frequencies, params.double().sigmoid(), rtol=0, atol=0.01)


def test_gaussian_actions_have_their_mean_deviation_and_shape() -> None:
    mean, log_std = torch.tensor([1.0, -2.0]), torch.tensor([0.0, -1.0])
    z = (samples(Gaussian((2,)), torch.cat([mean, log_std])) - mean) / log_std.exp()
    assert (z.mean(0).abs() < 0.02).all()
    assert ((z.std(0) - 1).abs() < 0.02).all()
    assert ((z**4).mean(0) - 3).abs().max() < 0.2  # as heavy in the tails as a normal variable
    assert (z[:, 0] * z[:, 1]).mean().abs() < 0.02
    for quantile, bound in ((0.025, -1.96), (0.5, 0.0), (0.975, 1.96)):
        torch.testing.assert_close((z < bound).double().mean(0), torch.full((2,), quantile).double(), rtol=0, atol=0.01)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("size", [1, 3, 8, 17, 67])
def test_a_row_does_not_depend_on_its_place(name: str, size: int) -> None:
    """Alone, first, in the middle or last in an array whose length fits no vector register: the same bits."""
    dist = EVERY[name]
    params, noise = params_of(dist, 128), noise_of(dist, 128)
    actions = dist.sample(params, noise)
    whole = dist.log_prob_and_entropy(params, actions)
    for start in (0, 1, 61):
        part = slice(start, start + size)
        cut = params[part].clone()
        assert torch.equal(dist.sample(cut, noise[part].clone()), actions[part])
        for mine, other in zip(dist.log_prob_and_entropy(cut, actions[part].clone()), whole, strict=True):
            assert torch.equal(mine, other[part])


@pytest.mark.parametrize("name", EVERY)
def test_noise_does_not_depend_on_its_place(name: str) -> None:
    dist = EVERY[name]
    uniforms = streams.open_uniform(streams.key(1, "u"), np.arange(100 * dist.noise_size)).reshape(100, -1)
    whole = dist.noise(uniforms)
    for row in (0, 1, 50, 99):
        assert dist.noise(uniforms[row].copy()).tobytes() == whole[row].tobytes()
        assert dist.noise(uniforms[row : row + 3].copy()).tobytes() == whole[row : row + 3].tobytes()


@pytest.mark.parametrize("name", EVERY)
def test_noise_at_the_ends_of_the_interval_is_finite(name: str) -> None:
    dist = EVERY[name]
    for u in (2.0**-53, 1 - 2.0**-53):
        assert np.isfinite(dist.noise(np.full((1, dist.noise_size), u))).all()


def test_extreme_outputs_stay_finite() -> None:
    params = torch.tensor([[1e4, 0.0, -1e4]])
    log_prob, entropy = Categorical(3).log_prob_and_entropy(params, torch.tensor([2]))
    assert log_prob.item() == -2e4
    assert entropy.item() == 0
    log_prob, entropy = Bernoulli((3,)).log_prob_and_entropy(params, torch.tensor([[0, 1, 1]]))
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(entropy).all()


def test_log_softmax_is_that_of_torch() -> None:
    x = params_of(Categorical(6), 9)
    torch.testing.assert_close(log_softmax(x), x.log_softmax(-1))


@pytest.mark.parametrize(
    ("space", "distribution", "shape"),
    [
        (gym.spaces.Discrete(3), Categorical, ()),
        (gym.spaces.Discrete(3, start=-1), Categorical, ()),
        (gym.spaces.MultiDiscrete([2, 3]), MultiCategorical, (2,)),
        (gym.spaces.MultiDiscrete([[2, 3], [2, 2]]), MultiCategorical, (4,)),
        (gym.spaces.MultiBinary(3), Bernoulli, (3,)),
        (gym.spaces.MultiBinary([2, 3]), Bernoulli, (6,)),
        (gym.spaces.Box(-1, 1, (2,)), Gaussian, (2,)),
        (gym.spaces.Box(-1, 1, (2, 3), dtype=np.float64), Gaussian, (2, 3)),
        (gym.spaces.Box(0, 255, (2,), dtype=np.uint8), Gaussian, (2,)),
    ],
)
def test_every_action_space_has_its_distribution(space: gym.Space, distribution: type, shape: tuple[int, ...]) -> None:
    dist = distribution_for(space, "PPO")
    assert isinstance(dist, distribution)
    assert dist.action_shape == shape


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Box(0, 2**24 + 1, (2,), dtype=np.int32),
        gym.spaces.Box(-np.inf, np.inf, (2,), dtype=np.int64),
        gym.spaces.Box(-1, 1, ()),
        gym.spaces.Box(-1, 1, (0,)),
        gym.spaces.Dict(a=gym.spaces.Discrete(2)),
        gym.spaces.Tuple([gym.spaces.Discrete(2)]),
        gym.spaces.Text(3),
    ],
)
def test_an_action_space_without_distribution_is_refused_by_name_and_place(space: gym.Space) -> None:
    with pytest.raises(UnsupportedSpace, match=r"(?s)PPO acts in .* but got .*ActionWrapper") as caught:
        distribution_for(space, "PPO")
    assert str(space) in str(caught.value)


@pytest.mark.parametrize("name", ["Hybrid", "Hybrid of choices"])
def test_imitating_numbers_and_choices_has_both_losses(name: str) -> None:
    dist = EVERY[name]
    assert isinstance(dist, Hybrid)
    params = params_of(dist, 7)
    actions = dist.sample(params, noise_of(dist, 7))
    (_, logits), (taken, chosen) = dist.split(params), dist.parts(actions)
    squares = (params[:, : dist.size] - taken).square().sum(-1) / max(dist.size, 1)
    of_choices = sum(
        td.Categorical(logits=part).log_prob(choice)
        for part, choice in zip(logits.split(dist.choices.sizes, -1), chosen.unbind(-1), strict=True)
    )
    torch.testing.assert_close(dist.imitation_loss(params, actions), squares - of_choices)


def test_units_of_a_box_are_its_bounds_where_these_are_far_from_one() -> None:
    space = spaces.Box(np.array([0, -2, -np.inf, 3], np.float32), np.array([1000, 2, np.inf, 5], np.float32))
    dist, plain = distribution_for(space, "here"), Gaussian((4,))
    params = torch.tensor([[[0.5, 0.5, 0.5, 0.5, 0.0, 0.1, 0.2, 0.3]]])
    noise = torch.tensor([[[1.0, -1.0, 0.0, 2.0]]])
    actions, numbers = dist.sample(params, noise), plain.sample(params, noise)
    torch.testing.assert_close(actions, numbers * torch.tensor([500.0, 1, 1, 1]) + torch.tensor([500.0, 0, 0, 4]))
    torch.testing.assert_close(dist.mode(params)[0, 0], torch.tensor([750.0, 0.5, 0.5, 4.5]))
    for result, expected in zip(
        dist.log_prob_and_entropy(params, actions), plain.log_prob_and_entropy(params, numbers), strict=True
    ):
        torch.testing.assert_close(result, expected)
    torch.testing.assert_close(dist.imitation_loss(params, dist.mode(params)), torch.zeros(1, 1))


@pytest.mark.parametrize("bounds", [(-1, 1), (-2, 2), (0, 1), (-0.4, 0.4), (-1, 4), (-np.inf, 3)])
def test_a_box_with_bounds_near_one_keeps_its_units(bounds: tuple[float, float]) -> None:
    assert units_in(spaces.Box(*bounds, (2,)), "here") is None


def test_hybrid_actions_have_units_of_their_numbers() -> None:
    space = Joined(spaces.Dict(dose=spaces.Box(0, 100, (1,)), mode=spaces.Discrete(2)))
    dist = distribution_for(space, "here")
    params = torch.tensor([[[0.25, 3.0, 1.0, 0.0]]])  # mean, two logits, log standard deviation
    assert dist.mode(params)[0, 0].tolist() == [62.5, 0]
    assert dist.sample(params, torch.zeros(1, 1, 3))[0, 0].tolist() == [62.5, 0]
