"""Encoders against torch.nn, every member against itself alone, and errors for unsuitable observations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rekindle import A2C, DQN, PPO, PPO2, PQN, SAC, SVPG
from rekindle.tasks.envs import EnvSpec
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.networks.encoders import (
    ENCODERS,
    Encoder,
    Flat,
    ImpalaCNN,
    NatureCNN,
    SimpleCNN,
    SmallCNN,
    Unlearned,
    encoder_for,
    fitting,
)
from rekindle.tasks.networks.mlp import Parameters
from rekindle.tasks.runtime.threads import one_thread
from rekindle.tasks.task import Task
from support_path import SUPPORT
from torch import Tensor, nn

TINY, PICTURES = "own_envs:ImageWalk-v0", "own_envs:PictureWalk-v0"  # of 5 x 6 and 36 x 36 pixels
FILTERS = [name for name, made in ENCODERS.items() if made is not Flat]


@pytest.fixture(autouse=True)
def as_in_training(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On two threads, torch adds up the gradients of convolutions in any order."""
    monkeypatch.syspath_prepend(SUPPORT)
    with one_thread():
        yield


def made(name: str, shape: tuple[int, ...], largest: int = 255) -> Encoder:
    return encoder_for(SimpleNamespace(encoder=name, largest_pixel=largest), "features", shape)


def build(encoder: Encoder, seeds: list[int]) -> Parameters:
    """Initialized parameters, with biases that are not zero."""
    parameters = Parameters(encoder.shapes, len(seeds))
    for member, seed in enumerate(seeds):
        encoder.initialize(parameters, member, seed)
        for name, view in parameters.views.items():
            if name.endswith("bias"):
                view[member] = 0.1 * torch.randn(view.shape[1:], generator=torch.Generator().manual_seed(seed))
    return parameters


@lru_cache
def built(name: str, shape: tuple[int, ...], seeds: tuple[int, ...]) -> tuple[Encoder, Parameters]:
    encoder = made(name, shape)
    return encoder, build(encoder, list(seeds))


def images(members: int, batch: int, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (members, batch, *shape), dtype=torch.uint8, generator=generator)


def in_a_row(channels: int, *kernels: tuple[int, int, int]) -> nn.Module:
    layers: list[nn.Module] = []
    for outputs, kernel, stride in kernels:
        layers += [nn.Conv2d(channels, outputs, kernel, stride), nn.ReLU()]
        channels = outputs
    return nn.Sequential(*layers, nn.Flatten())


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        convolutions = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2)]
        self.branch = nn.Sequential(nn.ReLU(), convolutions[0], nn.ReLU(), convolutions[1])

    def forward(self, x: Tensor) -> Any:
        return x + self.branch(x)


def impala(channels: int) -> nn.Module:
    layers: list[nn.Module] = []
    for outputs in (16, 32, 32):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
        layers += [Residual(outputs), Residual(outputs)]
        channels = outputs
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten())


MODULES: dict[str, Callable[[int], nn.Module]] = {
    "nature": lambda channels: in_a_row(channels, (32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "simple": lambda channels: in_a_row(channels, (16, 8, 4), (32, 4, 2)),
    "small": lambda channels: in_a_row(channels, (32, 3, 1), (64, 3, 1)),
    "impala": impala,
}


@pytest.mark.parametrize("shape", [(84, 84, 4), (36, 40, 1), (37, 36, 3)])
@pytest.mark.parametrize("name", FILTERS)
def test_the_filters_are_those_of_torch(name: str, shape: tuple[int, ...]) -> None:
    encoder = made(name, shape)
    parameters = build(encoder, [1, 2])
    x = images(2, 3, shape)
    out = encoder(parameters.views, x)
    assert out.shape == (2, 3, encoder.features)
    for member in range(2):
        module = MODULES[name](shape[2])
        theirs = [part for part in module.modules() if isinstance(part, nn.Conv2d)]
        tensors = [view[member] for view in parameters.views.values()]
        assert len(theirs) == len(tensors) // 2
        for conv, weight, bias in zip(theirs, tensors[::2], tensors[1::2], strict=True):
            conv.weight.data, conv.bias.data = weight.clone(), bias.clone()  # type: ignore[union-attr]
        torch.testing.assert_close(
            out[member], module(x[member].permute(0, 3, 1, 2).float() / 255), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("nature", (36, 36, 2)),
        ("simple", (36, 36, 2)),
        ("impala", (36, 36, 2)),
        ("impala", (5, 6, 3)),
        ("impala", (1, 3, 1)),
        ("small", (5, 5, 1)),
        ("small", (7, 7, 3)),
        ("simple", (20, 23, 3)),
    ],
)
def test_an_image_network_equals_the_one_alone_bit_for_bit(name: str, shape: tuple[int, ...], batch: int) -> None:
    encoder, together = built(name, shape, (1, 2, 3))
    x = images(3, batch, shape)
    outs = encoder(together.leaves, x)
    gradients = together.gradient(outs.square().mean((1, 2)))
    assert gradients.count_nonzero() > 0
    for member in range(3):
        _, alone = built(name, shape, (member + 1,))
        for _ in range(2):  # and the same again
            out = encoder(alone.leaves, x[member : member + 1].clone())
            assert torch.equal(out[0], outs[member])
            assert torch.equal(alone.gradient(out.square().mean((1, 2)))[0], gradients[member])


def test_flat_is_every_byte_over_255_and_learns_nothing() -> None:
    encoder, x = made("flat", (2, 3, 4)), images(2, 5, (2, 3, 4))
    assert encoder.features == 24
    assert not encoder.shapes
    assert torch.equal(encoder({}, x), x.reshape(2, 5, 24) / 255)


def test_vectors_are_left_as_they_are() -> None:
    x = torch.randn(2, 3, 7)
    encoder = made("nature", (7,))
    assert isinstance(encoder, Unlearned)
    assert encoder.features == 7
    assert encoder({}, x) is x


@pytest.mark.parametrize("name", ENCODERS)
def test_the_largest_pixel_is_one_for_the_network(name: str) -> None:
    shape = (40, 40, 3)
    plain, scaling = made(name, shape), made(name, shape, 51)
    parameters, codes = build(plain, [1, 2]), images(2, 3, shape) % 52
    torch.testing.assert_close(scaling(parameters.views, codes), plain(parameters.views, codes * 5))


@pytest.mark.parametrize("task", [PPO, DQN])
def test_the_largest_pixel_of_vectors_is_refused(task: type[Task]) -> None:
    with pytest.raises(UnsupportedSpace, match=r"largest_pixel scales images, but got 10 for vectors of 4 numbers; "):
        task("CartPole-v1", seed=0).init(model={"largest_pixel": 10})
    assert "model.largest_pixel" in task.learner.without_effect(EnvSpec.of("CartPole-v1"), {})
    assert "model.largest_pixel" not in task.learner.without_effect(EnvSpec.of(TINY), {})


@pytest.mark.parametrize("task", [PPO, PQN, DQN])
def test_images_are_not_normalized_and_no_search_tries_it(task: type[Task]) -> None:
    vectors, images = (EnvSpec.of(name) for name in ("CartPole-v1", TINY))
    assert "normalize_obs" in task.learner.without_effect(images, {})
    assert "normalize_obs" not in task.learner.without_effect(vectors, {})
    assert not task.learner.open_space(images, {}).flat()["normalize_obs"].search


def test_filters_begin_orthogonal() -> None:
    cnn = NatureCNN("features", (84, 84, 4))
    parameters = Parameters(cnn.shapes, 1)
    cnn.initialize(parameters, 0, seed=1)
    for layer in range(3):
        flat = parameters.views[f"features.conv{layer}.weight"][0].flatten(1)
        torch.testing.assert_close(flat @ flat.T, 2 * torch.eye(len(flat)), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ENCODERS)
def test_features_begin_neither_large_nor_small(name: str) -> None:
    encoder = made(name, (40, 40, 3))
    parameters = Parameters(encoder.shapes, 1)
    encoder.initialize(parameters, 0, seed=1)
    size = encoder(parameters.views, images(1, 8, (40, 40, 3))).square().mean().sqrt()
    assert 0.3 < float(size) < 1.5


@pytest.mark.parametrize("shape", [(35, 84, 3), (84, 35, 3), (8, 8, 1), (1, 1, 1)])
def test_images_that_are_too_small_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="at least 36 x 36 pixels, but got"):
        NatureCNN("features", shape)


@pytest.mark.parametrize(
    ("encoder", "smallest", "features"),
    [(NatureCNN, 36, 64), (SimpleCNN, 20, 32), (SmallCNN, 5, 64), (ImpalaCNN, 1, 32)],
)
def test_the_smallest_image_has_one_place_left(encoder: Callable[..., Any], smallest: int, features: int) -> None:
    assert encoder("features", (smallest, smallest, 1)).features == features
    with pytest.raises(ValueError, match=rf"needs images of at least {smallest} x {smallest} pixels"):
        encoder("features", (smallest, smallest - 1, 1))


def test_the_default_says_nothing() -> None:
    default, said = PPO(PICTURES).init(), PPO(PICTURES).init(model={"encoder": "nature"})
    other = PPO(PICTURES).init(model={"encoder": "impala"})
    assert default.uid == said.uid != other.uid
    assert default.hyperparameters == said.hyperparameters
    assert default.identity.structure != other.identity.structure  # type: ignore[union-attr]
    assert "model.encoder" not in PPO(PICTURES).get_space().flat()


@pytest.mark.parametrize("task", [PPO, PPO2, A2C, SVPG, DQN])
def test_an_encoder_of_what_is_no_image_is_refused(task: type[Task]) -> None:
    message = "on CartPole-v1: model.encoder sees images, but got 'flat' for vectors of 4 numbers; leave model.encoder"
    with pytest.raises(UnsupportedSpace, match=message):
        task("CartPole-v1").init(model={"encoder": "flat"})


@pytest.mark.parametrize("task", [PPO, SVPG, DQN])
def test_an_encoder_that_needs_larger_images_is_refused_and_others_are_named(task: type[Task]) -> None:
    with pytest.raises(
        UnsupportedSpace,
        match=rf"on {TINY}: model.encoder 'simple' sees images of at least .* pixels, "
        "but got 5 x 6; set model.encoder to impala or small or flat, or resize them",
    ):
        task(TINY).init(model={"encoder": "simple"})


@pytest.mark.parametrize("task", [PPO, SAC, DQN])
def test_the_default_encoder_fits_small_images(task: type[Task]) -> None:
    default, small = task(TINY).init(), task(TINY).init(model={"encoder": "small"})
    assert [x.shape for x in default.parameters()] == [x.shape for x in small.parameters()]
    assert [fitting("nature", (size, 40, 3)) for size in (36, 35, 5, 4, 1)] == ["nature", *["small"] * 2, *["flat"] * 2]


def test_an_unknown_encoder_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"model.encoder must be .*impala.*, not 'resnet'"):
        PPO(PICTURES).init(model={"encoder": "resnet"})


@pytest.mark.parametrize("task", [PPO, DQN])
def test_images_are_not_normalized(task: type[Task]) -> None:
    small: dict[str, Any] = {"num_envs": 2, "epoch_steps": 32, "model": {"width": 16, "encoder": "small"}}
    small |= {"num_steps": 16, "num_minibatches": 2} if task is PPO else {"learning_starts": 16, "batch_size": 8}
    made = task(TINY).init(**small, normalize_obs=True)
    made.fit(1)
    assert made.ref is not None
    assert made.ref.learner.obs_normalizer is None  # type: ignore[attr-defined]


SIGNALS = {f"{name}.{key}": value for name in ("icm", "rnd") for key, value in (("use", True), ("width", 16))}


def test_signals_see_by_the_encoder_of_the_policy() -> None:
    small: dict[str, Any] = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "epoch_steps": 16}
    task = PPO(TINY).init(**small, **SIGNALS, **{"model.encoder": "small", "model.width": 16})
    task.fit(1)
    assert "icm_loss" in task.metrics
    assert "rnd_loss" in task.metrics
    learner = task.ref.learner  # type: ignore[union-attr]
    curiosity = learner.guidance.signals[0]  # type: ignore[attr-defined]
    assert isinstance(curiosity.encoder, SmallCNN)
    assert isinstance(curiosity.critic.encoder, SmallCNN)


@pytest.mark.parametrize(
    ("name", "epochs"), [("flat", 2), *(pytest.param(name, 6, marks=pytest.mark.slow) for name in ("impala", "small"))]
)
def test_it_learns_what_a_bright_square_says(name: str, epochs: int) -> None:
    few: dict[str, Any] = {"update_epochs": 4, "num_minibatches": 4, "target_kl": None}  # steps of so high a rate
    task = PPO("own_envs:Square-v0", seed=1).init(
        num_envs=8, num_steps=32, epoch_steps=512, optimizer={"lr": 2e-3}, model={"encoder": name, "width": 32}, **few
    )
    assert abs(task.evaluate(10)) < 8
    task.fit(epochs)
    assert task.evaluate(10) > 12
