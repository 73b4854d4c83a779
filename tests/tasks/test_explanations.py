"""Every hyperparameter of every algorithm has an explanation, and none is left over."""

from __future__ import annotations

import pytest
from rekindle.tasks import load
from rekindle.tasks.explanations import EXPLANATIONS, explanation
from rekindle.tasks.registry import ALGORITHMS


def names(task: str) -> dict[str, str]:
    return {path: dimension.help for path, dimension in load(task).learner.hyperparameters.flat().items()}


@pytest.mark.parametrize("task", ALGORITHMS)
def test_every_hyperparameter_is_explained(task: str) -> None:
    assert [path for path, text in names(task).items() if len(text.split()) < 3] == []


def test_every_explanation_is_used() -> None:
    texts = {text for task in (*ALGORITHMS, "surrogate") for text in names(task).values()}
    assert {name for name, text in EXPLANATIONS.items() if text not in texts} == set()


def test_the_longest_name_that_fits_counts() -> None:
    assert explanation("gail.width") == EXPLANATIONS["gail.width"] != explanation("model.width")
    assert explanation("model.width") == EXPLANATIONS["width"]
    assert explanation("nothing.known") == ""
