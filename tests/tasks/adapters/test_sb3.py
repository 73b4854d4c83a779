"""Algorithms of Stable-Baselines3 as tasks: they resume exactly, and train as by themselves."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import own_models
import psutil
import pytest
import sb3_contrib
import stable_baselines3
import torch
from one_call import one_call_of_learn
from rekindle import Store
from rekindle.studies.workers.goal_tests import play
from rekindle.tasks import EnvSpec, load
from rekindle.tasks.adapters.model_spaces import OF_SBX, SPACES
from rekindle.tasks.adapters.sb3 import SB3
from rekindle.tasks.checkpoint.state import difference
from rekindle.tasks.deployment.exporting import ExportError
from rekindle.tasks.errors import Diverged, NotData, UnsupportedSpace
from rekindle.tasks.runtime.fingerprint import InexactWarning
from rekindle.tasks.testing import ExactnessSuite
from support_path import SUPPORT

ON: dict[str, Any] = {"epoch_steps": 128, "num_envs": 2, "n_steps": 32, "total_steps": 384}
OFF: dict[str, Any] = {
    "epoch_steps": 128,
    "num_envs": 2,
    "learning_starts": 50,
    "buffer_size": 500,
    "train_freq": 16,
    "total_steps": 384,
}
SMALL: dict[str, tuple[str, dict[str, Any]]] = {
    "PPO": ("CartPole-v1", {**ON, "n_epochs": 5, "learning_rate": 1e-2}),
    "A2C": ("CartPole-v1", {**ON, "n_steps": 8}),
    "DQN": ("CartPole-v1", {**OFF, "target_update_interval": 40, "train_freq": 4}),
    "SAC": ("Pendulum-v1", OFF),
    "TD3": ("Pendulum-v1", OFF),
    "DDPG": ("Pendulum-v1", OFF),
    "TQC": ("Pendulum-v1", OFF),
    "CrossQ": ("Pendulum-v1", OFF),
    "QRDQN": ("CartPole-v1", {**OFF, "target_update_interval": 40, "train_freq": 4}),
    "TRPO": ("CartPole-v1", {**ON, "batch_size": 32}),
    "ARS": ("Pendulum-v1", {"epoch_steps": 3200, "num_envs": 2, "n_delta": 4, "total_steps": 9600}),
    "RecurrentPPO": ("CartPole-v1", {**ON, "n_epochs": 5, "learning_rate": 1e-2}),
    "MaskablePPO": ("mask_envs:Forbidding-v0", {**ON, "n_epochs": 5, "learning_rate": 1e-2}),
}


class TestPPO(ExactnessSuite):
    task = load("sb3:PPO")
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["PPO"][1]
    inert = frozenset({"max_grad_norm"})


class TestSAC(ExactnessSuite):
    task = load("sb3:SAC")
    env = "Pendulum-v1"
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["SAC"][1]


@pytest.mark.slow
class TestA2C(ExactnessSuite):
    task = load("sb3:A2C")
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["A2C"][1]
    inert = frozenset({"max_grad_norm"})


@pytest.mark.slow
class TestDQN(ExactnessSuite):
    task = load("sb3:DQN")
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["DQN"][1]


@pytest.mark.slow
class TestTD3(ExactnessSuite):
    task = load("sb3:TD3")
    env = "Pendulum-v1"
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["TD3"][1]


@pytest.mark.slow
class TestDDPG(ExactnessSuite):
    task = load("sb3:DDPG")
    env = "Pendulum-v1"
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["DDPG"][1]


@pytest.mark.slow
class TestTQC(ExactnessSuite):
    task = load("sb3:TQC")
    env = "MountainCarContinuous-v0"  # with small rewards: the loss is linear in large errors, whatever gamma is
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["TQC"][1]


@pytest.mark.slow
class TestCrossQ(ExactnessSuite):
    task = load("sb3:CrossQ")
    env = "Pendulum-v1"
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["CrossQ"][1]


@pytest.mark.slow
class TestQRDQN(ExactnessSuite):
    task = load("sb3:QRDQN")
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["QRDQN"][1]


@pytest.mark.slow
class TestTRPO(ExactnessSuite):
    task = load("sb3:TRPO")
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["TRPO"][1]


@pytest.mark.slow
class TestARS(ExactnessSuite):
    task = load("sb3:ARS")
    env = "Pendulum-v1"
    test_another_seed_is_another_result = None  # its policy begins with zeros
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["ARS"][1]


@pytest.mark.slow
class TestRecurrentPPO(ExactnessSuite):
    task = load("sb3:RecurrentPPO")
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["RecurrentPPO"][1]
    inert = frozenset({"max_grad_norm"})


@pytest.mark.slow
class TestMaskablePPO(ExactnessSuite):
    task = load("sb3:MaskablePPO")
    env = "mask_envs:Forbidding-v0"
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["MaskablePPO"][1]
    inert = frozenset({"max_grad_norm"})


@pytest.mark.slow
class TestNormalized(ExactnessSuite):
    task = load("sb3:SAC")
    env = "Pendulum-v1"
    hyperparameters: ClassVar[dict[str, Any]] = {**SMALL["SAC"][1], "normalize": "both"}


class TestAClassOfTheUser(ExactnessSuite):
    task = SB3(own_models.Wide)
    hyperparameters: ClassVar[dict[str, Any]] = SMALL["A2C"][1] | {"normalize": "obs"}
    inert = frozenset({"max_grad_norm"})


@pytest.mark.parametrize(
    "name",
    ["PPO, normalized", "SAC", *(pytest.param(name, marks=pytest.mark.slow) for name in SPACES if name != "SAC")],
)
def test_parameters_are_those_of_one_call_of_learn(name: str) -> None:
    name, _, normalized = name.partition(", ")
    env, values = SMALL[name]
    values = {**values, "normalize": "both"} if normalized else values
    task = load(f"sb3:{name}")(env, seed=3).init(**values)
    task.fit(1)
    task.fit(3)
    algorithm = getattr(stable_baselines3, name, None) or getattr(sb3_contrib, name)
    alone = one_call_of_learn(algorithm, task, 3 * values["epoch_steps"])
    model = task.member_ref().learner.model
    assert model.num_timesteps == alone.num_timesteps >= 3 * values["epoch_steps"]
    for parameter, plain in zip(model.policy.parameters(), alone.policy.parameters(), strict=True):
        assert torch.equal(parameter, plain)


@pytest.mark.parametrize(("env", "exact"), [("Repeats", True), ("Late", False)])
@pytest.mark.parametrize("name", ["PPO", pytest.param("SAC", marks=pytest.mark.slow)])
def test_models_continue_in_new_episodes(name: str, env: str, exact: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    values = {"epoch_steps": 256, "batch_size": 32} | ({"n_steps": 64} if name == "PPO" else {"learning_starts": 250})
    tasks = [load(f"sb3:{name}")(f"faulty_envs:faults/{env}-v0").init(**values) for _ in range(3)]
    whole, first, resumed = tasks
    whole.fit(2)
    first.fit(1)
    with nullcontext() if exact else pytest.warns(InexactWarning, match="do"):
        resumed.load_state_dict(first.state_dict())
    resumed.fit(2)
    assert (resumed.digest == whole.digest, resumed.inexact == []) == (exact, exact)
    assert resumed.env_steps == 512


def soak(monkeypatch: pytest.MonkeyPatch, see: str, faults: dict[str, int]) -> EnvSpec:
    monkeypatch.syspath_prepend(SUPPORT)
    return EnvSpec("faulty_envs:faults/Soak-v0", {"see": see, "do": "box", "length": 9, "faults": faults})


@pytest.mark.parametrize("name", ["sb3:PPO", "sb3:TD3", "sb3:ARS"])
def test_images_too_small_for_convolutions_are_flattened(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = load(name)(soak(monkeypatch, "board", {})).init(epoch_steps=128)
    task.fit(1)
    assert task.env_steps >= 128


def test_rewards_that_are_no_numbers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task = load("sb3:PPO")(soak(monkeypatch, "box", {"nan": 0})).init(epoch_steps=128, n_steps=64, batch_size=32)
    with pytest.raises(Diverged, match="faults/Soak-v0"):
        task.fit(2)


def test_the_tutorials_table_has_every_algorithm_and_each_has_a_suite() -> None:
    page = Path(__file__).parents[3] / "docs" / "tutorials" / "stable-baselines3.md"
    rows = "".join(line for line in page.read_text().splitlines() if line.startswith("|"))
    names = {f"sb3:{name}" for name in SPACES}
    assert {*re.findall(r"`(\w+:\w+)`", rows)} == names | {f"sbx:{name}" for name in OF_SBX}
    suites = [suite for suite in globals().values() if isinstance(suite, type) and issubclass(suite, ExactnessSuite)]
    assert {suite.task.name for suite in suites if "task" in vars(suite)} >= names


def test_unknown_algorithms_and_unsuitable_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sb3: has PPO, A2C, DQN, .* but got 'PPOO'; did you mean PPO"):
        load("sb3:PPOO")
    with pytest.raises(UnsupportedSpace, match="sb3:SAC cannot act in CartPole-v1: The algorithm only supports"):
        load("sb3:SAC")("CartPole-v1").init().probe()
    with pytest.raises(UnsupportedSpace, match="sb3:MaskablePPO needs an environment that tells an action mask"):
        load("sb3:MaskablePPO")("CartPole-v1").init().probe()
    with pytest.raises(ValueError, match="sb3:own_models:nothing must be a class that derives from an algorithm"):
        load("sb3:own_models:nothing")
    with pytest.raises(ValueError, match="sb3:own_models:Missing cannot be imported"):
        load("sb3:own_models:Missing")
    with pytest.raises(ValueError, match=r"sb3_contrib:TQC: its algorithms are tasks by their class names .* sb3:TQC"):
        load("sb3_contrib:TQC")


def test_advice_about_the_environment_is_passed_on() -> None:
    task = load("sb3:PPO")("Taxi-v4").init()
    task.member_ref()
    assert [text.partition(";")[0] for text in task.advice] == ["Taxi-v4: info has an action_mask, which is not obeyed"]


def test_the_environments_of_a_refused_model_are_closed() -> None:
    children, refusals = list[set[psutil.Process]](), list[Any]()
    for _ in range(2):  # the first one may start helpers, which stay
        with pytest.raises(UnsupportedSpace, match="cannot act in FrozenLake-v1") as refusal:
            load("sb3:SAC")("FrozenLake-v1", env_processes=2).init(num_envs=2).probe()
        refusals.append(refusal)  # it holds the learner, which would keep processes until it is gone
        children.append({*psutil.Process().children()})
    assert children[1] <= children[0]


def test_no_forbidden_action_is_taken_in_evaluation() -> None:
    task = load("sb3:MaskablePPO")("mask_envs:Forbidding-v0").init(**SMALL["MaskablePPO"][1])
    task.fit(1)
    assert np.isfinite(task.evaluate())


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_episodes_are_those_of_the_seed_and_change_no_state(name: str, tmp_path: Path) -> None:
    task = load(f"sb3:{name}")("CartPole-v1").init(**SMALL[name][1])
    task.fit(1)
    digest, generator = task.digest, np.random.get_state()[1].copy()
    drawn = task.returns(4, deterministic=False)
    assert (drawn, task.returns(4, deterministic=False)) == (task.returns(4, deterministic=False), drawn)
    assert len({*task.returns(8, deterministic=False, seed=1), *drawn}) > 2
    assert task.evaluate(4) == np.mean(task.returns(4))
    assert task.returns(4, seed=1) != task.returns(4)
    seen = np.linspace(-0.1, 0.1, 12, dtype=np.float32).reshape(3, 4)
    greedy, _ = task.member_ref().learner.model.predict(seen, deterministic=True)
    assert [*task.predict(seen)[0]] == [*greedy] == [task.act(row) for row in seen]
    assert {*task.predict(seen, deterministic=False)[0]} <= {0, 1}
    with pytest.raises(ExportError, match=f"sb3:{name} is a model of another library; export it as .safetensors"):
        task.export_policy(tmp_path / "policy.pt")
    assert task.digest == digest
    assert (np.random.get_state()[1] == generator).all()


def test_episodes_and_trainings_are_recorded_as_demonstrations(tmp_path: Path) -> None:
    task = load("sb3:SAC")("Pendulum-v1").init(**SMALL["SAC"][1])
    recorder = task.recorder()
    task.fit(1)
    assert recorder.demonstrations().steps == task.member_ref().learner.env_steps
    shown = task.record(2)
    assert shown.begins.nonzero()[0].tolist() == [0, 200]
    np.testing.assert_allclose([task.act(obs) for obs in shown.observations[:9]], shown.actions[:9], rtol=1e-4)
    file = shown.save(tmp_path / "demo.npz")
    pupil = load("a2c")("Pendulum-v1", demonstrations=file).init(cloning={"use": True}, epoch_steps=64)
    pupil.fit(1)
    assert np.isfinite(pupil.metrics["cloning_loss"])


@pytest.mark.parametrize(("name", "normalize"), [("A2C", "obs"), ("CrossQ", "none")])
def test_a_warm_started_model_acts_as_its_source(name: str, normalize: str, tmp_path: Path) -> None:
    values = {**SMALL[name][1], "normalize": normalize}
    source = load(f"sb3:{name}")("Pendulum-v1", seed=1).init(**values)
    source.fit(1)
    file = source.save_policy(tmp_path / "policy.safetensors")
    warm = load(f"sb3:{name}")("Pendulum-v1", seed=2, warm_start=file).init(**values)
    assert difference(warm.policy(), source.policy()) == []
    assert warm.returns(2) == source.returns(2) != load(f"sb3:{name}")("Pendulum-v1", seed=2).init(**values).returns(2)
    warm.fit(1)
    assert difference(warm.policy(), source.policy()) != []


def test_the_goal_of_a_study_is_confirmed_by_different_episodes() -> None:
    task = load("sb3:PPO")("CartPole-v1").init(**SMALL["PPO"][1])
    task.fit(1)
    result, _ = play(lambda episodes, seed: task.returns(episodes, seed=seed), 10.0, 8.0, 1)
    assert len({*result}) > 3


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_metrics_count_the_episodes_of_each_epoch_also_after_resuming(name: str, tmp_path: Path) -> None:
    make = partial(load(f"sb3:{name}"), "CartPole-v1", seed=3)
    (whole := make().init(**SMALL[name][1])).fit(3)
    rows = [row for _, row in whole.history]
    assert all(row["episodes"] >= 1 and row["episode_return"] == row["episode_length"] for row in rows)
    learner = whole.member_ref().learner
    unfinished = learner.task_envs.lengths.sum()
    assert sum(row["episodes"] * row["episode_length"] for row in rows) + unfinished == pytest.approx(learner.env_steps)
    assert rows[0]["recent_return"] == rows[0]["episode_return"]
    every = sum(row["episodes"] * row["episode_return"] for row in rows) / sum(row["episodes"] for row in rows)
    assert rows[2]["recent_return"] == pytest.approx(every)  # fewer than 100
    with Store(f"sqlite:///{tmp_path}/tasks.db") as store:
        for epochs in (1, 3):
            task = make(storage=store).init(**SMALL[name][1])
            task.fit(epochs)
        assert task.resumed
        assert store.metrics(task.uid) == whole.history


@pytest.mark.parametrize("name", ["sb3:PPO", "sb3:DQN", "sbx:PPO"])
def test_metrics_have_info_and_parameters_of_the_environment_also_after_resuming(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    env = EnvSpec("own_envs:Search-v0", parameters={"wind": 0.5}, info={"count.steps": "max", "right": "last"})
    make = partial(load(name), env, seed=3)
    values = {**SMALL[name.partition(":")[2]][1], "num_envs": 1}
    (whole := make().init(**values)).fit(3)
    for _, row in whole.history:
        assert row["info.count.steps"] == row["episode_length"]
        assert 0 < row["info.right"] < 1
        assert row["parameter.wind"] == 0.5
    with Store(f"sqlite:///{tmp_path}/tasks.db") as store:
        for epochs in (1, 3):
            make(storage=store).init(**values).fit(epochs)
        assert store.metrics(whole.uid) == whole.history


@pytest.mark.parametrize("name", ["sb3:PPO", "sbx:PPO"])
def test_choices_on_two_axes_are_learned_as_those_in_a_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    grid, row = (load(name)(EnvSpec("own_envs:GridWalk-v0", {"flat": flat})).init(**SMALL["PPO"][1]) for flat in (0, 1))
    for task in (grid, row):
        task.fit(1)
    ref = grid.member_ref()
    assert difference(ref.learner.policy_views(0), row.member_ref().learner.policy_views(0)) == []
    assert grid.metrics == row.metrics
    obs = np.float32([0.3, -0.8])
    assert grid.act(obs).tolist() == row.act(obs).reshape(2, 3).tolist()
    bits = load(name)("own_envs:BitsWalk-v0").init(**SMALL["PPO"][1])
    assert bits.act(obs).shape == (2, 2)


def test_a_model_class_with_an_environment_is_a_task() -> None:
    task = SB3(own_models.Wide, "CartPole-v1", seed=2, n_steps=16)
    assert (task.seed, task.init().hyperparameters["n_steps"]) == (2, 16)  # type: ignore[index]  # it is initialized
    with pytest.raises(TypeError, match="seed belongs to a task of sb3:PPO, but there is no env"):
        SB3(stable_baselines3.PPO, seed=2)  # type: ignore[call-overload]  # that is what is refused


EXPLORING = {"use_sde": True, "ent_coef": "auto_0.1", "n_steps": 2, "gradient_steps": 2}
FEATURES = {"features_extractor_class": own_models.Features, "features_extractor_kwargs": {"features_dim": 4}}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("PPO", {"policy_kwargs": {"net_arch": {"pi": [4], "vf": [5]}, "activation_fn": torch.nn.ReLU, **FEATURES}}),
        pytest.param("A2C", {"policy": own_models.Tanhless, "rms_prop_eps": 1e-3}, marks=pytest.mark.slow),
        pytest.param("DQN", {"replay_buffer_class": own_models.CountingBuffer}, marks=pytest.mark.slow),
        pytest.param("SAC", {"policy_kwargs": {"net_arch": [16]}, **EXPLORING}, marks=pytest.mark.slow),
    ],
)
def test_a_model_with_arguments_of_the_user_resumes_exactly(name: str, arguments: dict[str, Any]) -> None:
    env, values = SMALL[name]
    whole, first = (SB3(getattr(stable_baselines3, name), env, **values, **arguments).init() for _ in range(2))
    resumed = load(f"sb3:{name}")(env).init(**(whole.hyperparameters or {}))  # as another process makes it
    whole.fit(2)
    first.fit(1)
    resumed.load_state_dict(first.state_dict())
    resumed.fit(2)
    assert (resumed.uid, resumed.digest) == (whole.uid, whole.digest)
    assert resumed.returns(2, deterministic=False) == whole.returns(2, deterministic=False)
    assert whole.uid != load(f"sb3:{name}")(env).init(**values).uid


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"verbose": 1}, TypeError, "a task of sb3:DQN takes no verbose; it has the progress of the task"),
        ({"gradient_steps": "abc"}, UnsupportedSpace, "sb3:DQN cannot train with its gradient_steps: '>=' not"),
        ({"policy_kwargs": {"net_arc": [8]}}, UnsupportedSpace, "with its policy_kwargs: .* argument 'net_arc'"),
        (
            {"policy_kwargs": {"activation_fn": torch.tanh}},
            ValueError,
            r"but policy_kwargs\['activation_fn'\] is <built",
        ),
        ({"policy_kwargs": {"activation_fn": "torch.nn:Rel"}}, ValueError, "class torch.nn:Rel, which cannot be imp"),
        ({"policy_kwargs": {"activation_fn": "torch:tanh"}}, ValueError, "names classes only, but torch:tanh is"),
        ({"policy_kwargs": '{"net_arch": [8]'}, ValueError, "dict as text, .* which is no dict"),
        ({"policy": "own_models:Own"}, ValueError, "policy names the class own_models:Own, which cannot be imported"),
        ({"replay_buffer_class": own_models.Tree}, NotData, "Tree has a object as tree; keep its numbers in"),
    ],
)
def test_arguments_that_are_no_data_are_refused(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    def train() -> None:
        task = SB3(stable_baselines3.DQN, "CartPole-v1", **SMALL["DQN"][1], **arguments).init()
        task.fit(1)
        task.state_dict()

    with pytest.raises(error, match=message):
        train()


def test_the_state_has_attributes_and_arguments_that_a_subclass_changes() -> None:
    values = {"n_steps": 8, "num_envs": 2, "epoch_steps": 64, "ent_coef": 0.01}
    whole, first, resumed, other = (SB3(own_models.Recalling)("CartPole-v1", seed=1).init(**values) for _ in range(4))
    whole.fit(3)
    first.fit(1)
    state = first.state_dict()
    resumed.load_state_dict(state)
    resumed.fit(3)
    assert (resumed.digest, resumed.inexact, whole.inexact) == (whole.digest, [], [])
    assert resumed.member_ref().learner.model.last.maxlen == 3
    other.load_state_dict(state)
    assert other.member_ref().learner.model.ent_coef == first.member_ref().learner.model.ent_coef != 0.01


def test_an_attribute_that_no_state_keeps_is_a_label() -> None:
    task = SB3(own_models.Hiding)("CartPole-v1").init(n_steps=8, epoch_steps=64)
    task.fit(1)
    assert task.inexact == [
        "sb3:own_models:Hiding may resume otherwise: it has counter, a Counter, which no state keeps; keep numbers, "
        "texts, arrays, lists, dicts or generators of random numbers in the model instead"
    ]


def test_bits_are_actions_and_images_beside_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    values = {"n_steps": 8, "num_envs": 2, "epoch_steps": 64}

    def seeing(see: Any) -> EnvSpec:
        return EnvSpec("faulty_envs:faults/Soak-v0", {"see": see, "do": "bits", "length": 9, "faults": {}})

    task = load("sb3:A2C")(seeing("box")).init(**values)
    task.fit(1)
    assert task.evaluate() is not None
    with pytest.raises(UnsupportedSpace, match="sb3:A2C sees numbers or one image, but faulty_envs:faults/Soak-v0 sho"):
        load("sb3:A2C")(seeing({"a": "image", "b": "box"})).init(**values).fit(1)
