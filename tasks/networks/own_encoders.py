"""Feature extractors of your own, for P members.

Any `torch.nn.Module` from observations to features will do:

    class Attention(nn.Module):  # in my_package/nets.py
        def __init__(self, obs_shape, heads=2): ...
        def forward(self, obs): ...  # (B, *obs_shape) -> (B, features)

    PPO(env).init(model={"encoder": "my_package.nets:Attention(heads=4)"})

A package may offer a class under a shorter name, as an entry point of the group `rekindle.encoders`. Arguments are JSON
values; `obs_shape` is passed to constructors that take it. Vectors arrive as (B, D), as the policy sees them; images as
(B, C, H, W), numbers from 0 to 1. Name and arguments are part of the identity; the code of the class is not.

The initial weights are those that the constructor draws from torch's generator, seeded from the member's own stream.
Members are computed one after another by `torch.func.functional_call`: with `vmap`, a layer of 17 units with silu, and
any convolution, rounded differently for one member than for two (see Exactness in mlp.py). A module is in evaluation
mode, so it has no dropout, and its buffers are constants.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from ...plugins import PluginError, Registry
from ...spaces.choices import read_call
from ..errors import class_and_text, text_of
from ..rng import streams
from .mlp import Parameters

GROUP = "rekindle.encoders"


class BadEncoder(ValueError):
    """This feature extractor cannot be used."""


class OwnEncoder:
    """A user's module for P members; an `Encoder`."""

    def __init__(self, prefix: str, text: str, obs_shape: tuple[int, ...], largest: int):
        """Build the module once, to learn its shapes.

        Args:
            prefix: prefix of the parameters' names.
            text: the class with its arguments.
            obs_shape: (D,) for vectors or (H, W, C) for images.
            largest: byte of images that is 1 for the module.

        Raises:
            BadEncoder: the module cannot be built, or does not return features.
        """
        self.prefix, self.text, self.image, self.largest = prefix, text, len(obs_shape) == 3, largest
        self.obs_shape = (obs_shape[2], *obs_shape[:2]) if self.image else obs_shape
        self.make = constructor(text, self.obs_shape)
        self.module = self._seeded(0)
        self.shapes = {f"{prefix}.{name}": tuple(x.shape) for name, x in self.module.named_parameters()}
        self.features = self._probe()

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Set one member's initial weights, as its constructor draws them."""
        key = streams.key(seed, "init", self.prefix)
        for name, weights in self._seeded(int(key >> np.uint64(1))).named_parameters():
            parameters.views[f"{self.prefix}.{name}"][member] = weights

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Map (P, B, ...) to (P, B, features)."""
        names = [name.removeprefix(f"{self.prefix}.") for name in self.shapes]
        self.module.to(obs.device)
        features = []
        for member, batch in enumerate(obs):
            weights = {name: tensors[f"{self.prefix}.{name}"][member] for name in names}
            # A copy is aligned like any new array, whatever the member's place in the batch.
            x = batch.permute(0, 3, 1, 2).float() / self.largest if self.image else batch.clone()
            features.append(functional_call(self.module, weights, (x,)))
        return torch.stack(features)

    def _seeded(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # the CPU's generator; torch.manual_seed would seed CUDA's, too
            return self.make().eval().requires_grad_(False)

    @torch.no_grad()
    def _probe(self) -> int:
        """Check the module, and return its number of features."""
        if strange := [name for name, x in self.module.named_parameters() if x.dtype != torch.float32]:
            raise BadEncoder(f"model.encoder {self.text}: parameters are float32, but {strange[0]} is not")
        before = {name: x.clone() for name, x in self.module.named_buffers()}
        try:
            features = self.module(torch.zeros(2, *self.obs_shape))
        except Exception as error:
            raise BadEncoder(
                f"model.encoder {self.text}: forward must take observations of shape (B, *{self.obs_shape}), but: "
                f"{text_of(error)}"
            ) from error
        if not isinstance(features, Tensor) or features.ndim != 2 or len(features) != 2 or not features.shape[1]:
            form = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise BadEncoder(
                f"model.encoder {self.text}: forward must return features of shape (B, F), but of B = 2 observations "
                f"it returned {form}"
            )
        others = dict(self._seeded(1).named_buffers())
        for name, x in self.module.named_buffers():
            if not (torch.equal(x, before[name]) and torch.equal(x, others[name])):
                raise BadEncoder(
                    f"model.encoder {self.text}: buffers must be constants, but {name} changes; make it a parameter"
                )
        return features.shape[1]


def constructor(text: str, obs_shape: tuple[int, ...]) -> Callable[[], nn.Module]:
    """Return a function that builds the module named by a text.

    Raises:
        BadEncoder: there is no such class, or it does not take these arguments.
    """
    call = read_call(text)
    if call is None:
        raise BadEncoder(f"model.encoder must be package.module:Class(argument=1), but got {text!r}")
    encoder_class = _imported(call.name)
    arguments: dict[str, Any] = dict(call.arguments)
    try:
        if "obs_shape" in inspect.signature(encoder_class).parameters:
            arguments.setdefault("obs_shape", obs_shape)
    except (TypeError, ValueError):  # a class without a signature
        pass

    def make() -> nn.Module:
        try:
            module = encoder_class(**arguments)
        except Exception as error:
            cure = "; a constructor has the shape of observations as obs_shape" if isinstance(error, TypeError) else ""
            raise BadEncoder(f"model.encoder {text} cannot be made: {class_and_text(error)}{cure}") from error
        if not isinstance(module, nn.Module):
            raise BadEncoder(f"model.encoder {text} must be a torch.nn.Module, but is a {type(module).__name__}")
        return module

    return make


@lru_cache(maxsize=64)
def _imported(name: str) -> Callable[..., Any]:
    """Return the class "package.module:Class", or the entry point, with this name."""
    try:
        if ":" not in name:
            offered: Callable[..., Any] = OF_ENCODERS.load(name)
            return offered
        module, _, attribute = name.partition(":")
        target: Any = importlib.import_module(module)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, PluginError) as error:
        raise BadEncoder(
            f"model.encoder {name} cannot be imported: {error}; install its package, or add its folder to PYTHONPATH"
        ) from error
    if problem := _problem(name, target, name):
        raise BadEncoder(problem)
    return target


def _problem(name: str, offered: Any, origin: str) -> str:
    good = issubclass(offered, nn.Module) if isinstance(offered, type) else callable(offered)
    return "" if good else f"model.encoder {origin} must be a class derived from torch.nn.Module, but is {offered!r}"


OF_ENCODERS = Registry("encoder", GROUP, {}, _problem)
