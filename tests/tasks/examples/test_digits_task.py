"""The digits classifier: a task without an environment, its suite, and its state in torch's own classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from rekindle import PPO, Cohort
from rekindle.tasks import load
from rekindle.tasks.checkpoint.torch_state import OptimizerPart
from rekindle.tasks.errors import Diverged, StateMismatch
from rekindle.tasks.examples.digits import Digits, digits
from rekindle.tasks.testing import ExactnessSuite

SMALL = {"width": 16, "batch_size": 128}


class TestDigits(ExactnessSuite):
    task = Digits
    env = None
    hyperparameters: ClassVar[dict[str, Any]] = SMALL


def test_it_recognizes_digits_it_has_not_seen() -> None:
    task = Digits(seed=1).init()
    before = task.evaluate()
    task.fit(5)
    assert before < 0.3 < 0.9 < task.evaluate() <= 1.0
    images, labels = digits()
    assert (len(images), float(images.max()), int(labels.bincount().min())) == (1797, 1.0, 174)
    assert task.metrics["samples"] == task.work == 5 * 1408  # 1437 images, in whole batches of 32
    assert "digits, seed 1" in task.summary()
    assert "5 epochs, 7040 samples" in task.summary()


def test_members_are_trained_one_by_one() -> None:
    tasks = [Digits(seed=seed).init(**SMALL) for seed in range(2)]
    Cohort(tasks).fit(1)
    learners = [task.member_ref().learner for task in tasks]
    assert learners[0] is not learners[1]
    assert [learner.members for learner in learners] == [1, 1]


def test_a_warm_start_takes_its_network() -> None:
    source = Digits().init(**SMALL)
    source.fit(1)
    warm = Digits(seed=2, warm_start=source).init(**SMALL)
    assert warm.evaluate() == source.evaluate()
    assert [*warm.model] == [f"network.{layer}.{name}" for layer in (0, 2) for name in ("weight", "bias")]


def test_numbers_that_are_not_finite_are_named() -> None:
    task = Digits().init(**SMALL)
    with torch.no_grad():
        task.member_ref().learner.network[0].bias[0] = torch.nan  # type: ignore[attr-defined]
    with pytest.raises(Diverged, match="loss became nan in epoch 1; try a lower learning rate"):
        task.fit(1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Digits("CartPole-v1").init(),
            "Digits learns without an environment, but got CartPole-v1; leave it out",
        ),
        (lambda: PPO().init(), "PPO learns in an environment, such as CartPole-v1, but got none"),
        (lambda: Digits().init().record(), "Digits has no episodes; evaluate\\(\\) measures its accuracy"),
        (lambda: Digits().init().evaluate(env="CartPole-v1"), "learns without an environment, but got 'CartPole-v1'"),
    ],
)
def test_environments_are_refused_where_there_are_none(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_without_its_data_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.delitem(sys.modules, "rekindle.tasks.examples.digits")
    with pytest.raises(ValueError, match=r"the task digits needs scikit-learn: pip install 'rekindle-rl\[digits\]'"):
        load("digits")


@pytest.mark.parametrize("name", ["SGD", "Adam"])
def test_an_optimizer_of_torch_continues_where_it_was(name: str) -> None:
    def make(lr: float) -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        parameter = torch.nn.Parameter(torch.ones(2, 3))
        options = {"momentum": 0.9} if name == "SGD" else {}
        return parameter, getattr(torch.optim, name)([parameter], lr=lr, **options)

    def step(parameter: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
        parameter.grad = parameter.detach() ** 2
        optimizer.step()

    whole, optimizer = make(0.1)
    step(whole, optimizer)
    resumed, other = make(0.1)
    resumed.data.copy_(whole.data)
    OptimizerPart(other).load_member(0, OptimizerPart(optimizer).member_state(0))
    step(whole, optimizer)
    step(resumed, other)
    assert torch.equal(whole, resumed)
    _, faster = make(0.2)
    OptimizerPart(faster).load_member(0, OptimizerPart(optimizer).member_state(0))
    assert faster.param_groups[0]["lr"] == 0.2  # a branch trains with its own hyperparameters
    for wrong in ({"1": {"moment": torch.zeros(2, 3)}}, {"0": {"moment": torch.zeros(7)}}):
        with pytest.raises(StateMismatch, match="what an optimizer remembers has its parameter's shape, but parameter"):
            OptimizerPart(other).load_member(0, wrong)
