"""Warm starts: what is copied, what is initialized, and refusals before any training."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import nursery
import pytest
import tiny
import torch
from rekindle.spaces import flatten, unflatten
from rekindle.studies.storage.store import Store
from rekindle.tasks import DQN, PPO, SAC, SVPG, Cohort, StateMismatch, Task
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.errors import NotInitialized
from rekindle.tasks.testing import VariantSuite
from rekindle.tasks.warm_start import WarmStart, policy_in, policy_tree
from safetensors import safe_open

SMALL: dict[str, Any] = unflatten(tiny.ROLLOUTS)
OFF: dict[str, Any] = {
    "buffer_size": 512,
    "learning_starts": 64,
    "batch_size": 16,
    "epoch_steps": 128,
    "num_envs": 2,
    "model": {"width": 16, "layers": 1},
}


def make(warm_start: Any = None, seed: int = 1, storage: Store | None = None, **changes: Any) -> PPO:
    return PPO("CartPole-v1", seed=seed, storage=storage, warm_start=warm_start).init(**{**SMALL, **changes})


def trained(epochs: int = 2, seed: int = 9, **changes: Any) -> PPO:
    task = make(seed=seed, **changes)
    task.fit(epochs)
    return task


def vector(task: Task) -> np.ndarray:
    return np.concatenate([tensor.numpy().ravel() for tensor in task.parameters()])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        yield store


# What it can be taken from


@pytest.fixture(scope="module")
def source() -> PPO:
    return trained()


def test_every_form_of_a_source_is_the_same_start(source: PPO, tmp_path: Path) -> None:
    np.savez(tmp_path / "names.npz", **{name: tensor.numpy() for name, tensor in source.model.items()})
    np.savez(tmp_path / "vector.npz", vector(source))
    np.save(tmp_path / "vector.npy", vector(source).astype(np.float64))
    source.save_policy(tmp_path / "policy.safetensors")
    sources = [
        source,
        source.policy(),
        source.model,
        source.parameters(),
        source.state_dict(),
        vector(source),
        torch.from_numpy(vector(source)),
        tmp_path / "names.npz",
        str(tmp_path / "vector.npz"),
        tmp_path / "vector.npy",
        tmp_path / "policy.safetensors",
        WarmStart(source, name="mine"),
    ]
    starts = [make(source) for source in sources]
    assert len({task.uid for task in starts}) == 1
    assert len({task.digest for task in starts}) == 1
    assert difference(starts[0].model, source.model) == []


def test_a_stored_checkpoint_is_a_source(store: Store, source: PPO) -> None:
    stored = make(seed=9, storage=store)
    stored.fit(2)
    assert make(store.load(stored.uid)).uid == make(source).uid


def test_a_task_that_was_warm_started_is_a_source(source: PPO) -> None:
    first = make(source)
    first.fit(1)
    assert difference(make(first.state_dict(), seed=4).model, first.model) == []


# What is taken over, and what begins anew


def test_a_warm_start_copies_weights_and_nothing_else(source: PPO) -> None:
    warm, cold = make(source), make()
    assert (warm.epochs, warm.env_steps, warm.resumed, warm.bad) == (0, 0, False, None)
    changed = difference(warm.state_dict(), cold.state_dict())
    assert changed == ["identity/start", "learner/policy/vector"]
    assert warm.load_report is not None
    assert warm.load_report.loaded == list(source.model)
    assert str(warm.load_report) == f"{len(source.model)} loaded"


def test_statistics_of_observations_are_part_of_a_policy_and_those_of_rewards_are_not() -> None:
    given = trained(normalize_obs=True, normalize_reward=True)
    warm = make(given, normalize_obs=True, normalize_reward=True)
    fresh = make(normalize_obs=True, normalize_reward=True)
    assert difference(warm.policy(), given.policy()) == []
    assert warm.evaluate(3) == given.evaluate(3)
    changed = {
        path.split("/")[1]
        for path in difference(warm.state_dict()["learner"], fresh.state_dict()["learner"])
        for path in [f"/{path}"]
    }
    assert changed == {"policy", "obs_normalizer"}


def test_target_networks_are_copies_of_what_was_taken() -> None:
    dqn = DQN("CartPole-v1", seed=9).init(**OFF)
    dqn.fit(2)
    warm = DQN("CartPole-v1", seed=1, warm_start=dqn).init(**OFF)
    state = warm.state_dict()["learner"]
    assert torch.equal(state["policy"]["target"], state["policy"]["vector"])
    assert (state["progress"]["updates"], dqn.state_dict()["learner"]["progress"]["updates"] > 0) == (0, True)
    sac = SAC("Pendulum-v1", seed=9).init(**OFF)
    sac.fit(2)
    soft = SAC("Pendulum-v1", seed=1, warm_start=sac).init(**OFF).state_dict()["learner"]
    assert torch.equal(soft["policy"]["target"], soft["policy"]["critic"])
    assert torch.equal(soft["policy"]["actor"], sac.state_dict()["learner"]["policy"]["actor"])
    fresh = SAC("Pendulum-v1", seed=1).init(**OFF).state_dict()["learner"]
    assert difference(soft["coefficients"], fresh["coefficients"]) == []


def test_particles_are_taken_over_each_to_its_place() -> None:
    values = {name: value for name, value in SMALL.items() if name not in ("num_minibatches", "update_epochs")}
    given = SVPG("CartPole-v1", seed=9).init(**values, num_particles=2)
    given.fit(1)
    warm = SVPG("CartPole-v1", seed=1, warm_start=given).init(**values, num_particles=2)
    assert difference(warm.model, given.model) == []
    assert "1.actor.0.weight" in warm.model


def test_a_policy_of_another_environment_of_the_same_form_can_be_taken() -> None:
    given = trained()
    spec = {"id": "CartPole-v1", "max_episode_steps": 50}
    warm = PPO(spec, seed=1, warm_start=given).init(**SMALL)
    assert difference(warm.model, given.model) == []


# Exactness


class Warm(VariantSuite):
    """The suite on tasks that start with another one's policy."""

    policy: ClassVar[Any]

    def make(self, seed: int = 3, **changes: Any) -> Task:
        if "policy" not in vars(type(self)):
            given = super().make(77)
            given.fit(1)
            type(self).policy = given.policy()
        values = unflatten({**flatten(self.hyperparameters), **flatten(changes)})
        return self.task(self.env, seed=seed, warm_start=self.policy, device=self.device).init(**values)


class TestWarmPPO(Warm):
    task = PPO
    hyperparameters: ClassVar = {
        "epoch_steps": 128,
        "num_steps": 16,
        "num_envs": 4,
        "update_epochs": 2,
        "num_minibatches": 4,
        "optimizer.lr": 0.03,
        "clip_coef": 0.1,
        "max_grad_norm": 0.1,
        "normalize_obs": True,
    }
    inert = frozenset({"model.std_init"})


@pytest.mark.slow
class TestWarmDQN(Warm):
    task = DQN
    hyperparameters: ClassVar = tiny.DQN


@pytest.mark.slow
class TestWarmSAC(Warm):
    task = SAC
    env = "Pendulum-v1"
    hyperparameters: ClassVar = tiny.SAC
    inert = frozenset({"entropy.alpha", "entropy.choice_target"})


@pytest.mark.parametrize("algorithm", [PPO, SAC])
def test_a_memory_is_taken_over_and_begins_empty(algorithm: type[Task]) -> None:
    values = {**SMALL, "num_minibatches": 1} if algorithm is PPO else {**OFF, "batch_size": 32, "learning_starts": 96}
    values = {**values, "model": {"width": 16, "layers": 1, "memory": "lstm"}}
    if algorithm is SAC:
        values = {**values, "num_steps": 4, "model.sequence_length": 8, "model.burn_in": 2}
    env = "CartPole-v1" if algorithm is PPO else "Pendulum-v1"
    given = algorithm(env, seed=9).init(**values)
    given.fit(1)
    together = [algorithm(env, seed=seed, warm_start=given).init(**values) for seed in range(2)]
    assert difference(together[0].model, given.model) == []
    assert any("memory" in name for name in given.model)
    Cohort(together).fit(2)
    alone = algorithm(env, seed=1, warm_start=given).init(**values)
    alone.fit(1)
    again = algorithm(env, seed=1).init(start=alone.identity.start, **values)
    again.load_state_dict(alone.state_dict())
    again.fit(2)
    assert difference(again.state_dict(), together[1].state_dict()) == []


def test_the_identity_has_the_digest_of_what_was_taken(source: PPO) -> None:
    cold, warm, other = make(), make(source), make(trained(seed=8))
    assert len({cold.uid, warm.uid, other.uid}) == 3
    assert warm.identity.to_json() == {**cold.identity.to_json(), "start": warm.identity.start}
    assert warm.identity.start != other.identity.start
    assert make(source, seed=2).identity.start == warm.identity.start


def test_members_of_a_cohort_start_each_with_their_own(source: PPO) -> None:
    starts = [None, source, trained(seed=8), source]
    together = [make(start, seed) for seed, start in enumerate(starts)]
    Cohort(together).fit(2)
    for seed, start in enumerate(starts):
        alone = make(start, seed)
        alone.fit(2)
        assert difference(alone.state_dict(), together[seed].state_dict()) == []
        assert alone.history == together[seed].history


# With a storage


def test_the_source_is_needed_once(store: Store, tmp_path: Path) -> None:
    whole = make(trained())
    whole.fit(3)
    file = trained().save_policy(tmp_path / "policy.safetensors")
    first = make(file, storage=store)
    digest = first.identity.start
    first.release()  # before any training
    file.unlink()
    second = PPO("CartPole-v1", seed=1, storage=store).init(start=digest, **SMALL)
    assert (second.uid, second.epochs, second.resumed) == (whole.uid, 0, False)
    second.fit(1)
    second.finish()
    third = PPO("CartPole-v1", seed=1, storage=store).init(start=digest, **SMALL)
    assert third.resumed
    third.fit(3)
    assert third.digest == whole.digest
    assert store.checkpoints(third.uid)[0].epochs == 0  # what it started from stays


def test_the_same_task_again_carries_on(store: Store, source: PPO) -> None:
    first = make(source, storage=store)
    first.fit(1)
    first.finish()
    again = make(source, storage=store)
    assert (again.resumed, again.epochs) == (True, 1)
    assert len([event for event in store.events(again.uid) if event.kind == "branch"]) == 1


def test_another_process_carries_on_without_the_source(tmp_path: Path, source: PPO) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    with Store(url) as store:
        first = make(source, storage=store)
        first.fit(1)
        digest = first.identity.start
        first.finish()
    code = f"""
from rekindle import PPO, Store
task = PPO("CartPole-v1", seed=1, storage=Store({url!r})).init(start={digest!r}, **{SMALL!r})
task.fit(3)
print(task.resumed, task.digest)
"""
    result = nursery.run([sys.executable, "-c", code])
    whole = make(source)
    whole.fit(3)
    assert result.stdout.split() == ["True", whole.digest]


def test_a_start_that_nobody_brings_is_asked_for(source: PPO) -> None:
    task = PPO("CartPole-v1", seed=1).init(start=make(source).identity.start, **SMALL)
    with pytest.raises(NotInitialized, match=r"which is missing; .* or give warm_start=\.\.\. if it is a policy"):
        task.fit(1)


def test_two_starts_at_once_are_refused(source: PPO) -> None:
    digest = make(source).identity.start
    assert PPO("CartPole-v1", seed=1, warm_start=source).init(start=digest, **SMALL).uid == make(source).uid
    with pytest.raises(StateMismatch, match=r"init was told to start from 000000000000, but warm_start is \w{12}"):
        PPO("CartPole-v1", seed=1, warm_start=source).init(start="0" * 64, **SMALL)


# What does not fit


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actor.0.weight": np.zeros((5, 16), np.float32)}, r"mismatched actor\.0\.weight: \(5, 16\), not \(4, 16\)"),
        ({"actor.9.weight": np.zeros(3, np.float32)}, r"unexpected actor\.9\.weight"),
        ({"critic.1.bias": None}, r"missing critic\.1\.bias"),
        ({"critic.1.bias": np.full((1, 1), np.nan, np.float32)}, r"critic\.1\.bias has a number that is not finite"),
        ({"critic.1.bias": np.zeros((1, 1), np.int64)}, r"critic\.1\.bias has the type torch\.int64"),
        ({"critic.1.bias": "zero"}, r"critic\.1\.bias is none|has the type"),
    ],
)
def test_a_misfit_is_named_before_anything_is_created(
    store: Store, source: PPO, change: dict[str, Any], message: str
) -> None:
    policy: dict[str, Any] = {**source.model, **change}
    policy = {name: value for name, value in policy.items() if value is not None}
    with pytest.raises(StateMismatch, match=message):
        make(policy, storage=store)
    assert store.tasks() == []


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (np.zeros(10), r"a parameter vector must have the shape \(211,\), .* but got \(10,\)"),
        (np.zeros((211, 1)), r"must have the shape \(211,\), .* but got \(211, 1\)"),
        ([np.zeros(3)] * 3, r"a list of parameters must have 8, .* but got 3"),
        ({}, "nothing fits: missing"),
        ({"w": np.zeros(3)}, "nothing fits: unexpected w; missing"),
        (3.5, "a warm start is taken from a task, a state, a policy, a vector or a file, but got a float"),
        ("nowhere.npz", r"needs its source, but there is no file .*nowhere\.npz; .* init\(start=\.\.\.\)"),
        ("policy.pkl", r"a file of the form \.npz, \.npy, \.safetensors, \.zip, but got .*policy\.pkl"),
    ],
)
def test_a_source_of_another_form_is_refused(start: Any, message: str) -> None:
    with pytest.raises(StateMismatch, match=message):
        make(start)


def test_equal_policies_are_equal_files(source: PPO, tmp_path: Path) -> None:
    files = [source.save_policy(tmp_path / f"{i}.safetensors") for i in range(6)]
    assert len({file.read_bytes() for file in files}) == 1
    with safe_open(files[0], "pt") as opened:
        assert opened.metadata()["task"] == "ppo"
        assert all(torch.equal(opened.get_tensor(name), tensor) for name, tensor in source.policy().items())


def test_a_policy_of_another_format_is_refused(source: PPO) -> None:
    tree = policy_tree(source.policy())
    assert policy_in(tree).keys() == source.policy().keys()
    for wrong in ({"format": 99}, {"policy": [1.0]}):
        with pytest.raises(
            StateMismatch, match=r"a policy must have format \d+, but got .*; use the Rekindle that wrote"
        ):
            policy_in({**tree, **wrong})


@pytest.mark.parametrize("name", ["policy.npz", "policy.npy", "policy.safetensors"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    for data in (b"\x80\x04no file", b"PK\x03\x04 no archive", b""):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(StateMismatch, match=rf"{name} must be a whole \.\w+ file of arrays, but: "):
            make(tmp_path / name)


def test_no_file_can_run_code(tmp_path: Path) -> None:
    np.save(tmp_path / "vector.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(StateMismatch, match="Object arrays cannot be loaded"):
        make(tmp_path / "vector.npy")


def test_a_wider_network_is_refused_and_a_clean_try_follows(source: PPO) -> None:
    task = PPO("CartPole-v1", seed=1, warm_start=source)
    with pytest.raises(StateMismatch, match=r"give the task the hyperparameters of the source's networks, or load"):
        task.init(**{**SMALL, "model": {"width": 32, "layers": 1}})
    assert (task.uid, task.hyperparameters, task.ref) == ("", None, None)
    assert task.init(**SMALL).uid == make(source).uid


def test_a_partial_fit_is_loaded_on_request_and_reported(source: PPO) -> None:
    policy = {**source.model, "extra": torch.zeros(1), "critic.0.weight": torch.zeros(2, 2)}
    del policy["critic.1.bias"]
    warm = make(WarmStart(policy, partial=True))
    assert warm.load_report is not None
    assert warm.load_report.mismatched == ["critic.0.weight: (2, 2), not (4, 16)"]
    assert (warm.load_report.unexpected, warm.load_report.missing) == (["extra"], ["critic.1.bias"])
    assert str(warm.load_report) == "6 loaded, 1 mismatched, 1 unexpected, 1 missing"
    cold = make()
    for name, tensor in warm.model.items():
        assert torch.equal(tensor, (source if name in warm.load_report.loaded else cold).model[name])
    only = {name: policy[name] for name in warm.load_report.loaded}
    assert make(WarmStart(only, partial=True)).uid == warm.uid  # the same start, however it was come by


def test_a_loaded_policy_really_acts(source: PPO) -> None:
    assert make(source).evaluate(5) == source.evaluate(5)
