"""A task of which a hyperparameter depends on a number that members of a cohort need not share."""

from __future__ import annotations

import numpy as np
import torch
from rekindle import Space, Task, categorical, real
from rekindle.tasks import BaseLearner
from rekindle.tasks.checkpoint.member_state import Stacked


class Position(Stacked):
    def __init__(self, members: int) -> None:
        self.tensors = {"x": torch.zeros(members, 1)}


class DriftLearner(BaseLearner):
    """Numbers that grow by a speed, and by a push if they are pushed."""

    hyperparameters = Space(
        speed=real(0.0, 1.0, default=0.5),
        pushed=categorical(0, 1, default=0),
        push=real(1.0, 2.0, default=1.5, when={"pushed": 1}),
    )
    parts, objective = ("position",), "place"
    epoch_size = 4
    name_of_metric = "x"

    def build(self) -> None:
        self.position = Position(self.members)

    def iterate(self) -> dict[str, torch.Tensor]:
        x, push = self.position.tensors["x"], self.hp.push
        x += self.hp.speed if push is None else self.hp.speed + push
        return {self.name_of_metric: x[:, 0].clone()}

    def score(self) -> np.ndarray:
        return self.position.tensors["x"][:, 0].double().numpy().copy()


class Drift(Task):
    name = "drifting:Drift"
    learner = DriftLearner
