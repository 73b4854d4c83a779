"""Ensembles of critics (REDQ): Chen et al. (2021), arXiv:2101.05982."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....spaces import Space, categorical, integer
from .learner import UNSEARCHED, critic_space

TWINS = 2


def ensemble_space() -> Space:
    """Return the hyperparameters of the critics' form and number.

    Targets follow the least value of `subset` critics of an `ensemble`, drawn at random for each gradient step, and the
    policy the mean of all: Chen et al. (2021), arXiv:2101.05982 (REDQ), with num_updates = policy_delay = 20,
    ensemble = 10 and subset = 2. With `mean`, the policy follows the mean of two critics, too, as in DroQ.
    """
    rest: dict[str, Any] = {**UNSEARCHED, "silent": True}
    return critic_space(
        ensemble=integer(2, 10, default=2, accept=(2, 100), help="number of critics", **rest),
        subset=integer(1, 10, default=2, accept=(1, 100), help="critics whose least value is the target", **rest),
        mean=categorical(
            False, True, default=False, when={"ensemble": TWINS}, help="the policy follows the critics' mean", **rest
        ),
    )


def check_subset(values: Mapping[str, Any], algorithm: str) -> None:
    """Raise ValueError if a subset is larger than its ensemble."""
    critic = values.get("critic", {})
    if "subset" in critic and critic["subset"] > critic["ensemble"]:
        raise ValueError(
            f"{algorithm}: targets take a subset of the critics, but critic.subset is {critic['subset']} and "
            f"critic.ensemble {critic['ensemble']}; raise critic.ensemble or lower critic.subset"
        )
