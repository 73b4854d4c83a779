"""User-defined feature extractors: attention over a population, a convolutional network, and faulty ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Population(nn.Module):
    """Attention between individuals, as in MetaBox's optimizers of populations.

    An observation is a row of `size` individuals of equal length. Its features are means over the individuals.
    """

    def __init__(self, obs_shape: tuple[int, ...], size: int, width: int = 8, heads: int = 2):
        super().__init__()
        self.size = size
        self.embed = nn.Linear(obs_shape[0] // size, width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, obs: Tensor) -> Tensor:
        x = torch.tanh(self.embed(obs.unflatten(1, (self.size, -1)))) * self.scale
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0]).mean(1)


class Eye(nn.Module):
    """A convolution and a layer of 17 features, with SiLU."""

    def __init__(self, obs_shape: tuple[int, ...], channels: int = 4):
        super().__init__()
        rows, columns = (side - 2 for side in obs_shape[1:])
        self.layers = nn.Sequential(
            nn.Conv2d(obs_shape[0], channels, 3), nn.SiLU(), nn.Flatten(), nn.Linear(channels * rows * columns, 17)
        )

    def forward(self, obs: Tensor) -> Tensor:
        assert float(obs.max()) <= 1
        return nn.functional.silu(self.layers(obs))


class Flat(nn.Module):
    """A module with features of a wrong shape."""

    def forward(self, obs: Tensor) -> Tensor:
        return obs.sum()


class Counting(nn.Module):
    """A module with a buffer that changes with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, obs: Tensor) -> Tensor:
        self.calls += 1
        return obs


class Double(Flat):
    """A module with a parameter in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, dtype=torch.float64))


number = 3


def no_module() -> str:
    return "a text"
