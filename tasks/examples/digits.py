"""A classifier of handwritten digits: a task without an environment.

It learns by minibatch SGD. The 1,797 images of 8x8 pixels come from scikit-learn (Alpaydin and Kaynak 1998, UCI). Every
fifth image is held out to measure the accuracy. The network and the optimizer are torch's own, so members train one by
one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

try:
    from sklearn.datasets import load_digits
except ImportError as error:
    raise ImportError(f"the task digits needs scikit-learn: pip install 'rekindle-rl[digits]' ({error})") from error

from ...spaces import Space, log_real, ordinal, real
from ..base_learner import BaseLearner
from ..task import Task


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Return images (N, 64), scaled to [0, 1], and labels (N,)."""
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)


class DigitsLearner(BaseLearner):
    """A network with one hidden layer."""

    hyperparameters = Space(
        lr=log_real(1e-3, 1.0, default=0.1),
        momentum=real(0.0, 0.99, default=0.9),
        weight_decay=log_real(1e-6, 1e-2, default=1e-4),
        width=ordinal(16, 32, 64, 128, default=32, structural=True),
        batch_size=ordinal(16, 32, 64, 128, default=32, structural=True),
    )
    parts, objective, unit = ("network", "optimizer"), "accuracy", "samples"
    batched = compiled = False
    bounds = (0, 1)
    samples: int

    def build(self) -> None:
        images, labels = (data.to(self.device) for data in digits())
        tested = torch.arange(len(labels)) % 5 == 0
        self.train, self.test = (images[~tested], labels[~tested]), (images[tested], labels[tested])
        self.epoch_size = len(self.train[1]) // self.hp.batch_size * self.hp.batch_size  # incomplete batch left out
        with self.torch_seed("weights"):
            layers = [nn.Linear(64, self.hp.width), nn.ReLU(), nn.Linear(self.hp.width, 10)]
        self.network = nn.Sequential(*layers).to(self.device)
        lr, momentum, decay = (float(x) for x in (self.hp.lr, self.hp.momentum, self.hp.weight_decay))
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=lr, momentum=momentum, weight_decay=decay)

    def iterate(self) -> Mapping[str, Tensor]:
        with self.torch_seed("order", self.epochs):
            order = torch.randperm(len(self.train[1]))
        batch = order[self.samples % self.epoch_size :][: self.hp.batch_size]
        loss = cross_entropy(self.network(self.train[0][batch]), self.train[1][batch])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.samples += len(batch)
        return {"loss": loss.detach()[None]}

    @torch.no_grad()
    def score(self) -> np.ndarray:
        """Return the accuracy on the held-out images, (1,)."""
        return (self.network(self.test[0]).argmax(1) == self.test[1]).double().mean()[None].cpu().numpy()


class Digits(Task):
    """A classifier of handwritten digits, without an environment."""

    name = "digits"
    learner = DigitsLearner
