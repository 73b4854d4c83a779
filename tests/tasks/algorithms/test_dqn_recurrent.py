"""DQN with a memory: exactness, inputs of its networks by arithmetic, and refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from masked import MASKED
from rekindle import DQN
from rekindle.spaces import unflatten
from rekindle.tasks.algorithms.dqn.dqn import DQNLearner
from rekindle.tasks.algorithms.dqn.networks import RecurrentQNetwork
from rekindle.tasks.testing import VariantSuite

SMALL = {
    "model.memory": "lstm",
    "model.width": 16,
    "model.layers": 1,
    "model.sequence_length": 4,
    "model.burn_in": 3,
    "batch_size": 12,
    "buffer_size": 120,
    "learning_starts": 40,
    "num_envs": 2,
    "epoch_steps": 128,
    "exploration.horizon": 300,
}


class TestOnMaskedCartPole(VariantSuite):
    task = DQN
    env = MASKED
    hyperparameters: ClassVar = SMALL
    variants: ClassVar = (
        {"model.memory": "gru", "double": False, "num_envs": 3, "buffer_size": 151, "model.dueling": True, "n_step": 1},
    )
    cohort_size = 3


def learner(members: int = 1, **changes: Any) -> DQNLearner:
    """A learner that has filled its buffer, and learned a little."""
    tasks = [DQN(MASKED, seed=seed).init(**unflatten({**SMALL, **changes})) for seed in range(members)]
    made = DQNLearner(tasks[0].env, range(members), [task.hyperparameters or {} for task in tasks])
    for _ in range(40):
        made.iterate()
    return made


@pytest.mark.parametrize("burn_in", [0, 3])
def test_values_of_a_batch_are_those_of_acting_through_it(burn_in: int) -> None:
    """Step by step from the stored state, with resets where episodes begin."""
    made = learner(**{"model.burn_in": burn_in, "n_step": 2})
    policy = made.policy
    assert isinstance(policy, RecurrentQNetwork)
    _, batch = made.draw()
    with torch.no_grad():
        values = policy.of_batch(batch, double=True)
        state, in_time = batch["memory"], []
        for t in range(batch["obs"].shape[2]):
            features, state = policy.remembered(batch["obs"][:, :, t], state * (1 - batch["begins"][:, :, t, None]))
            in_time.append(policy.acting_values(features))
    q = torch.stack(in_time, 2)  # (P, B, T, actions)
    learned = q[:, :, burn_in : burn_in + 4].flatten(1, 2)
    torch.testing.assert_close(values.q, learned, atol=1e-5, rtol=1e-5)
    assert values.online is not None
    torch.testing.assert_close(values.online, q[:, :, burn_in + 2 : burn_in + 6].flatten(1, 2), atol=1e-5, rtol=1e-5)
    assert not torch.equal(values.online, values.target)


@pytest.mark.slow
def test_stored_states_are_those_of_acting() -> None:
    made = learner()
    memory, sequences = made.memory, made.sequences
    assert sequences is not None
    while made.replay.steps % 4:
        made.iterate()
    before = memory.tensors["state"].clone()  # type: ignore[attr-defined]
    slot = sequences.states.steps % sequences.states.slots
    made.iterate()
    assert np.array_equal(sequences.states.numbers[0, slot], before[0].numpy())


def test_gradients_do_not_pass_through_the_burn_in() -> None:
    made = learner(**{"model.burn_in": 3})
    _, batch = made.draw()
    batch["obs"] = batch["obs"].clone().requires_grad_()
    made.policy.of_batch(batch, double=False).q.sum().backward()
    assert batch["obs"].grad is not None
    assert not batch["obs"].grad[:, :, :3].any()
    assert batch["obs"].grad[:, :, 3:7].any()


def test_it_acts_and_values_with_its_memory() -> None:
    task = DQN(MASKED).init(**unflatten(SMALL))
    task.fit(1)
    obs = np.zeros((2, 2), np.float32)
    actions, state = task.predict(obs)
    assert state.shape == (2, 32)
    assert actions.shape == (2,)
    assert task.value(obs, state).shape == (2,)
    assert len(task.returns(2)) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 10}, r"with a memory, batch_size \(10\) must be a multiple of model.sequence_length \(4\)"),
        ({"replay.name": "prioritized"}, "draws single transitions, but model.memory=lstm learns from sequences"),
        ({"rnd.use": True, "n_step": 1}, "batches of rnd are single steps, but model.memory is lstm"),
    ],
)
def test_values_that_contradict_a_memory_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DQN(MASKED).init(**unflatten({**SMALL, **changes}))


def test_no_memory_changes_no_identity() -> None:
    assert DQN("CartPole-v1").init().uid == DQN("CartPole-v1").init(model={"memory": "none"}).uid
