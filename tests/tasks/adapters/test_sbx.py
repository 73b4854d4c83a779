"""Algorithms of sbx as tasks: they resume exactly, and train as by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import own_jax_models
import pytest
import sbx
import torch
from one_call import one_call_of_learn
from rekindle.tasks import load
from rekindle.tasks.adapters.model_spaces import OF_SBX
from rekindle.tasks.adapters.sb3 import SB3
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.errors import UnsupportedSpace
from rekindle.tasks.runtime import jax_programs
from rekindle.tasks.testing import ExactnessSuite

SMALL = {"policy_kwargs": '{"net_arch": [8]}', "epoch_steps": 128, "num_envs": 2, "total_steps": 384}
ON: dict[str, Any] = {**SMALL, "n_steps": 32, "n_epochs": 2, "learning_rate": 1e-2}
OFF: dict[str, Any] = {**SMALL, "learning_starts": 50, "buffer_size": 500, "train_freq": 16}
VALUES = {"PPO": ON, "DQN": {**OFF, "target_update_interval": 40}, **dict.fromkeys(OF_SBX[2:], OFF)}
DISCRETE = ("PPO", "DQN")


class SBXSuite(ExactnessSuite):
    """The suite for an algorithm of sbx."""

    env = "Pendulum-v1"
    hyperparameters: ClassVar[dict[str, Any]] = OFF


@pytest.mark.slow
class TestSBXPPO(SBXSuite):
    task = load("sbx:PPO")
    env = "CartPole-v1"
    hyperparameters: ClassVar[dict[str, Any]] = {**ON, "n_epochs": 5}
    inert = frozenset({"max_grad_norm"})


@pytest.mark.slow
class TestSBXDQN(SBXSuite):
    task = load("sbx:DQN")
    env = "CartPole-v1"
    hyperparameters: ClassVar[dict[str, Any]] = VALUES["DQN"]


@pytest.mark.slow
class TestSBXSAC(SBXSuite):
    task = load("sbx:SAC")


@pytest.mark.slow
class TestSBXTD3(SBXSuite):
    task = load("sbx:TD3")


@pytest.mark.slow
class TestSBXDDPG(SBXSuite):
    task = load("sbx:DDPG")


@pytest.mark.slow
class TestSBXTQC(SBXSuite):
    task = load("sbx:TQC")


@pytest.mark.slow
class TestSBXCrossQ(SBXSuite):
    task = load("sbx:CrossQ")


@pytest.mark.slow
class TestSBXNormalized(SBXSuite):
    task = load("sbx:SAC")
    hyperparameters: ClassVar[dict[str, Any]] = {**OFF, "normalize": "both"}


def states(model: Any) -> dict[str, Any]:
    """All that JAX holds of a model."""
    values = [*vars(model).items(), *((f"policy.{name}", x) for name, x in vars(model.policy).items())]
    trees = {name: jax.tree.leaves(x) for name, x in values if name.endswith(("state", "key"))}
    return {name: [np.asarray(leaf).tolist() for leaf in leaves] for name, leaves in trees.items()}


def test_every_algorithm_of_sbx_has_a_suite() -> None:
    suites = [suite for suite in globals().values() if isinstance(suite, type) and issubclass(suite, SBXSuite)]
    assert {suite.task.name for suite in suites if "task" in vars(suite)} == {f"sbx:{name}" for name in OF_SBX}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("PPO", {}),
    "DQN": ("DQN", {}),
    "adaptive rate": ("PPO", {"target_kl": 0.001}),
    "state-dependent noise": ("SAC", {"use_sde": True, "sde_sample_freq": 4, "ent_coef": "auto_0.1"}),
    "fixed entropy": ("SAC", {"ent_coef": 0.1, "qf_learning_rate": 1e-2, "gradient_steps": 2, "policy_delay": 3}),
    "dropout": ("SAC", {"policy_kwargs": '{"net_arch": [8], "dropout_rate": 0.1, "layer_norm": true}'}),
    "resets": ("SAC", {"param_resets": [100, 200]}),
    "several steps": ("TQC", {"n_steps": 3}),
    "simba": ("SAC", {"policy": "SimbaPolicy"}),
    **{name: (name, {}) for name in OF_SBX[2:]},
}


@pytest.mark.slow
def test_a_model_of_jax_that_goes_back_repeats_its_training() -> None:
    task = load("sbx:PPO")("CartPole-v1", seed=3).init(**{**ON, "n_epochs": 1})
    task.fit(1)
    before, drawn = task.state_dict(), task.returns(2, deterministic=False)
    task.fit(2)
    after = task.digest
    task.load_state_dict(before)
    assert task.returns(2, deterministic=False) == drawn
    task.fit(2)
    assert task.digest == after


@pytest.mark.parametrize(
    "variant", [name if name == "DQN" else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS]
)
def test_a_model_of_jax_that_resumes_is_that_of_one_call_of_learn(variant: str) -> None:
    name, changes = VARIANTS[variant]
    values, env = {**VALUES[name], **changes}, "CartPole-v1" if name in DISCRETE else "Pendulum-v1"
    first, resumed = (load(f"sbx:{name}")(env, seed=3).init(**values) for _ in range(2))
    first.fit(1)
    resumed.load_state_dict(first.state_dict())
    assert resumed.digest == first.digest
    resumed.fit(3)
    alone = one_call_of_learn(getattr(sbx, name), resumed, 3 * values["epoch_steps"])
    model = resumed.member_ref().learner.model
    assert model.num_timesteps == alone.num_timesteps >= 3 * values["epoch_steps"]
    assert states(model).keys() >= {"key"}
    assert states(model) == states(alone)
    assert not all(map(torch.equal, resumed.parameters(), first.parameters()))


@pytest.mark.parametrize(
    "name", [name if name == "CrossQ" else pytest.param(name, marks=pytest.mark.slow) for name in OF_SBX]
)
def test_a_warm_started_model_of_jax_acts_as_its_source(name: str) -> None:
    env, values = "CartPole-v1" if name in DISCRETE else "Pendulum-v1", {**VALUES[name], "normalize": "obs"}
    source = load(f"sbx:{name}")(env, seed=1).init(**values)
    source.fit(1)
    warm, again = (load(f"sbx:{name}")(env, seed=2, warm_start=source).init(**values) for _ in range(2))
    assert difference(warm.policy(), source.policy()) == []
    assert difference(load(f"sbx:{name}")(env, seed=2).init(**values).policy(), source.policy()) != []
    assert warm.returns(2) == source.returns(2)
    for state in vars(warm.member_ref().learner.model.policy).values():
        if hasattr(state, "target_params"):
            assert all(map(np.array_equal, *map(jax.tree.leaves, (state.target_params, state.params))))
    warm.fit(1)
    again.load_state_dict(warm.state_dict())
    for task in (warm, again):
        task.fit(2)
    assert (again.uid, again.digest) == (warm.uid, warm.digest)


@pytest.mark.slow
def test_a_class_of_jax_of_the_user_resumes_exactly() -> None:
    task = SB3(own_jax_models.Averaged)
    assert task.name == "sbx:own_jax_models:Averaged"
    whole, first, resumed = (task("Pendulum-v1").init(**OFF) for _ in range(3))
    whole.fit(2)
    first.fit(1)
    resumed.load_state_dict(first.state_dict())
    resumed.fit(2)
    assert resumed.digest == whole.digest
    assert SB3(sbx.SAC).name == "sbx:SAC"


@pytest.mark.slow
@pytest.mark.parametrize(("begins", "threads"), [("load('sbx:PPO')", "1"), ("jax.devices()", "3")])
def test_jax_has_one_thread_unless_it_runs_before(begins: str, threads: str) -> None:
    code = (
        "import jax; from rekindle.tasks import load; from rekindle.tasks.runtime.jax_threads import running; "
        f"{begins}; assert running(); print(load('sbx:PPO').learner.code['threads of JAX'])"
    )
    environment = {**os.environ, "NPROC": "3"}
    shown = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == [threads]


def test_unknown_algorithms_of_sbx_and_unsuitable_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sbx: has PPO, DQN, .* but got 'A2C'"):
        load("sbx:A2C")
    with pytest.raises(ValueError, match=r"got 'DroQ'; it is SAC with dropout, sbx:SAC with --set gradient_steps=20"):
        load("sbx:DroQ")
    with pytest.raises(ValueError, match="sb3:own_jax_models:Averaged derives from an algorithm of sbx: write sbx:own"):
        load("sb3:own_jax_models:Averaged")
    with pytest.raises(UnsupportedSpace, match="sbx:SAC cannot act in CartPole-v1: The algorithm only supports"):
        load("sbx:SAC")("CartPole-v1").init().probe()


@pytest.mark.parametrize("most", ["100", None])
def test_programs_of_jax_are_forgotten_where_they_take_half_of_the_maps(
    most: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if most is not None:
        (tmp_path / "most").write_text(f"{most}\n")
        monkeypatch.setattr(jax_programs, "MOST_MAPS", tmp_path / "most")
    task = load("sbx:PPO")("CartPole-v1", seed=3).init(**{**ON, "n_epochs": 1})
    program = jax.jit(lambda x: x + 1)
    program(1.0)
    task.fit(1)
    assert program._cache_size() == (most is None)
    first, again = task.digest, load("sbx:PPO")("CartPole-v1", seed=3).init(**{**ON, "n_epochs": 1})
    again.fit(1)
    assert again.digest == first
