"""Discriminators of GAIL: a perceptron, and one behind a variational bottleneck.

Both return the gradient of their output z with respect to the input, derived by hand for perceptrons of tanh. A penalty
on this gradient can then be differentiated by the parameters like any other loss.

The bottleneck is that of Peng et al. (2019), arXiv:1810.00821, section 4; with it, GAIL is called VAIL. An encoder maps
a step x to a normal distribution of codes, and the discriminator sees only a sample of it:

    code = μ(x) + σ(x) ε,   ε ~ N(0, 1),   z = w code + b
    L = GAIL's L, its terms at samples, + β (K - I_c),   K = ½ mean_E KL + ½ mean_π KL
    KL = KL(N(μ, σ²) ‖ N(0, 1)) = Σ ½ (μ² + σ² - 1) - log σ
    β ← max(0, β + α_β (K - I_c)),   r = -log(1 - D(μ(x)))

β starts at 0; it is the price of each nat of information in the codes beyond I_c. The gradient penalty applies to the
gradient of a sample's z with respect to x, through both μ and σ.

Notation used for tensor shapes: P members, B batch.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..checkpoint.member_state import Stacked
from ..networks.mlp import MLP, Layers, affine
from ..rng.draws import Normals
from ..rng.streams import Bits
from .signal import perceptron


class Discriminator:
    """A perceptron that estimates z.

    Attributes:
        networks: networks that need parameters.
    """

    def __init__(self, inputs: int, width: int):
        self.net = perceptron("gail.discriminator", inputs, width, 1)
        self.networks = [self.net]

    def estimate(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return z (P, B) for steps (P, B, inputs)."""
        return self.net(self.net.layers(tensors), x).squeeze(-1)

    def sample(self, tensors: Mapping[str, Tensor], x: Tensor, position: int, index: int) -> tuple[Tensor, None]:
        """Return z, and None in place of a code's information."""
        return self.estimate(tensors, x), None

    def input_gradient(self, tensors: Mapping[str, Tensor], x: Tensor, position: int, index: int) -> Tensor:
        """Return the gradient of z with respect to x, (P, B, inputs)."""
        return input_gradient(self.net, self.net.layers(tensors), x)


class Bottleneck(Stacked):
    """An encoder and a discriminator of its codes; β is state.

    Attributes:
        networks: networks that need parameters.
    """

    def __init__(self, inputs: int, width: int, code_width: int, keys: Bits, batch: int, device: torch.device):
        """Build the networks.

        Args:
            inputs: numbers in a step.
            width: width of hidden layers.
            code_width: numbers in a code.
            keys: random streams of the members, (P,).
            batch: B of every sample.
            device: device of all tensors.
        """
        self.size = code_width
        self.encoder = perceptron("gail.encoder", inputs, width, 2 * code_width)
        self.decision = perceptron("gail.discriminator", code_width, width, 1, layers=0)
        self.networks: list[MLP] = [self.encoder, self.decision]
        self.noise = Normals(keys, (2, batch, code_width), device)
        self.tensors = {"beta": torch.zeros(len(keys), 1, device=device)}

    def _code(self, tensors: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Return μ and log σ for steps (P, B, inputs)."""
        mean, log_std = self.encoder(self.encoder.layers(tensors), x).split(self.size, -1)
        return mean.contiguous(), log_std.contiguous()

    def estimate(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Return z (P, B) at the mean codes of (P, B, inputs)."""
        return self.decision(self.decision.layers(tensors), self._code(tensors, x)[0]).squeeze(-1)

    def sample(self, tensors: Mapping[str, Tensor], x: Tensor, position: int, index: int) -> tuple[Tensor, Tensor]:
        """Return z at sampled codes, and their KL in nats, (P, B).

        Args:
            tensors: parameters by name.
            x: steps, (P, B, inputs).
            position: number of batches before this one.
            index: which of a batch's two noises to use, 0 or 1.
        """
        mean, log_std = self._code(tensors, x)
        std = log_std.exp()
        code = mean + std * self.noise(position)[:, index].contiguous()
        kl = (0.5 * (mean.square() + std.square() - 1) - log_std).sum(-1)
        return self.decision(self.decision.layers(tensors), code).squeeze(-1), kl

    def input_gradient(self, tensors: Mapping[str, Tensor], x: Tensor, position: int, index: int) -> Tensor:
        """Return the gradient of z at sampled codes; arguments as for `sample`."""
        layers = self.encoder.layers(tensors)
        hidden = hidden_values(self.encoder, layers, x)
        weight, bias = layers[-1]
        log_std = affine(hidden[-1], weight[..., self.size :].contiguous(), bias[..., self.size :].contiguous())
        of_mean = self.decision.layers(tensors)[0][0].transpose(1, 2)  # the same for all: (P, 1, size)
        of_log_std = of_mean * log_std.exp() * self.noise(position)[:, index].contiguous()
        of_code = torch.cat([of_mean.expand_as(of_log_std), of_log_std], -1)
        return backpropagate(layers, hidden, times_transposed(of_code, weight))

    @torch.no_grad()
    def update_beta(self, excess: Tensor, lr: Tensor, active: Tensor | None = None) -> None:
        """Set β ← max(0, β + lr · excess) for active members.

        excess is the information beyond I_c in nats, (P, 1).
        """
        beta = self.tensors["beta"]
        raised = (beta + lr * excess).clamp(min=0)
        beta.copy_(raised if active is None else torch.where(active, raised, beta))


def input_gradient(net: MLP, layers: Layers, x: Tensor) -> Tensor:
    """Return the gradient of a one-output perceptron, (P, B, inputs)."""
    return backpropagate(layers, hidden_values(net, layers, x), layers[-1][0].transpose(1, 2))


def hidden_values(net: MLP, layers: Layers, x: Tensor) -> list[Tensor]:
    """Return x and the output of each hidden layer."""
    values = [x]
    for weight, bias in layers[:-1]:
        values.append(net.activation(affine(values[-1], weight, bias)))
    return values


def backpropagate(layers: Layers, values: list[Tensor], gradient: Tensor) -> Tensor:
    """Return the gradient with respect to x, (P, B, inputs).

    Args:
        layers: layers of the perceptron.
        values: result of `hidden_values` for x.
        gradient: gradient with respect to the last hidden layer's output, (P, B or 1, width).
    """
    for (weight, _), y in zip(reversed(layers[:-1]), reversed(values[1:]), strict=True):
        gradient = times_transposed(gradient * (1 - y * y), weight)
    return gradient


def times_transposed(gradient: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient in x, given that in x W."""
    return affine(gradient, weight.transpose(1, 2), weight.new_zeros(len(weight), 1, weight.shape[1]))
