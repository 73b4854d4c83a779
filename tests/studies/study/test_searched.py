"""Studies that search only some hyperparameters."""

from __future__ import annotations

import pytest
from rekindle.spaces import SpaceError
from rekindle.studies.study.searched import defaults_except
from rekindle.tasks import load


def test_hyperparameters_that_are_not_searched_have_their_defaults() -> None:
    dqn = load("dqn")("CartPole-v1")
    space = dqn.get_space().fix(defaults_except(dqn.get_space(), ["optimizer.lr", "replay.name"]))
    conditional = ["replay.alpha", "replay.beta", "replay.beta_horizon", "replay.eps"]
    assert [name for name, dimension in space.flat().items() if dimension.search] == [
        "optimizer.lr",
        "replay.name",
        *conditional,
    ]
    with pytest.raises(
        SpaceError, match=r"'optimizer' is not an open .*; it is a group, of which one is optimizer\.name"
    ):
        defaults_except(dqn.get_space(), ["optimizer"])
    with pytest.raises(SpaceError, match=r"'optimizer\.lrr' is not an open hyperparameter; did you mean optimizer\.lr"):
        defaults_except(dqn.get_space(), ["optimizer.lrr"])
    with pytest.raises(
        SpaceError, match=r"replay\.alpha applies only when replay\.name is 'prioritized', which is not the"
    ):
        defaults_except(dqn.get_space(), ["replay.alpha"])
    with pytest.raises(SpaceError, match=r"search: num_envs has one value here, 1, to which it is fixed; leave it out"):
        defaults_except(dqn.get_space(), ["num_envs"])
