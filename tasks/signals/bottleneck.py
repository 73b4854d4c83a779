"""The variational discriminator bottleneck: Peng et al. (2019), arXiv:1810.00821, section 4; with GAIL it is "VAIL".

An encoder E says where a step x lies among codes z, and how exactly; the discriminator sees a sample z of that alone:

    z = μ(x) + σ(x) ε,   ε ~ N(0, 1),   D(z) = 1 / (1 + exp(-(w z + b)))
    L = GAIL's L, its terms at samples, + β (K - I_c),   K = ½ mean_E KL + ½ mean_π KL
    KL = KL(N(μ, σ²) ‖ N(0, 1)) = Σ ½ (μ² + σ² - 1) - log σ
    β ← max(0, β + α_β (K - I_c)),   r = -log(1 - D(μ(x)))

β begins at 0, and is the price of what codes tell, in nats, beyond the I_c that they may. The gradient penalty is on
the slope in x of a sample's w z + b, through both μ and σ.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ..checkpoint.member_state import Stacked
from ..networks.mlp import MLP, affine
from ..rng.draws import Normals
from ..rng.streams import Bits
from .learned import perceptron
from .slopes import hidden_values, pulled_back, through


class Bottleneck(Stacked):
    """An encoder and a discriminator of its codes, of P members; its own state is β, (P, 1).

    Attributes:
        networks: those that need parameters.
    """

    def __init__(self, inputs: int, widths: tuple[int, int], keys: Bits, batch: int, device: torch.device):
        """widths: of hidden layers, and of codes; keys: the members' streams, (P,); batch: B of every sample."""
        width, self.size = widths
        self.encoder = perceptron("gail.encoder", inputs, width, 2 * self.size)
        self.decision = perceptron("gail.discriminator", self.size, width, 1, layers=0)
        self.networks: list[MLP] = [self.encoder, self.decision]
        self.noise = Normals(keys, (2, batch, self.size), device)
        self.tensors = {"beta": torch.zeros(len(keys), 1, device=device)}

    def _code(self, tensors: Mapping[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """μ and log σ of (P, B, inputs), each (P, B, size)."""
        mean, log_std = self.encoder(self.encoder.layers(tensors), x).split(self.size, -1)
        return mean.contiguous(), log_std.contiguous()

    def estimate(self, tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """w μ + b of (P, B, inputs), (P, B)."""
        return self.decision(self.decision.layers(tensors), self._code(tensors, x)[0]).squeeze(-1)

    def sample(self, tensors: Mapping[str, Tensor], x: Tensor, position: int, place: int) -> tuple[Tensor, Tensor]:
        """w z + b of samples for (P, B, inputs), and what their codes tell in nats, KL, each (P, B).

        position: how many batches there were before; place: 0 or 1, which of a batch's two noises is taken.
        """
        mean, log_std = self._code(tensors, x)
        std = log_std.exp()
        z = mean + std * self.noise(position)[:, place].contiguous()
        kl = (0.5 * (mean.square() + std.square() - 1) - log_std).sum(-1)
        return self.decision(self.decision.layers(tensors), z).squeeze(-1), kl

    def slope(self, tensors: Mapping[str, Tensor], x: Tensor, position: int, place: int) -> Tensor:
        """The slope of a sample's w z + b in x, (P, B, inputs); arguments as those of `sample`."""
        layers = self.encoder.layers(tensors)
        values = hidden_values(self.encoder, layers, x)
        weight, bias = layers[-1]
        log_std = affine(values[-1], weight[..., self.size :].contiguous(), bias[..., self.size :].contiguous())
        of_mean = self.decision.layers(tensors)[0][0].transpose(1, 2)  # the same for all: (P, 1, size)
        of_log_std = of_mean * log_std.exp() * self.noise(position)[:, place].contiguous()
        of_code = torch.cat([of_mean.expand_as(of_log_std), of_log_std], -1)
        return pulled_back(layers, values, through(of_code, weight))

    @torch.no_grad()
    def raise_price(self, excess: Tensor, lr: Tensor, active: Tensor | None = None) -> None:
        """β ← max(0, β + lr · excess) of active members, whose codes tell `excess` nats too many; each (P, 1)."""
        beta = self.tensors["beta"]
        price = (beta + lr * excess).clamp(min=0)
        beta.copy_(price if active is None else torch.where(active, price, beta))
