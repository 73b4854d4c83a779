"""State-dependent exploration of SAC: its distribution, its gradient, and the lifetime of its noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tiny
import torch
from rekindle import SAC
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.continuous.sac import SACLearner
from rekindle.tasks.envs import EnvSpec
from rekindle.tasks.errors import UnsupportedSpace

SMALL: dict[str, Any] = {
    **tiny.REPLAY,
    "epoch_steps": 96,
    "batch_size": 32,
    "model.activation": "tanh",
    "use_sde": True,
    "sde_sample_freq": 4,
    "num_envs": 2,
}
MEMORY = {"model.memory": "gru", "model.sequence_length": 8, "model.burn_in": 4}


def learner(env: str = "Pendulum-v1", **changes: Any) -> Any:
    tasks = [SAC(env, seed=seed).init(**unflatten({**SMALL, **changes})) for seed in range(2)]
    made = SACLearner(tasks[0].env, range(2), [task.hyperparameters or {} for task in tasks])
    while made.filling:
        made.iterate()
    made.policy.actor.views["actor.log_std"] += torch.randn(2, 16, 1, generator=torch.Generator().manual_seed(0))
    return made


@pytest.mark.parametrize("changes", [{}, MEMORY])
@pytest.mark.parametrize("env", ["Pendulum-v1", "own_envs:HybridWalk-v0"])
def test_the_gradient_is_autograds(env: str, changes: dict[str, Any]) -> None:
    made = learner(env, **changes)
    policy, actions = made.policy, made.actions
    k = actions.continuous_dim
    _, batch = made.draw()
    outputs, _ = policy.outputs_of(batch)
    slopes = torch.randn(2, 32, actions.outputs, generator=torch.Generator().manual_seed(1))
    gradient = policy.actor_gradient(32 * (outputs * slopes).sum(-1))
    leaves = policy.actor.leaves
    if changes:
        size, first = policy.state_size, 4
        state = policy.cores[0](
            policy.actor.views, batch["obs"][:, :, :first], batch["begins"][..., :first], batch["memory"][..., :size]
        )[:, :, -1]
        states = policy.cores[0](leaves, batch["obs"][:, :, first:], batch["begins"][..., first:], state)
        seen = states[:, :, :8].flatten(1, 2)
    else:
        seen = batch["obs"]
    layers = policy.pi.layers(leaves)
    z = policy.pi.hidden(layers, seen)
    weight, bias = layers[-1]
    out = torch.baddbmm(bias, z, weight)
    variance = torch.bmm(z.detach() ** 2, (2 * leaves["actor.log_std"]).exp()) + 1e-6
    mine = torch.cat([out[..., :k], 0.5 * variance.log(), out[..., k : actions.outputs - k]], -1)
    torch.testing.assert_close(outputs, mine)
    torch.testing.assert_close(gradient, policy.actor.gradient((mine * slopes).sum((1, 2))), rtol=1e-3, atol=1e-5)


def test_the_noise_of_acting_has_the_spread_that_learning_knows() -> None:
    made = learner()
    policy, seen = made.policy, torch.from_numpy(made.envs.obs)
    outputs, z = policy.act(seen)
    drawn = torch.stack([made.noise(4 * i, outputs, z)[0] for i in range(4000)])
    log_std = outputs[..., 1:2]
    torch.testing.assert_close(drawn.std(0), log_std.exp(), rtol=0.05, atol=0.0)
    assert drawn.mean(0).abs().max() < 0.05 * log_std.exp().max() * 2


def test_the_noise_stays_for_so_many_steps_and_is_a_function_of_the_state() -> None:
    made = learner()
    obs = made.tensor(made.envs.obs)
    actions = [made.explore(obs, position) for position in range(12)]
    same = [np.array_equal(actions[i], actions[i + 1]) for i in range(11)]
    assert same == [True, True, True, False] * 2 + [True, True, True]
    assert not np.array_equal(made.explore(-obs, 0), actions[0])


def test_evaluation_uses_none() -> None:
    made = learner()
    mean = made.policy.outputs(torch.from_numpy(made.envs.obs))[..., :1]
    np.testing.assert_allclose(made.actor(2)(made.envs.obs), 2 * torch.tanh(mean), rtol=1e-5)


def test_sde_is_refused_without_a_box() -> None:
    with pytest.raises(UnsupportedSpace, match="SAC on CartPole-v1: use_sde explores in a Box of floats, but got Disc"):
        SAC("CartPole-v1").init(use_sde=True)


def test_a_search_tries_sde_where_actions_are_numbers() -> None:
    spaces = (SACLearner.open_space(EnvSpec.of(env), {}).searched() for env in ("Pendulum-v1", "CartPole-v1"))
    box, choice = (space.unfixed() for space in spaces)
    assert box["use_sde"].values == (False, True)
    assert "use_sde" not in choice
