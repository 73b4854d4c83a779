"""Rollouts collected during learning from the previous one: exactness, lag, concurrency, and refusals."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest
import torch
from rekindle import A2C, PPO, EnvSpec, Task
from rekindle.spaces import unflatten
from rekindle.tasks.testing import ExactnessSuite, VariantSuite
from signal_learners import RND
from support_path import SUPPORT

SMALL: dict[str, Any] = {"overlap": True, "epoch_steps": 96, "num_steps": 16, "num_envs": 2, "optimizer.lr": 0.01}
MINIBATCHES: dict[str, Any] = {
    "target_kl": None,
    "num_minibatches": 2,
    "update_epochs": 2,
    "clip_coef": 0.1,
    "max_grad_norm": 0.1,
}


class TestPPO(ExactnessSuite):
    task = PPO
    hyperparameters: ClassVar = {**SMALL, **MINIBATCHES}
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({"normalize_obs": True, "normalize_reward": True, **RND},)
    inert = frozenset({"model.std_init"})


@pytest.mark.slow
class TestPPOWithMemory(VariantSuite):
    task = PPO
    hyperparameters: ClassVar = {**SMALL, **MINIBATCHES, "model.memory": "gru"}
    inert = frozenset({"model.std_init"})


@pytest.mark.slow
class TestA2C(VariantSuite):
    """Where episodes are cut at the ends of epochs, and where noise depends on the state."""

    task = A2C
    env = EnvSpec("fakes:Remembering-v0", {"length": 40, "spread": 30})
    hyperparameters: ClassVar = {**SMALL, "max_grad_norm": 0.1}
    inert = frozenset({"model.std_init"})


def learner_of(task: type[Task] = PPO, **more: Any) -> Any:
    made = task("CartPole-v1", seed=1).init(**unflatten({**SMALL, **more}))
    return made.build_learner([made])


def test_a_batch_was_collected_one_update_before() -> None:
    learner, plain = learner_of(num_minibatches=1), learner_of(overlap=False, num_minibatches=1)
    seen, before = [], []
    update = learner.update

    def watched(*args: Any) -> Any:
        seen.append({name: x.clone() for name, x in args[0].items()})
        before.append(learner.policy.parameters.vector.clone())
        return update(*args)

    learner.update = watched
    for _ in range(3):
        learner.iterate()
    assert learner.env_steps == 96
    first, second, third = seen
    now = learner.policy.parameters.vector.clone()
    for batch, acted in ((first, before[0]), (second, before[0]), (third, before[1])):
        learner.policy.parameters.vector.copy_(acted)
        torch.testing.assert_close(learner.agent.with_log_probs(batch)["log_probs"], batch["log_probs"])
    learner.policy.parameters.vector.copy_(now)
    rollout = plain.agent.collect(plain.envs, 0)
    assert torch.equal(plain.agent.flatten_steps(rollout.obs[:, :-1]), first["obs"])  # the first is as ever


def test_a_simulator_and_an_update_run_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    made = A2C(EnvSpec("own_envs:LessonWalk-v0"), seed=1).init(overlap=True, num_steps=10, num_envs=2)
    learner: Any = made.build_learner([made])
    learner.iterate()
    together, steps, step, update = threading.Barrier(2, timeout=600), [0], learner.envs.step, learner.update

    def simulate(*args: Any) -> Any:
        if steps[0] % 10 == 0:
            together.wait()
        steps[0] += 1
        return step(*args)

    def learn(*args: Any) -> Any:
        together.wait()  # in vain, unless a rollout begins before this update has ended
        return update(*args)

    learner.envs.step, learner.update = simulate, learn
    for _ in range(3):
        learner.iterate()
    assert steps == [30]


def test_an_error_while_collecting_is_raised() -> None:
    learner = learner_of()
    learner.iterate()
    learner.envs.playable = lambda *arguments: (_ for _ in ()).throw(RuntimeError("the simulator is gone"))
    with pytest.raises(RuntimeError, match="the simulator is gone"):
        learner.iterate()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"min_rollouts": 4, "num_minibatches": 1}, "PPO: an update that waits for whole episodes aband"),
        ({"cloning.use": True, "demonstrated_steps": 9, "normalize_obs": True}, "leave overlap or normalize_obs out"),
    ],
)
def test_contradicting_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPO("CartPole-v1").init(**unflatten({"overlap": True, **values}))


def test_off_it_is_no_part_of_a_task() -> None:
    assert PPO("CartPole-v1").init(overlap=False).uid == PPO("CartPole-v1").init().uid
    assert "collector" not in learner_of(overlap=False).live_parts
