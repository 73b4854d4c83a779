"""Layers and modules of a user's own: exactness, initial weights, sharing, and refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import own_nets
import pytest
import torch
from rekindle import DQN, PPO, SAC
from rekindle.spaces import SpaceError
from rekindle.tasks.networks.encoders import encoder_for
from rekindle.tasks.networks.mlp import Parameters
from rekindle.tasks.networks.own_encoders import BadEncoder
from rekindle.tasks.testing import ExactnessSuite, VariantSuite
from support_path import SUPPORT

POPULATION, EYE = "own_nets:Population(size=2)", "own_nets:Eye(channels=3)"
IMAGES = "own_envs:ImageWalk-v0"  # of 5 x 6 pixels
ROLLOUTS: dict[str, Any] = {"epoch_steps": 64, "num_steps": 16, "num_envs": 2, "num_minibatches": 2}
REPLAY: dict[str, Any] = {"epoch_steps": 48, "learning_starts": 24, "batch_size": 16, "num_steps": 4, "num_updates": 1}


@pytest.fixture(autouse=True)
def own_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


class TestPPO(ExactnessSuite):
    """With attention over a population; and the forms that layers can have."""

    task = PPO
    hyperparameters: ClassVar = {
        **ROLLOUTS,
        "update_epochs": 1,
        "optimizer.lr": 0.01,
        "clip_coef": 0.1,
        "target_kl": None,
    }
    variants: ClassVar = (
        {"model.encoder": POPULATION, "max_grad_norm": 0.1},
        {"model.hidden": [17, 8], "model.critic_hidden": [33], "critic_loss": "huber"},
        {"model.shared_critic": True, "model.memory": "gru", "model.width": 16},
    )
    inert = frozenset({"model.std_init", "max_grad_norm", "clip_coef"})  # clips too rarely to be seen in an epoch
    path = (SUPPORT,)


@pytest.mark.slow
class TestDQN(VariantSuite):
    """With a convolutional network of one's own."""

    task = DQN
    env = IMAGES
    hyperparameters: ClassVar = {**REPLAY, "model.hidden": [12], "critic_loss": "mse"}
    variants: ClassVar = ({"model.encoder": EYE, "exploration.horizon": 100, "max_grad_norm": 0.01},)
    inert = frozenset({"target_interval"})


@pytest.mark.slow
class TestSAC(VariantSuite):
    task = SAC
    hyperparameters: ClassVar = {**REPLAY, "entropy.learn": False, "model.hidden": [16], "max_grad_norm": 0.1}
    variants: ClassVar = ({"model.encoder": POPULATION, "model.critic_hidden": [8, 8], "critic_loss": "huber"},)
    inert = frozenset({"target_update_interval"})


def test_first_weights_are_the_constructors_with_the_members_own_stream() -> None:
    encoder = encoder_for(SimpleNamespace(encoder=POPULATION, largest_pixel=255), "features", (4,))
    parameters = Parameters(encoder.shapes, 2)
    before = torch.get_rng_state()
    for member, seed in enumerate((3, 4)):
        encoder.initialize(parameters, member, seed)
    assert torch.equal(torch.get_rng_state(), before)
    first, second = (parameters.of(member) for member in range(2))
    weight = first["features.embed.weight"]
    assert not torch.equal(weight, second["features.embed.weight"])
    assert torch.equal(first["features.norm.weight"], torch.ones(8))  # as nn.LayerNorm begins
    assert float(weight.abs().max()) <= 2**-0.5  # as nn.Linear of 2 inputs begins
    module = own_nets.Population((4,), 2)
    module.load_state_dict({name.removeprefix("features."): x for name, x in first.items()} | {"scale": module.scale})
    obs = torch.randn(2, 5, 4)
    torch.testing.assert_close(encoder(parameters.views, obs)[0], module(obs[0]))


def test_equal_calls_are_one_uid_and_the_arguments_count() -> None:
    texts = (POPULATION, "own_nets:Population(width=8, size=2)", "own_nets:Population( size=2,width=8 )")
    plain, ordered, spaced = (PPO("CartPole-v1").init(model={"encoder": text}).uid for text in texts)
    assert ordered == spaced != plain


def test_a_shared_critic_has_the_actors_layers_and_moves_them() -> None:
    def features(values: dict[str, Any], **model: Any) -> dict[str, Any]:
        task = PPO("CartPole-v1").init(**ROLLOUTS, **values, model={"shared_critic": True, "hidden": [8, 6], **model})
        task.fit(1)
        return {name: x for name, x in task.policy().items() if name.startswith("features.shared")}

    joint, alone = features({"vf_coef": 1.0}), features({"vf_coef": 0.0})
    assert [tuple(x.shape) for x in joint.values()] == [(4, 8), (1, 8), (8, 6), (1, 6)]
    assert any(not torch.equal(x, alone[name]) for name, x in joint.items())


def test_width_and_layers_are_not_searched_beside_hidden() -> None:
    names = PPO("CartPole-v1", model={"hidden": [16]}).get_space().priors()
    assert "model.layers" not in names
    assert names["model.width"] == "fixed(64, structural=True)"
    assert "model.hidden" not in PPO("CartPole-v1").get_space().priors()
    assert PPO("CartPole-v1").init(model={"hidden": None}).uid == PPO("CartPole-v1").init().uid


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ({"encoder": "natur"}, SpaceError, r"or package.module:Class\(argument=1\), .*, not 'natur' \(str\); did you "),
        ({"encoder": "own_nets:Eye(3)"}, SpaceError, r"or package.module:Class\(argument=1\)"),
        ({"encoder": "own_nets:None"}, BadEncoder, "ppo on CartPole-v1: model.encoder own_nets:None cannot be"),
        ({"encoder": "nowhere:Net"}, BadEncoder, "No module named 'nowhere'; install its package, or add its folder"),
        (
            {"encoder": "own_nets:Population"},
            BadEncoder,
            "missing 1 required .* 'size'; a constructor has the shape of observations as obs_shape",
        ),
        ({"encoder": "own_nets:Population(size=3)"}, BadEncoder, r"forward must take observations of shape \(B, \*"),
        ({"encoder": "own_nets:Double"}, BadEncoder, "parameters are float32, but scale is not"),
        ({"encoder": "own_nets:number"}, BadEncoder, "number must be a class derived from torch.nn.Module, but"),
        ({"encoder": "own_nets:Flat"}, BadEncoder, r"must return features of shape \(B, F\), but of B = 2 .* \(\)"),
        ({"encoder": "own_nets:Counting"}, BadEncoder, "buffers must be constants, but calls changes; make it a param"),
        ({"encoder": "own_nets:no_module"}, BadEncoder, "must be a torch.nn.Module, but is a str"),
        ({"encoder": POPULATION, "goal_conditioning": "hyper"}, ValueError, "needs observations that are a Dict"),
        ({"hidden": []}, SpaceError, r"model.hidden must be None or a list of 1 to 16 integers in \[1, 65536\], such"),
        ({"hidden": [64, 0]}, SpaceError, r"model.hidden must be .*, not \[64, 0\] \(list\)"),
        ({"hidden": 64}, SpaceError, "model.hidden must be .*, not 64"),
        ({"hidden": [8], "layers": 2}, SpaceError, "model.layers applies only when model.hidden is None; leave it out"),
        ({"shared_critic": True, "critic_hidden": [8]}, ValueError, "model.shared_critic gives the critic the actor's"),
    ],
)
def test_an_invalid_network_is_refused(model: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"(?i){message}"):
        PPO("CartPole-v1").init(model=model)
