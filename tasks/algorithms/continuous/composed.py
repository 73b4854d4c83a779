"""Multilayer perceptrons of any form, differentiated by torch's autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from ...networks.fused.mlp import joined
from ...networks.mlp import MLP, Parameters, affine
from ...rng import tensors
from ...rng.streams import Bits

LEVELS = 1 << 16  # a rate of dropout is a multiple of 1 / LEVELS


class ComposedMLP:
    """An `MLP` of any form in the place of a `FusedMLP`.

    Attributes:
        leaf: parameter vectors (P', D) of the members that learn; gradients are taken with respect to it.
        compiled: None, as no kernel computes it.
    """

    compiled = None

    def __init__(self, network: MLP, parameters: Parameters, vector: Tensor):
        """Store the network.

        Args:
            network: the network.
            parameters: parameters of all members, among them those of the network.
            vector: parameter vectors (P', D) of the members that learn.
        """
        self.network, self.leaf = network, vector.detach().requires_grad_()
        self._shapes = parameters.shapes
        self._sizes = [span.stop - span.start for span in parameters.spans.values()] + [parameters.padding]

    def __call__(
        self,
        vector: Tensor,
        x: Tensor,
        extra_inputs: Tensor | None = None,
        no_grad_inputs: Tensor | None = None,
        no_grad_extra: Tensor | None = None,
        num_copies: int = 1,
        learn: bool = True,
        factors: Tensor | None = None,
        no_grad_factors: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Map inputs to outputs, as `FusedMLP` does.

        The factors of dropout are (P num_copies, B, all hidden units), for inputs with and without gradients.
        """
        inputs, side = joined(x, extra_inputs, num_copies), (-1, num_copies) if num_copies > 1 else (-1,)
        by_rows = len(vector) == len(inputs)  # so inputs without gradients are other rows, not other members
        out, hidden = self._run(self.leaf if learn else vector[: len(inputs)], inputs, factors)
        if out.requires_grad:
            out.register_hook(Tensor.contiguous)  # its sum is a bias's gradient, see Exactness in mlp.py
        if no_grad_inputs is None:
            return out.unflatten(0, side), out[:0], hidden.detach()
        with torch.no_grad():
            rest = joined(no_grad_inputs, no_grad_extra, num_copies)
            others, more = self._run(vector if by_rows else vector[len(inputs) :], rest, no_grad_factors)
        hidden = torch.cat([hidden.detach(), more], int(by_rows))
        return out.unflatten(0, side), others.unflatten(0, side), hidden

    @torch.no_grad()
    def evaluate(self, vector: Tensor, x: Tensor) -> Tensor:
        """Return the outputs (P, B, outputs) of x, without gradients."""
        return self._run(vector, x)[0]

    def _run(self, vector: Tensor, x: Tensor, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return outputs and last hidden activations for x (P, B, inputs)."""
        parts = zip(vector.split(self._sizes, 1), self._shapes.items(), strict=False)
        layers = self.network.layers({name: part.unflatten(1, shape) for part, (name, shape) in parts})
        dropped = () if factors is None else factors.split(self.network.sizes[1:-1], -1)
        z = self.network.hidden(layers, x, dropped)
        return affine(z, *layers[-1]), z


class Dropout:
    """Random factors of units: Srivastava et al. (2014).

    They are 0 with a probability, and otherwise 1 / (1 - rate). They are functions of the step's number.
    """

    def __init__(self, keys: Bits, rate: float, shape: tuple[int, ...], device: torch.device | str):
        """Prepare the draws.

        Args:
            keys: random streams of the members, (P,).
            rate: probability, rounded to a multiple of 1 / LEVELS.
            shape: shape of one member's units in one step.
            device: device of the factors.
        """
        self.shape, self.keys = shape, tensors.key_tensor(keys, device).unsqueeze(1)
        self.limit = round(rate * LEVELS)
        self.count = torch.Size(shape).numel()
        self.words = -(-self.count // 4)  # 64 bits decide about four units

    def __call__(self, step: int) -> Tensor:
        """Return the factors (P, *shape) of a step."""
        counters = torch.arange(step * self.words, (step + 1) * self.words, device=self.keys.device)
        levels = tensors.bits(self.keys, counters).view(torch.int16)[:, : self.count]  # from -LEVELS / 2
        stays = (levels >= self.limit - LEVELS // 2).unflatten(1, self.shape)
        return stays * (LEVELS / (LEVELS - self.limit))
