"""The exactness suite on learners with planted faults: it names the violated law and the place."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from rekindle import Space, Task, log_real
from rekindle.tasks import BaseLearner
from rekindle.tasks.testing import ExactnessSuite


class Sound(BaseLearner):
    """A line, fitted by gradient descent with momentum."""

    hyperparameters = Space(lr=log_real(1e-3, 1.0, default=0.1))
    parts, objective, direction, unit = ("network", "optimizer"), "error", "minimize", "points"
    batched = False
    points: int

    def build(self):
        self.epoch_size = 64
        with self.torch_seed("weights"):
            self.network = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=float(self.hp.lr), momentum=0.5)

    def draw(self):
        with self.torch_seed("points", self.points):
            return torch.rand(32, 1)

    def iterate(self):
        x = self.draw()
        loss = (self.network(x) - 3 * x).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.points += len(x)
        return {"loss": loss.detach()[None]}

    def score(self):
        return (self.network.weight[0] - 3).square().detach().double().numpy()


class WithoutOptimizer(Sound):
    parts = ("network",)


class WithoutSeed(Sound):
    def draw(self):
        return torch.rand(32, 1)


class WithoutEffect(Sound):
    hyperparameters = Sound.hyperparameters.extend(idle=log_real(1e-3, 1.0, default=0.1))


def suite_of(learner_class: type[BaseLearner]) -> ExactnessSuite:
    class Line(Task):
        name = "line"
        learner = learner_class

    class Suite(ExactnessSuite):
        task: ClassVar[type[Task]] = Line
        env = None

    return Suite()


def methods_of(suite: ExactnessSuite) -> list[str]:
    # Not in a new process: it would have to find these classes.
    return [name for name in dir(suite) if name.startswith("test_") and "new_process" not in name]


def test_a_sound_learner_passes() -> None:
    suite = suite_of(Sound)
    for name in methods_of(suite):
        getattr(suite, name)()


@pytest.mark.parametrize(
    ("learner", "test", "message"),
    [
        (
            WithoutOptimizer,
            "test_resuming_equals_not_stopping",
            "loaded and trained on is one that never stopped, but they differ in learner/network/bias, learner",
        ),
        (
            WithoutOptimizer,
            "test_loading_brings_back_everything_that_training_changes",
            r"WithoutOptimizer forgets optimizer\.",
        ),
        (
            WithoutSeed,
            "test_a_member_of_a_cohort_equals_the_trial_alone",
            "a member of a cohort is the task alone, but they differ in learner/network",
        ),
        (WithoutSeed, "test_global_random_state_is_untouched", "leaves the global generators of torch, NumPy and rand"),
        (WithoutEffect, "test_every_tuned_hyperparameter_matters_after_loading", "nothing after loading: idle$"),
    ],
)
def test_a_fault_is_named(learner: type[BaseLearner], test: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        getattr(suite_of(learner), test)()
