"""Encoders of observations: the identity for vectors, networks for images.

`model.encoder` selects the network:

    model.encoder   ML-Agents' vis_encode_type   images from   network
    nature          nature_cnn                   36 x 36       three convolutions, of Mnih et al. (2015)
    simple          simple                       20 x 20       two convolutions
    impala          resnet                       1 x 1         the residual network of Espeholt et al. (2018)
    small           match3                       5 x 5         two convolutions of stride 1, for small grids
                                                               (also what nature stands for below 36 x 36)
    flat            fully_connected              1 x 1         none: every byte is one number (nature below 5 x 5)
    module:Class                                               a module of your own, see `own_encoders`

Inputs are bytes divided by `model.largest_pixel`. In a Dict or Tuple with images, each image has its own encoder, and
all other parts are numbers next to the features. The perceptrons behind the encoder (`model.width`, `model.layers`)
replace the papers' dense layers.

Notation: P members, B batch, H x W pixels of C channels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from ...spaces import Dimension, entry, integer
from ..envs import EnvSpec, spaces_of
from ..envs.base.images import PIXEL, MixedShape
from ..envs.base.masks import mask_in
from ..envs.base.observations import Observations
from ..errors import UnsupportedSpace
from ..rng import streams
from .mlp import MLP, Network, Parameters, orthogonal
from .own_encoders import GROUP, BadEncoder, OwnEncoder

DEFAULT = "nature"
Shapes = dict[str, tuple[int, ...]]


class Encoder(Network, Protocol):
    """The first network, from observations to features.

    Attributes:
        features: numbers per observation.
    """

    features: int

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Map (P, B, ...) to (P, B, features)."""


class Unlearned:
    """The identity."""

    def __init__(self, features: int):
        self.shapes: Shapes = {}
        self.features = features

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        pass

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        return obs


class Flat(Unlearned):
    """All bytes of an image in one row."""

    smallest = 1

    def __init__(self, prefix: str, image_shape: tuple[int, ...], largest: int = PIXEL):
        super().__init__(math.prod(image_shape))
        self.largest = largest

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Map (P, B, H, W, C) bytes to (P, B, features)."""
        return obs.flatten(2).float() / self.largest


class ImageNetwork:
    """A convolutional network.

    Members are convolved one after another, since a grouped convolution rounds differently (see Exactness in
    networks/mlp.py).
    """

    smallest: ClassVar[int]  # smallest height and width in pixels

    def __init__(self, prefix: str, image_shape: tuple[int, ...], largest: int = PIXEL):
        """Declare the filters for images (H, W, C) of bytes.

        The network sees the `largest` one as 1.
        """
        height, width, channels = image_shape
        if min(height, width) < self.smallest:
            least = f"{self.smallest} x {self.smallest}"
            raise ValueError(
                f"{type(self).__name__} needs images of at least {least} pixels, but got {image_shape}; resize them"
            )
        self.prefix, self.largest = prefix, largest
        self.shapes: Shapes = {}
        self.gains: dict[str, float] = {}
        self.features = self.build(height, width, channels)

    def build(self, height: int, width: int, channels: int) -> int:
        """Declare the filters with `convolution`, and return the number of features."""
        raise NotImplementedError

    def convolution(self, name: str, inputs: int, outputs: int, kernel: int, gain: float = math.sqrt(2)) -> None:
        """Declare the filters of a layer, and their initial gain."""
        self.shapes[f"{self.prefix}.{name}.weight"] = (outputs, inputs, kernel, kernel)
        self.shapes[f"{self.prefix}.{name}.bias"] = (outputs,)
        self.gains[f"{self.prefix}.{name}.weight"] = gain

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Draw orthogonal filters from the member's own stream; biases are 0."""
        for name, gain in self.gains.items():
            shape = self.shapes[name]
            matrix = orthogonal(streams.key(seed, "init", name), shape[0], math.prod(shape[1:]), gain)
            parameters.views[name][member] = matrix.view(shape)

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Map (P, B, H, W, C) bytes to (P, B, features)."""
        outputs = []
        for member, batch in enumerate(obs):
            x = batch.permute(0, 3, 1, 2).float() / self.largest
            outputs.append(self.forward({name: tensors[name][member] for name in self.shapes}, x).flatten(1))
        return torch.stack(outputs)

    def forward(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Map one member's (B, C, H, W) to (B, channels, rows, columns)."""
        raise NotImplementedError

    def convolve(self, tensors: Mapping[str, Tensor], name: str, x: Tensor, stride: int = 1, pad: int = 0) -> Tensor:
        """Apply the layer with this name."""
        weight, bias = (tensors[f"{self.prefix}.{name}.{part}"] for part in ("weight", "bias"))
        return functional.conv2d(x, weight, bias, stride, pad)


class Convolutions(ImageNetwork):
    """A stack of convolutions without padding, each followed by a relu."""

    kernels: ClassVar[tuple[tuple[int, int, int], ...]]  # channels, kernel, stride

    def __init_subclass__(cls) -> None:
        cls.smallest = 1
        for _, kernel, stride in reversed(cls.kernels):
            cls.smallest = (cls.smallest - 1) * stride + kernel

    def build(self, height: int, width: int, channels: int) -> int:
        for layer, (outputs, kernel, stride) in enumerate(self.kernels):
            self.convolution(f"conv{layer}", channels, outputs, kernel)
            channels, height, width = outputs, (height - kernel) // stride + 1, (width - kernel) // stride + 1
        return channels * height * width

    def forward(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        for layer, (_, _, stride) in enumerate(self.kernels):
            x = torch.relu(self.convolve(tensors, f"conv{layer}", x, stride))
        return x


class NatureCNN(Convolutions):
    """The convolutions of Mnih et al. (2015), doi:10.1038/nature14236."""

    kernels = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


class SimpleCNN(Convolutions):
    """Two convolutions, those of Mnih et al. (2013), arXiv:1312.5602."""

    kernels = ((16, 8, 4), (32, 4, 2))


class SmallCNN(Convolutions):
    """Two convolutions of stride 1, for small grids.

    Each sees a cell and its neighbors. ML-Agents' have 35 and 144 channels.
    """

    kernels = ((32, 3, 1), (64, 3, 1))


class ImpalaCNN(ImageNetwork):
    """The residual network of Espeholt et al. (2018), arXiv:1802.01561, figure 3 (right).

    It has three blocks: each is a convolution, a max-pooling over 3 x 3 pixels with stride 2, and two residual blocks.
    Every convolution is 3 x 3 with padding, so images of any size have features. The initial weights of the six
    residual blocks are scaled so that together they add as much as one block of full size; otherwise features would
    grow with the depth of the network.
    """

    smallest = 1
    channels = (16, 32, 32)
    residuals = 2

    def build(self, height: int, width: int, channels: int) -> int:
        branch = math.sqrt(2 / (len(self.channels) * self.residuals))
        for block, outputs in enumerate(self.channels):
            self.convolution(f"block{block}.conv", channels, outputs, 3, gain=1.0)  # no relu precedes it
            for residual in range(self.residuals):
                self.convolution(f"block{block}.residual{residual}.conv0", outputs, outputs, 3)
                self.convolution(f"block{block}.residual{residual}.conv1", outputs, outputs, 3, gain=branch)
            channels, height, width = outputs, (height + 1) // 2, (width + 1) // 2
        return channels * height * width

    def forward(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        for block in range(len(self.channels)):
            x = functional.max_pool2d(self.convolve(tensors, f"block{block}.conv", x, pad=1), 3, stride=2, padding=1)
            for residual in range(self.residuals):
                y = x
                for conv in ("conv0", "conv1"):
                    y = self.convolve(tensors, f"block{block}.residual{residual}.{conv}", torch.relu(y), pad=1)
                x = x + y
        return torch.relu(x)


ENCODERS: dict[str, type[ImageNetwork] | type[Flat]] = {
    "nature": NatureCNN,
    "simple": SimpleCNN,
    "impala": ImpalaCNN,
    "small": SmallCNN,
    "flat": Flat,
}


def encoder_space() -> dict[str, Dimension]:
    """Return the hyperparameters of the encoder in `model`.

    They were added later, so their defaults are silent and keep earlier uids.
    """
    rest: dict[str, Any] = {"structural": True, "search": False, "silent": True}
    help = "number of an image that the encoder sees as 1: of the codes of a grid world, the largest one"
    return {
        "encoder": entry(*ENCODERS, group=GROUP, default=DEFAULT, **rest),
        "largest_pixel": integer(1, PIXEL, default=PIXEL, help=help, **rest),
    }


class Mixed:
    """Numbers, and features of each image from its own encoder."""

    def __init__(self, model: SimpleNamespace, prefix: str, shape: MixedShape):
        self.numbers, self.bytes, self.images = shape.numbers, shape[-1], shape.images
        self.encoders = [encoder_for(model, f"{prefix}.image{k}", form) for k, (form, _) in enumerate(shape.images)]
        self.shapes: Shapes = {name: form for encoder in self.encoders for name, form in encoder.shapes.items()}
        self.features = self.numbers + sum(encoder.features for encoder in self.encoders)

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Draw the weights of each encoder from the member's own stream."""
        for encoder in self.encoders:
            encoder.initialize(parameters, member, seed)

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Map rows of bytes (P, B, 1, D) to (P, B, features).

        Exported programs pass the numbers themselves in front of the images' bytes, since ONNX cannot reinterpret bytes
        as numbers.
        """
        rows = obs.squeeze(2)
        if not self.numbers:
            rows, shift, numbers = rows.to(torch.uint8), 0, rows.new_zeros(*rows.shape[:-1], 0, dtype=torch.float32)
        elif rows.shape[-1] == self.bytes:
            rows, shift = rows.to(torch.uint8), 0  # they are float32 next to a recurrent state
            numbers = rows[..., : 4 * self.numbers].clone(memory_format=torch.contiguous_format).view(torch.float32)
        else:
            numbers, shift = rows[..., : self.numbers], 3 * self.numbers  # each in one column, not in four
        features = [
            encoder(tensors, rows[..., columns.start - shift : columns.stop - shift].unflatten(2, form))
            for encoder, (form, columns) in zip(self.encoders, self.images, strict=True)
        ]
        return torch.cat([numbers, *features], -1)


class Unmasked:
    """An encoder of vectors without their action mask."""

    def __init__(self, encoder: Encoder, mask: slice):
        self.encoder, self.mask = encoder, mask
        self.shapes, self.features = encoder.shapes, encoder.features

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Draw the encoder's weights from the member's own stream."""
        self.encoder.initialize(parameters, member, seed)

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Map (P, B, D) to (P, B, features)."""
        return self.encoder(tensors, torch.cat([obs[..., : self.mask.start], obs[..., self.mask.stop :]], -1))


class SharedLayers:
    """An encoder followed by hidden layers that actor and critic share."""

    def __init__(self, prefix: str, encoder: Encoder, sizes: Sequence[int], activation: str):
        self.encoder, self.features = encoder, sizes[-1]
        self.layers = MLP(f"{prefix}.shared", [encoder.features, *sizes], activation, last_gain=math.sqrt(2))
        self.shapes = {**encoder.shapes, **self.layers.shapes}

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        """Draw the encoder's and the layers' weights from the member's own stream."""
        self.encoder.initialize(parameters, member, seed)
        self.layers.initialize(parameters, member, seed)

    def __call__(self, tensors: Mapping[str, Tensor], obs: Tensor) -> Tensor:
        """Map (P, B, ...) to (P, B, features)."""
        layers = self.layers.layers(tensors)
        return self.layers.activation(self.layers(layers, self.encoder(tensors, obs)))


def needs_encoder(model: SimpleNamespace, obs_shape: tuple[int, ...]) -> bool:
    """Return whether an encoder precedes the networks."""
    return mask_in(obs_shape) is not None or len(obs_shape) > 1 or model.encoder not in ENCODERS


def encoder_for(model: SimpleNamespace, prefix: str, obs_shape: tuple[int, ...]) -> Encoder:
    """Return the encoder for observations (D,), (H, W, C) or mixed ones.

    Args:
        model: values of `model`.
        prefix: prefix of the parameters' names.
        obs_shape: shape of one observation.
    """
    if (mask := mask_in(obs_shape)) is not None:
        return Unmasked(encoder_for(model, prefix, (obs_shape[0] - (mask.stop - mask.start),)), mask)
    if isinstance(obs_shape, MixedShape):
        return Mixed(model, prefix, obs_shape)
    if model.encoder not in ENCODERS:
        return OwnEncoder(prefix, model.encoder, obs_shape, model.largest_pixel)
    if len(obs_shape) == 1:
        return Unlearned(obs_shape[0])
    return ENCODERS[fitting(model.encoder, obs_shape)](prefix, obs_shape, model.largest_pixel)


def fitting(name: str, image_shape: tuple[int, ...]) -> str:
    """Return the encoder that a name stands for, by the images' size.

    The default stands for one that fits, so that small images need no setting.
    """
    size = min(image_shape[:2])
    if name != DEFAULT or size >= ENCODERS[name].smallest:
        return name
    return "small" if size >= ENCODERS["small"].smallest else "flat"


def unused_by_networks(env: EnvSpec, fixed: Mapping[str, Any]) -> list[str]:
    """Return hyperparameters of networks and their inputs without effect."""
    others = (fixed.get(f"model.{name}", "none") for name in ("memory", "goal_conditioning"))
    names = ["model.width"] if fixed.get("model.hidden") and all(other == "none" for other in others) else []
    is_vector = Observations(spaces_of(env).observation, env.id).kind == "vector"
    return [*names, "model.largest_pixel" if is_vector else "normalize_obs"]


def check_encoder(model: Mapping[str, Any], env: EnvSpec, subject: str) -> None:
    """Raise UnsupportedSpace unless the encoder fits the environment's observations.

    Args:
        model: values of `model`.
        env: environment.
        subject: name of the task in error messages.

    Raises:
        BadEncoder: a user's own encoder cannot be used.
    """
    obs = Observations(spaces_of(env).observation, env.id)
    name, largest = model["encoder"], model["largest_pixel"]
    if obs.kind == "vector" and largest != PIXEL:
        raise UnsupportedSpace(
            f"{subject}: model.largest_pixel scales images, but got {largest} for vectors of {obs.shape[0]} numbers; "
            "leave model.largest_pixel out, or set normalize_obs"
        )
    if name not in ENCODERS:
        try:
            encoder_for(SimpleNamespace(**model), "features", obs.shape)
        except BadEncoder as error:
            raise BadEncoder(f"{subject}: {error}") from error
        return
    if obs.kind == "vector":
        if name != DEFAULT:
            raise UnsupportedSpace(
                f"{subject}: model.encoder sees images, but got {name!r} for vectors of "
                f"{obs.shape[0]} numbers; leave model.encoder out"
            )
        return
    images = [form for form, _ in obs.shape.images] if isinstance(obs.shape, MixedShape) else [obs.shape]
    height, width, *_ = smallest = min(images, key=lambda form: min(form[:2]))
    least = ENCODERS[fitting(name, smallest)].smallest
    if min(height, width) < least:
        others = [other for other, encoder in ENCODERS.items() if min(height, width) >= encoder.smallest]
        raise UnsupportedSpace(
            f"{subject}: model.encoder {name!r} sees images of at least {least} x {least} pixels, but "
            f"got {height} x {width}; set model.encoder to {' or '.join(others)}, or resize them "
            "with a wrapper"
        )
