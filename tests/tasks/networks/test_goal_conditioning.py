"""Goals that generate a layer's weights: detection, computation, and exact resuming."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from rekindle import A2C, PPO, PPO2, SAC, SVPG, Cohort
from rekindle.spaces import unflatten
from rekindle.tasks.envs import EnvSpec
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.networks.goal_conditioning import GoalEncoder, goal_of
from rekindle.tasks.networks.mlp import Parameters
from rekindle.tasks.testing import VariantSuite
from support_path import SUPPORT

SIDES, REACH = "goal_envs:Sides-v0", "goal_envs:Reach-v0"
HYPER = {"model.goal_conditioning": "hyper"}
SMALL: dict[str, Any] = {"epoch_steps": 64, "num_steps": 16, "num_envs": 4, "model.width": 16, "optimizer.lr": 0.01}


@pytest.fixture(autouse=True)
def goal_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


class _WithGoals(VariantSuite):
    task = PPO
    env = SIDES
    inert = frozenset({"model.std_init"})


@pytest.mark.slow
class TestPPO(_WithGoals):
    hyperparameters: ClassVar = {**SMALL, **HYPER}
    variants: ClassVar = ({"normalize_obs": True}, {"model.memory": "gru", "model.width": 7, "num_minibatches": 2})


@pytest.mark.slow
class TestA2C(_WithGoals):
    task = A2C
    env = REACH
    hyperparameters: ClassVar = {**SMALL, "num_steps": 8, "num_envs": 2, **HYPER, "model.activation": "elu"}


@pytest.mark.slow
class TestMore(_WithGoals):
    task = PPO2
    env = REACH
    hyperparameters: ClassVar = {**SMALL, **HYPER, "num_minibatches": 2}
    variants: ClassVar = (
        {"use_sde": True, "model.width": 1},
        {"rnd.use": True, "num_envs": 1, "num_steps": 32, "model.activation": "silu"},
    )


@pytest.mark.slow
class TestSVPG(_WithGoals):
    task = SVPG
    hyperparameters: ClassVar = {
        "epoch_steps": 128,
        "num_steps": 8,
        "num_envs": 4,
        "model.width": 16,
        **HYPER,
        "num_particles": 2,
    }


def encoder(inputs: int = 5, goal: slice = slice(1, 3), width: int = 6) -> tuple[GoalEncoder, Parameters]:
    made = GoalEncoder("features", inputs, goal, SimpleNamespace(width=width, activation="tanh"))
    parameters = Parameters(made.shapes, 2)
    for member in range(2):
        made.initialize(parameters, member, seed=member)
    return made, parameters


def test_the_layer_is_the_one_that_the_goal_makes() -> None:
    made, parameters = encoder()
    generator = torch.Generator().manual_seed(0)
    parameters.vector.copy_(torch.randn(parameters.vector.shape, generator=generator))
    obs = torch.randn(2, 4, 5, generator=generator)
    seen, of = made(parameters.views, obs), {n.removeprefix("features.goal."): x for n, x in parameters.views.items()}
    for p in range(2):
        for b in range(4):
            goal, rest = obs[p, b, 1:3], obs[p, b, [0, 3, 4]]
            h = torch.tanh(goal @ of["0.weight"][p] + of["0.bias"][p, 0])
            layer = h @ of["1.weight"][p] + of["1.bias"][p, 0]
            expected = torch.tanh(rest @ layer[:18].view(3, 6) + layer[18:])
            torch.testing.assert_close(seen[p, b], expected)


def test_a_goal_of_nothing_finds_an_orthogonal_layer_and_others_change_it_as_much() -> None:
    made, parameters = encoder(inputs=40, goal=slice(30, 40), width=30)
    obs = torch.zeros(2, 30, 40)
    obs[:, :, :30] = 1e-3 * torch.eye(30)
    layer = made(parameters.views, obs) / 1e-3  # where tanh is straight
    torch.testing.assert_close(layer @ layer.mT, 2 * torch.eye(30).expand(2, -1, -1), atol=1e-3, rtol=0)
    h = torch.tanh(torch.randn(100, 10) @ parameters.views["features.goal.0.weight"][0])
    change = (h @ parameters.views["features.goal.1.weight"][0])[:, : 30 * 30].norm(dim=1).mean()
    assert 0.3 < change / (math.sqrt(2) * math.sqrt(30)) < 1.5


def test_a_goal_is_found_behind_what_stands_before_it() -> None:
    model = {"goal_conditioning": "hyper"}
    assert goal_of(model, EnvSpec(SIDES), "here") == slice(2, 4)
    assert goal_of({"goal_conditioning": "none"}, EnvSpec(SIDES), "here") is None
    task = PPO(SIDES, seed=1).init(**unflatten(HYPER))
    learner = task.build_learner([task])
    goal = learner.envs.obs[0, :, 2:4]
    np.testing.assert_allclose(np.square(goal).sum(-1), 1, rtol=1e-6)  # where a circle is
    shapes = learner.policy.parameters.shapes
    assert shapes["features.goal.0.weight"] == (2, 64)
    assert shapes["features.goal.1.weight"] == (64, 5 * 64)
    assert shapes["actor.0.weight"] == (64, 64)


@pytest.mark.parametrize("env", ["CartPole-v1", "own_envs:DictWalk-v0", "own_envs:PictureWalk-v0"])
def test_where_no_goal_is_seen_none_can_have_a_say(env: str) -> None:
    message = r"PPO on .* needs observations that are a Dict of 'desired_goal' and more, but got .*; leave model\.goal"
    with pytest.raises(UnsupportedSpace, match=message):
        PPO(env).init(model={"goal_conditioning": "hyper"})


def test_without_it_a_goal_is_seen_like_all_else_and_no_task_is_another() -> None:
    plain = PPO(SIDES).init()
    assert PPO(SIDES).init(model={"goal_conditioning": "none"}).uid == plain.uid
    assert PPO(SIDES).init(model={"goal_conditioning": "hyper"}).uid != plain.uid
    assert plain.build_learner([plain]).policy.parameters.shapes["actor.0.weight"] == (6, 64)
    with pytest.raises(ValueError, match=r"there is no hyperparameter 'model\.goal_conditioning'"):
        SAC(REACH).init(model={"goal_conditioning": "hyper"})


def test_spaces_that_a_dict_holds_are_counted_as_they_are_seen() -> None:
    assert goal_of({"goal_conditioning": "hyper"}, EnvSpec("goal_envs:Rooms-v0"), "here") == slice(5, 9)
    task = PPO("goal_envs:Rooms-v0").init(**unflatten(HYPER))
    rooms = task.build_learner([task]).envs.obs[0]
    assert (rooms[:, 5:9].sum(-1) == 1).all()  # one of four
    assert (rooms[:, 9:] == 0.5).all()


@pytest.mark.slow
def test_a_goal_with_a_say_is_followed_sooner_than_one_that_is_only_seen() -> None:
    returns = {}
    for conditioning in ("none", "hyper"):
        tasks = [PPO(SIDES, seed=seed).init(model={"goal_conditioning": conditioning}) for seed in range(3)]
        Cohort(tasks).fit(4)
        returns[conditioning] = sum(task.evaluate(20) for task in tasks) / 3
    assert returns["hyper"] > 18  # of 20, where chance has 10
    assert returns["hyper"] > returns["none"] + 1
