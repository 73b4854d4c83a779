"""Layer normalization: Ba et al. (2016), arXiv:1607.06450."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from .mlp import MLP, Layers, Parameters, affine

EPS = 1e-5  # added to the variance


class LayerNormMLP(MLP):
    """An `MLP` whose hidden layers are normalized before the activation.

    h = f(g ∘ (y - mean y) / √(var y + 1e-5) + b),   y = x W + c

    The names of g and b are ``{prefix}.{layer}.norm_scale`` and ``.norm_shift``.
    """

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = super().shapes
        for name, size in zip(self.names, self.sizes[1:-1], strict=False):
            shapes |= {f"{name}.norm_scale": (1, size), f"{name}.norm_shift": (1, size)}
        return shapes

    def initialize(self, parameters: Parameters, member: int, seed: int) -> None:
        super().initialize(parameters, member, seed)
        for name in self.names[:-1]:
            parameters.views[f"{name}.norm_scale"][member] = 1

    def layers(self, tensors: Mapping[str, Tensor]) -> Layers:
        """Look up each (weight, bias), and (g, b) after hidden ones."""
        *hidden, last = super().layers(tensors)
        norms = [(tensors[f"{name}.norm_scale"], tensors[f"{name}.norm_shift"]) for name in self.names[:-1]]
        return [pair for both in zip(hidden, norms, strict=True) for pair in both] + [last]

    def hidden(self, layers: Layers, x: Tensor, factors: Sequence[Tensor] = ()) -> Tensor:
        for number, ((weight, bias), norm) in enumerate(zip(layers[:-1:2], layers[1:-1:2], strict=True)):
            y = affine(x, weight, bias)
            x = self.activation(layer_normalized(y * factors[number] if factors else y, *norm))
        return x


def layer_normalized(y: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return normalized rows y, (P, B, D).

        g ∘ (y - mean y) / √(var y + 1e-5) + b

    The scale g and the shift b are (P, 1, D).
    """
    centered = y - y.mean(-1, keepdim=True)
    return scale * (centered / (centered.square().mean(-1, keepdim=True) + EPS).sqrt()) + shift
