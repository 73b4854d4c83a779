"""The contract of a task: requirements, refusals, and its state after errors."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import tiny
import torch
from rekindle.spaces import SpaceError, fidelity, flatten, unflatten
from rekindle.spaces.errors import ARGUMENTS, SYNONYMS, near
from rekindle.studies.errors import StoreError
from rekindle.studies.storage.store import Store
from rekindle.tasks import PPO, BadResume, Cohort, EpochEvent, StateMismatch, TaskError, load, names
from rekindle.tasks.algorithms import on_policy_learner
from rekindle.tasks.algorithms.ppo import PPOLearner
from rekindle.tasks.checkpoint.state import copy, difference, pack
from rekindle.tasks.errors import Diverged, NotInitialized, Stopped
from rekindle.tasks.registry import task_of

SMALL: dict[str, Any] = unflatten({**tiny.ROLLOUTS, "num_envs": 4, "epoch_steps": 128})


def make(seed: int = 1, env: str = "CartPole-v1", storage: Store | None = None, **changes: Any) -> PPO:
    values = {**SMALL, **changes, "model": {**SMALL["model"], **changes.get("model", {})}}
    return PPO(env, seed=seed, storage=storage).init(**values)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path / 'studies.db'}") as store:
        yield store


def whole(epochs: int, **changes: Any) -> PPO:
    task = make(**changes)
    task.fit(epochs)
    return task


@lru_cache
def reference(epochs: int, **changes: Any) -> PPO:
    """The task that was trained at once, shared by all tests; they only read it."""
    return whole(epochs, **changes)


def break_at(monkeypatch: pytest.MonkeyPatch, call: int, error: BaseException) -> None:
    """Makes the given iteration, counted from 1, raise half-way through."""
    passes = []

    def ticked() -> None:
        passes.append(1)
        if len(passes) == call * SMALL["update_epochs"]:  # the last of the iteration's two passes over its batch
            raise error

    monkeypatch.setattr(on_policy_learner, "tick", ticked)


def raising(error: BaseException, at: int) -> Callable[[EpochEvent], None]:
    def context(event: EpochEvent) -> None:
        if event.epoch == at:
            raise error

    return context


def test_a_task_made_again_takes_the_place_of_an_idle_one(store: Store) -> None:
    first = make(storage=store)
    first.fit(1)
    second = make(storage=store)  # a notebook's cell that is run twice
    assert second.epochs == 1
    with pytest.raises(TaskError, match=r"created again in this process.*use that one"):
        first.fit(2)
    assert first.bad is None
    second.fit(2)
    with Store(store.url) as other:
        assert make(storage=other).digest == second.digest == reference(2).digest


def test_a_task_that_trains_keeps_its_place(store: Store) -> None:
    def again(event: EpochEvent) -> None:
        results = []

        def try_it() -> None:
            with pytest.raises(StoreError, match=r"that is this process, where another thread, or a fit.*wait until"):
                make(storage=store)
            results.append(1)

        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
        try_it()
        assert len(results) == 2

    task = make(storage=store)
    task.fit(1, again)
    assert store.checkpoints(task.uid)[-1].digest == task.digest


def test_the_first_hyperparameters_may_be_given_by_position() -> None:
    expected = PPO("CartPole-v1").init(gamma=0.9, optimizer={"lr": 0.01}, lr_schedule=None, model={"width": 16})
    assert PPO("CartPole-v1").init(0.9, {"lr": 0.01}, None, {"width": 16}).uid == expected.uid
    assert PPO("CartPole-v1").init(0.9, model={"width": 16}, optimizer={"lr": 0.01}).uid == expected.uid
    for first, named in [((0.9,), {"gamma": 0.8}), ((0.9, None, None, None, "x"), {})]:
        with pytest.raises(TypeError, match="init takes gamma, optimizer, lr_schedule, model in this order"):
            PPO("CartPole-v1").init(*first, **named)


def test_a_state_can_be_put_into_a_dict_of_others() -> None:
    task, others = whole(1), {"mine": 1}
    state = task.state_dict(others, prefix="ppo.", keep_vars=True)
    assert state is others
    assert [name for name in state if not name.startswith("ppo.")] == ["mine"]
    task_state = {name.removeprefix("ppo."): part for name, part in state.items() if name != "mine"}
    again = make()
    again.load_state_dict(task_state)
    assert again.digest == task.digest


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("K_epochs", "did you mean update_epochs"),
        ("n_step", "did you mean num_steps and gae_lambda"),
        ("ppo_epoch", "did you mean update_epochs"),
        ("ppo_clip_param", "did you mean clip_coef"),
        ("eps_clip", "did you mean clip_coef"),
        ("vfcn_coeff", "did you mean vf_coef"),
        ("epsilon_schedule", "did you mean clip_coef_schedule.name"),
        ("reward_signals", "did you mean icm.use and rnd.use and gail.use and extrinsic.strength"),
        ("lr", "did you mean optimizer.lr"),
        ("net_arch", "did you mean model.hidden"),
        ("criterion", "did you mean critic_loss"),
        ("threaded", "did you mean overlap"),
        ("tensorboard_log", r"that is an option of the command line \(--log tensorboard:DIR\)"),
        ("num_workers", r"that is env_processes, an argument of the task \(--env-processes\)"),
        ("max_iter", r"that is epochs, an argument of fit \(--epochs\)"),
        ("keep_checkpoints", r"that is snapshots, an argument of the task \(--snapshots\)"),
        ("anneal_lr", r"did you mean lr_schedule.name\?"),
        ("norm_adv", r"did you mean normalize_advantage\?"),
        ("minibatch_size", r"did you mean num_minibatches\?"),
        ("train_batch_size", r"did you mean num_steps and num_envs\?"),
        ("n_steps", r"did you mean num_steps\?"),
    ],
)
def test_a_name_of_another_library_is_answered_with_ours(name: str, answer: str) -> None:
    for ask in (lambda: PPO("CartPole-v1").init(**{name: 1}), lambda: PPO("CartPole-v1", **{name: 1})):
        with pytest.raises(SpaceError, match=f"{name}'.*{answer}"):
            ask()


@pytest.mark.parametrize(
    ("task", "name", "answer"),
    [
        ("dqn", "n_steps", "n_step"),  # of Stable-Baselines3's DQN, not of its PPO
        ("dqn", "train_frequency", "num_steps"),
        ("dqn", "prioritized_replay", "replay.name"),
        ("sac", "target_network_frequency", "target_update_interval"),
        ("sac", "train_batch_size", "batch_size"),
        ("td3", "policy_freq", "policy_delay"),
        ("trpo", "n_critic_updates", "update_epochs"),
        ("ars", "learning_rate", "lr"),
        ("ars", "n_top", "top_fraction"),
    ],
)
def test_a_name_of_another_library_is_answered_with_the_tasks_own(task: str, name: str, answer: str) -> None:
    assert near(name, load(task).learner.hyperparameters.flat()) == f"; did you mean {answer}?"


@pytest.mark.parametrize("name", ["device", "seed", "demo_path"])
def test_arguments_that_init_lacks_are_named_as_the_tasks(name: str) -> None:
    with pytest.raises(SpaceError, match=rf"{name}'; that is .*an argument of the task \(--\w+\)"):
        PPO("CartPole-v1").init(**{name: 1})


def test_every_synonym_is_of_a_hyperparameter() -> None:
    known = {path for name in names() for path in load(name).learner.hyperparameters.flat()}
    assert {path for groups in SYNONYMS.values() for group in groups for path in group} <= known
    assert not SYNONYMS.keys() & ARGUMENTS.keys()


# The space


def test_the_space_shrinks_by_what_is_fixed() -> None:
    everything = PPO("CartPole-v1").get_space().flat().keys()
    assert {"gamma", "optimizer.lr", "num_steps"} <= everything
    fixed = PPO("CartPole-v1", gamma=0.98, optimizer={"lr": 1e-3}).get_space().flat().keys()
    assert everything - fixed == {"gamma", "optimizer.lr"}
    assert fixed < everything


def test_a_fixed_choice_takes_what_does_not_go_with_it_out_of_the_space() -> None:
    names = PPO("CartPole-v1", optimizer={"name": "rmsprop"}).get_space().flat().keys()
    assert {"optimizer.alpha", "optimizer.momentum"} <= names
    assert not {"optimizer.name", "optimizer.beta1", "optimizer.weight_decay"} & names


def test_the_space_has_the_fidelity_that_it_is_asked_for() -> None:
    space = PPO("CartPole-v1").get_space(epochs=fidelity(1, 27, base=3))
    assert list(space.fidelities()) == ["epochs"]
    assert "epochs" not in PPO("CartPole-v1").get_space().flat()


@pytest.mark.parametrize("seed", range(5))
def test_init_takes_samples_of_the_space(seed: int) -> None:
    task = PPO("CartPole-v1", num_envs=4)
    values = task.get_space(epochs=fidelity(1, 3)).sample(seed)
    task.init(**values)
    assert task.hyperparameters is not None
    assert task.hyperparameters["gamma"] == values["gamma"]
    assert task.hyperparameters["num_envs"] == 4
    assert task.suggested_epochs == 3


def test_fit_takes_the_epochs_of_the_sampled_space() -> None:
    task = make(epochs=2)
    task.fit()
    assert task.epochs == 2


def test_fit_without_any_epochs_says_so() -> None:
    task = make()
    with pytest.raises(ValueError, match="fit needs epochs, the total to reach"):
        task.fit()
    assert task.bad is None


# Names and values


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"gama": 0.99}, "gamma"),
        ({"optimizer": {"learning_rate": 1e-3}}, "optimizer.learning_rate"),
        ({"optimizer": {"lrr": 1e-3}}, "optimizer.lr"),
        ({"gamma": 1.5}, "gamma must be"),
        ({"gamma": float("nan")}, "gamma"),
        ({"gamma": "0.99"}, "gamma must be"),
        ({"gamma": True}, "gamma must be"),
        ({"update_epochs": 2.5}, "update_epochs must be"),
        ({"optimizer": {"lr": -1.0}}, "optimizer.lr must be"),
        ({"optimizer": {"name": "sgd", "beta1": 0.9}}, "optimizer.beta1"),
        ({"optimizer": {"name": "adamm"}}, "optimizer.name must be"),
        ({"optimizer": 3}, "optimizer"),
        ({"model": {"activation": "sigmoid"}}, "model.activation must be"),
    ],
)
def test_a_wrong_hyperparameter_is_refused_by_name(given: dict[str, Any], message: str) -> None:
    task = PPO("CartPole-v1")
    with pytest.raises(SpaceError) as caught:
        task.init(**given)
    assert message in str(caught.value)
    assert task.hyperparameters is None
    task.init()  # nothing is lost


def test_a_misspelled_name_is_answered_with_the_near_one() -> None:
    with pytest.raises(SpaceError, match=r"gama.*did you mean.*gamma"):
        PPO("CartPole-v1").init(gama=0.9)
    with pytest.raises(SpaceError, match=r"gama.*did you mean.*gamma"):
        PPO("CartPole-v1", gama=0.9)


def test_hyperparameters_that_do_not_go_together_are_refused_with_a_cure() -> None:
    with pytest.raises(ValueError, match=r"num_steps \* num_envs \(512\) must be divisible by num_minibatches \(3\)"):
        PPO("CartPole-v1").init(num_steps=128, num_envs=4, num_minibatches=3)


def test_a_group_of_none_means_its_defaults() -> None:
    assert PPO("CartPole-v1").init(optimizer=None, model=None).uid == PPO("CartPole-v1").init().uid


def test_a_fixed_hyperparameter_cannot_be_given_another_value() -> None:
    task = PPO("CartPole-v1", optimizer={"lr": 1e-3})
    with pytest.raises(ValueError, match=r"optimizer.lr was fixed to 0.001 .*init got 0.01"):
        task.init(optimizer={"lr": 1e-2})
    assert task.init(optimizer={"lr": 1e-3}).uid == PPO("CartPole-v1").init(optimizer={"lr": 1e-3}).uid


def test_a_task_is_initialized_once() -> None:
    with pytest.raises(StateMismatch, match="initialized already; build a new task"):
        make().init()


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "1", True, None])
def test_a_seed_is_an_integer_in_its_range(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"seed must be an integer from 0 to 2\*\*63 - 1"):
        PPO("CartPole-v1", seed=seed)


def test_a_seed_may_be_an_integer_of_numpy_s() -> None:
    task = PPO("CartPole-v1", seed=np.int64(3)).init()  # as a loop over np.arange gives it
    assert (task.uid, type(task.seed)) == (PPO("CartPole-v1", seed=3).init().uid, int)


def test_a_url_is_no_storage_of_a_task() -> None:
    with pytest.raises(
        ValueError, match=r"ppo: storage must be a Store or None, such as rekindle.Store\('sqlite:///x.db'\)"
    ):
        PPO("CartPole-v1", storage="sqlite:///x.db")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        (
            "gpu",
            "ppo: device must be one that torch knows, such as 'cpu', 'cuda' or 'cuda:1', or 'auto', but got 'gpu'",
        ),
        (None, "ppo: device must be one that torch knows, .* but got None"),
        ("mps", "ppo: device 'mps' is not available, torch finds no Apple GPU on this machine; use 'cpu'"),
        (
            "cuda:99",
            "ppo: device 'cuda:99' is not available, torch sees [0-9]+ CUDA devices on this machine; use 'cpu'",
        ),
    ],
)
def test_a_device_that_is_not_here_is_refused_before_any_training(device: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PPO("CartPole-v1", device=device)
    task = make()
    with pytest.raises(ValueError, match=message.replace("ppo: ", r"ppo on CartPole-v1, seed 1 \(.{8}\): ")):
        task.set_device(device)
    task.fit(1)


def test_the_device_auto_is_a_gpu_where_there_is_one() -> None:
    task = PPO("CartPole-v1", device="auto")
    gpu = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert task.device == torch.device(gpu)
    assert task.uid == PPO("CartPole-v1").uid  # the device is no part of the identity


@pytest.mark.parametrize("env", ["CartPol-v1", "CartPole-v77", "nowhere:Thing-v0"])
def test_an_unknown_environment_is_refused_by_name(env: str) -> None:
    with pytest.raises(TaskError, match=env.rpartition(":")[0] or env):
        PPO(env).init()


def test_an_unknown_task_is_answered_with_the_near_one() -> None:
    assert load("ppo") is PPO
    assert "ppo" in names()
    with pytest.raises(ValueError, match=r"a task must be one of .*ppo.* got 'pppo'; did you mean ppo"):
        load("pppo")
    with pytest.raises(ValueError, match=r"got 'PPO'; did you mean ppo"):
        load("PPO")


@pytest.mark.parametrize("env", ["CartPole-v1", "my_envs:Maze-v0"])
def test_an_environment_in_place_of_a_task_is_told_to_come_after_it(env: str) -> None:
    with pytest.raises(ValueError, match=f"a task comes before its environment, but '{env}' .* write auto {env}, or"):
        load(env)


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("her", "--set replay.relabel=future"),
        ("HER", "--set replay.relabel=future"),
        ("ppo_lstm", "ppo with --set model.memory=lstm"),
        ("RecurrentPPO", "ppo with --set model.memory=lstm"),
        ("MaskablePPO", "ppo .* obey masks"),
        ("rainbow", "dqn with --preset rainbow"),
        ("redq", "sac with --set critic.ensemble=10"),
        ("maddpg", "its central critic is not offered; use the task behaviours with --set NAME.algorithm=td3, or ppo"),
        ("QMIX", "sums of the agents' values are not offered; use the task behaviours with --set NAME.algorithm=dqn"),
        ("mappo", "behaviours, whose ppo takes a central critic: --set NAME.critic.central=joint"),
        ("sb3_contrib:TQC", "such as sb3:TQC"),
    ],
)
def test_a_task_that_is_an_option_here_is_answered_with_it(name: str, answer: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: .*{answer}"):
        load(name)


# The uid


def test_the_uid_depends_on_everything_but_the_epochs() -> None:
    uid = make().uid
    assert make(epochs=27).uid == uid
    others = [
        make(seed=2),
        make(env="CartPole-v0"),
        make(gamma=0.98),
        make(num_steps=32),
        make(optimizer={"lr": 1e-4}),
        make(optimizer={"name": "sgd"}),
        make(max_grad_norm=None),
    ]
    assert len({uid, *(task.uid for task in others)}) == len(others) + 1


def test_the_uid_does_not_depend_on_how_the_hyperparameters_are_written() -> None:
    uid = make(gamma=0.98, optimizer={"lr": 1e-4, "beta1": 0.9}).uid
    assert make(optimizer={"beta1": 0.9, "lr": 1e-4}, gamma=0.98).uid == uid
    assert make(gamma=np.float64(0.98), optimizer={"lr": 1e-4}).uid == uid  # beta1 has this default
    assert make(gamma=0.98, num_steps=16.0, optimizer={"lr": 1e-4}).uid == uid
    dotted = {**flatten(SMALL), "gamma": 0.98, "optimizer.lr": 1e-4}
    assert PPO("CartPole-v1", seed=1).init(**dotted).uid == uid
    assert PPO("CartPole-v1", seed=1, **SMALL).init(gamma=0.98, optimizer={"lr": 1e-4}).uid == uid
    assert PPO({"id": "CartPole-v1"}, seed=1).init(**dotted).uid == uid


def test_the_uid_does_not_depend_on_the_storage(store: Store) -> None:
    assert make(storage=store).uid == make().uid


def test_the_identity_is_json() -> None:
    identity = make().identity.to_json()
    assert json.loads(json.dumps(identity)) == identity


# Before init


@pytest.mark.parametrize(
    "use",
    [
        lambda task: task.fit(1),
        lambda task: task.state_dict(),
        lambda task: task.load_state_dict(make().state_dict()),
        lambda task: task.evaluate(1),
        lambda task: task.identity,
        lambda task: task.digest,
        lambda task: task.model,
        lambda task: task.set_device("cpu"),
        lambda task: Cohort([task]).fit(1),
        lambda task: Cohort([task, make()]),
    ],
)
def test_a_task_that_is_not_initialized_says_so_and_stays_clean(use: Callable[[PPO], Any]) -> None:
    task = PPO("CartPole-v1", seed=1)
    with pytest.raises(NotInitialized, match=r"call init\(...\) first"):
        use(task)
    assert task.bad is None
    assert task.epochs == 0
    task.init(**SMALL).fit(1)
    assert task.digest == reference(1).digest


def test_a_task_can_be_looked_at_before_it_is_initialized() -> None:
    task = PPO("CartPole-v1", seed=1)
    assert task.report()["hyperparameters"] is None
    assert repr(task) == "<PPO: ppo on CartPole-v1, seed 1, not initialized>"
    assert "ppo on CartPole-v1, seed 1: 0 epochs" in task.summary()
    assert task.metrics == {}


# fit


def test_fit_is_a_total_and_idempotent() -> None:
    task = make()
    assert task.fit(1) == task.metrics
    task.fit(3)
    digest, metrics = task.digest, task.metrics
    assert [epoch for epoch, _ in task.history] == [1, 2, 3]
    assert task.env_steps == 3 * 128
    assert task.fit(3) == metrics
    assert task.fit(1) == metrics
    assert task.fit(0) == metrics
    assert task.digest == digest == reference(3).digest


@pytest.mark.parametrize("epochs", [-1, 1.5, "3", True])
def test_fit_refuses_what_is_no_number_of_epochs(epochs: Any) -> None:
    task = make()
    with pytest.raises(ValueError, match="epochs must be an integer of at least 0"):
        task.fit(epochs)
    assert task.bad is None


def test_every_listener_is_called_at_every_epoch() -> None:
    heard: list[EpochEvent] = []
    logged: list[EpochEvent] = []
    task = PPO("CartPole-v1", seed=1, logger=logged.append).init(**SMALL)
    task.fit(2, heard.append)
    assert [(event.epoch, event.metrics) for event in heard] == task.history
    assert logged == heard
    assert all(event.task is task for event in heard)


def test_a_mapping_is_a_context_that_the_logger_finds() -> None:
    logged: list[EpochEvent] = []
    task = PPO("CartPole-v1", seed=1, logger=logged.append).init(**SMALL)
    task.fit(1, context={"run": 7})
    assert [event.context for event in logged] == [{"run": 7}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": ["x"]}, r"ppo on CartPole-v1.*: context must be a function.*but got list \"\['x'\]\""),
        ({"until": 3}, "until must be a function.*but got int '3'"),
    ],
)
def test_an_invalid_listener_is_refused_before_training(arguments: dict[str, Any], message: str) -> None:
    task = make()
    with pytest.raises(TypeError, match=message):
        task.fit(1, **arguments)
    assert (task.bad, task.epochs) == (None, 0)


@pytest.mark.parametrize("of", ["logger", "context", "until"])
def test_an_exception_of_a_listener_leaves_the_task_clean_and_saved(of: str, store: Store) -> None:
    def broken(heard: Any) -> bool:
        if of != "until" or len(heard) == 1:
            raise ZeroDivisionError("mine")
        return False

    task = PPO("CartPole-v1", seed=1, storage=store, logger=broken if of == "logger" else None).init(**SMALL)
    with pytest.raises(ZeroDivisionError, match="mine"):
        task.fit(3, **({of: broken} if of != "logger" else {}))
    assert (task.bad, task.epochs) == (None, 1)
    assert [row.epochs for row in store.checkpoints(task.uid)] == [1]
    task.logger = None
    task.fit(3)
    assert task.digest == reference(3).digest


def test_evaluation_changes_nothing_and_is_repeatable() -> None:
    task = whole(1)
    digest = task.digest
    assert task.evaluate(3) == task.evaluate(3)
    assert task.digest == digest
    with pytest.raises(ValueError, match="episodes must be at least 1"):
        task.evaluate(0)


def test_the_loss_on_a_batch_changes_nothing() -> None:
    task = whole(1)
    digest = task.digest
    rows = {"actions": torch.zeros(6, dtype=torch.int64)}
    rows |= {name: torch.linspace(-1, 1, 6) for name in ("log_probs", "values", "advantages", "returns")}
    losses = task.eval_loss({"obs": torch.zeros(6, 4), **rows})
    assert {"loss", "policy_loss", "value_loss", "entropy"} <= losses.keys()
    assert all(isinstance(value, float) for value in losses.values())
    assert task.digest == digest


def test_threads_of_torch_change_no_bit_and_are_given_back() -> None:
    alone, before = make(), torch.get_num_threads()
    alone.fit(1)
    expected = alone.evaluate(1)
    try:
        torch.set_num_threads(2)
        task = make()
        task.fit(1)
        assert (task.evaluate(1), task.digest) == (expected, alone.digest)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_the_models_parameters_are_copies() -> None:
    task = whole(1)
    digest = task.digest
    model = task.model
    assert len(model) == 8
    assert model["actor.0.weight"].shape == (4, 16)
    assert model["critic.1.bias"].shape == (1, 1)
    for parameter in (*model.values(), *task.parameters()):
        parameter.zero_()
    assert task.digest == digest


# Faults


def test_an_exception_inside_fit_makes_the_task_bad_and_names_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    task, good = make(), whole(1).state_dict()
    break_at(monkeypatch, 3, RuntimeError("out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        task.fit(3)
    monkeypatch.undo()
    assert isinstance(task.bad, RuntimeError)
    law = r"ppo on CartPole-v1, seed 1 .* broke with RuntimeError: out of memory.*Build a new task"
    for use in (lambda: task.fit(3), task.state_dict, lambda: task.load_state_dict(good), lambda: task.digest):
        with pytest.raises(BadResume, match=law) as caught:
            use()
        assert caught.value.__cause__ is task.bad
    with pytest.raises(BadResume, match=law):
        Cohort([make(seed=2), task]).fit(1)
    assert task.report()["bad"] == "out of memory"


def test_a_bad_task_stores_nothing_and_a_new_one_carries_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    task = make(storage=store)
    task.fit(2)
    kept = store.checkpoints(task.uid)
    break_at(monkeypatch, 3, RuntimeError("x"))
    with pytest.raises(RuntimeError):
        task.fit(4)
    monkeypatch.undo()
    task.finish()
    saved = store.load(task.uid)
    assert saved is not None
    assert saved.epochs in (2, 3)
    assert [row.epochs for row in kept][-1] == 2
    clean = make(storage=store)
    assert clean.resumed
    clean.fit(4)
    assert clean.digest == reference(4).digest
    assert clean.history == reference(4).history


@pytest.mark.parametrize("error", [KeyboardInterrupt(), optuna.TrialPruned(), SystemExit(0)], ids=repr)
def test_control_flow_at_an_epochs_end_leaves_the_task_clean(store: Store, error: BaseException) -> None:
    task = make(storage=store)
    with pytest.raises(type(error)):
        task.fit(5, raising(error, at=2))
    assert task.bad is None
    assert task.epochs == 2
    saved = store.load(task.uid)
    assert saved is not None
    assert (saved.epochs, saved.digest) == (2, task.digest)
    assert saved.metrics == task.history
    task.fit(3)
    assert task.digest == reference(3).digest


def test_control_flow_within_a_step_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    task = make()
    break_at(monkeypatch, 2, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        task.fit(3)
    with pytest.raises(BadResume, match="broke with KeyboardInterrupt"):
        task.fit(3)


def signal_at(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Sends SIGTERM to this process in the given iteration, counted from 1."""
    calls = []
    original = PPOLearner.iterate

    def iterate(self: PPOLearner) -> Any:
        calls.append(1)
        if len(calls) == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self)

    monkeypatch.setattr(PPOLearner, "iterate", iterate)


@pytest.mark.parametrize(
    ("env", "steps"), [("CartPole-v1", 192), ("fakes:Corridor-v0", 192), ("fakes:Remembering-v0", 256)]
)
def test_a_signal_is_obeyed_after_the_step_that_it_met(
    env: str, steps: int, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the second epoch, or at its end if the environment cannot be saved before."""
    task = make(env=env, storage=store)
    signal_at(monkeypatch, 3)
    with pytest.raises(Stopped):
        task.fit(4)
    assert task.bad is None
    assert task.env_steps == steps
    task.finish()
    resumed = make(env=env, storage=store)
    assert resumed.resumed
    assert resumed.env_steps == steps
    resumed.fit(4)
    assert resumed.digest == reference(4, env=env).digest
    assert resumed.history == reference(4, env=env).history


DIVERGING = {"optimizer": {"name": "sgd", "lr": 100.0}, "max_grad_norm": None, "target_kl": None}


def test_numbers_that_are_no_longer_finite_are_named(store: Store) -> None:
    task = make(storage=store, **DIVERGING)
    with pytest.raises(Diverged, match=r"ppo on CartPole-v1, seed 1 .*(became|not finite).* in epoch \d+; try a lower"):
        task.fit(50)
    assert isinstance(task.bad, Diverged)
    assert all(np.isfinite(value) for _, row in task.history for value in row.values())
    with pytest.raises(BadResume, match="broke with Diverged"):
        task.fit(50)
    saved = store.load(task.uid)
    assert saved is None or saved.epochs == len(task.history)


# States


def learner(**parts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda state: state["learner"].update(parts)


def drop(*path: str) -> Callable[[dict[str, Any]], None]:
    def change(state: dict[str, Any]) -> None:
        for name in path[:-1]:
            state = state[name]
        del state[path[-1]]

    return change


FOREIGN: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "format": (lambda state: state.update(format=99), "must have format 1, but got 99"),
    "task": (lambda state: state["identity"].update(task="dqn"), "task is 'dqn' in the state and 'ppo' in the task"),
    "version": (lambda state: state["identity"].update(version=7), "version is 7"),
    "env": (lambda state: state["identity"]["env"].update(id="Pendulum-v1"), "env.id is 'Pendulum-v1'"),
    "seed": (lambda state: state["identity"].update(seed=9), "seed is 9"),
    "gamma": (lambda state: state["identity"]["hyperparameters"].update(gamma=0.5), "hyperparameters.gamma is 0.5"),
    "structure": (lambda state: state.update(structure="[]"), "another structure"),
    "identity": (lambda state: state.update(identity="ppo"), "a state's identity must be a mapping, but got ppo"),
    "no format": (drop("format"), "lacks format"),
    "no identity": (drop("identity"), "lacks identity"),
    "no learner": (drop("learner"), "lacks learner"),
    "no counters": (drop("learner", "counters"), "counters"),
    "no policy": (drop("learner", "policy"), "policy"),
    "no envs": (drop("learner", "envs"), "envs"),
    "no tally": (drop("learner", "tally"), "tally"),
    "no moment": (drop("learner", "optimizer", "mean"), "optimizer/mean"),
    "unknown part": (learner(ema=torch.zeros(1)), "unknown ema; pass strict=False"),
    "unknown moment": (lambda state: state["learner"]["optimizer"].update(ema=1), "unknown optimizer/ema"),
    "shape": (learner(policy={"vector": torch.zeros(3)}), r"policy/vector must be torch.float32 of shape \("),
    "type": (
        lambda state: state["learner"]["counters"].update(epochs=torch.tensor(1)),
        "counters/epochs must be an integer",
    ),
    "other env": (lambda state: state["learner"]["envs"].update(env="{}"), "cannot be loaded into"),
    "mode": (lambda state: state["learner"]["envs"].update(mode="replay"), "mode"),
    "form of envs": (
        lambda state: state["learner"]["envs"].update(elapsed=3),
        "the state of CartPole-v1 has another form",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(name: str) -> None:
    change, message = FOREIGN[name]
    task = whole(1)
    kept, history = task.state_dict(), list(task.history)
    state = reference(2).state_dict()
    change(state)
    given = copy(state)
    with pytest.raises(StateMismatch, match=message):
        task.load_state_dict(state)
    assert difference(state, given) == []
    task.bad = None  # the guard has its own tests; here, the question is what the refusal left behind
    assert difference(task.state_dict(), kept) == []
    assert task.history == history
    task.fit(2)
    assert task.digest == reference(2).digest


def test_another_version_of_a_task_is_not_continued() -> None:
    identity = make().identity.to_json()
    assert task_of(identity).uid == make().uid
    with pytest.raises(
        StateMismatch, match=r"the version that it began with, ppo 99, but \d+ is installed; use the Rek"
    ):
        task_of({**identity, "version": 99})


def test_members_of_a_learner_are_at_the_same_point() -> None:
    one, other = reference(1), reference(2)
    learner = one.build_learner([make(), make(seed=2)])
    learner.load_member(0, one.state_dict()["learner"])
    with pytest.raises(StateMismatch, match=r"members must be at the same point, but got \d+ and \d+ env_steps"):
        learner.load_member(1, other.state_dict()["learner"])


@pytest.mark.parametrize("state", [{}, {"format": 1}, {"format": 1, "identity": {}, "structure": "", "learner": {}}])
def test_an_invalid_state_is_refused(state: dict[str, Any]) -> None:
    with pytest.raises(StateMismatch):
        make().load_state_dict(state)


def test_a_state_with_more_than_is_needed_is_taken_if_asked() -> None:
    task, state = make(), whole(1).state_dict()
    state["learner"]["ema"] = torch.zeros(1)
    task.load_state_dict(state, strict=False)
    task.fit(2)
    assert task.digest == reference(2).digest


def test_going_back_to_an_earlier_state_forgets_what_came_after(store: Store) -> None:
    task = make(storage=store)
    task.fit(1)
    early = task.state_dict()
    task.fit(3)
    whole_history = list(task.history)
    task.load_state_dict(early)
    assert task.epochs == 1
    assert task.history == whole_history[:1]
    task.fit(3)
    assert task.history == whole_history
    assert store.metrics(task.uid) == whole_history
    assert task.digest == reference(3).digest


def test_a_state_moves_between_devices_names() -> None:
    task = whole(1)
    task.set_device("cpu")
    task.fit(2)
    assert task.digest == reference(2).digest


# Perturbing


def test_perturbing_changes_hyperparameters_on_purpose_and_gives_a_new_uid() -> None:
    parent = whole(1)
    child = make(optimizer={"lr": 5e-3})
    fresh = child.uid
    with pytest.raises(StateMismatch, match=r"hyperparameters.optimizer.lr is .*pass perturb=True"):
        child.load_state_dict(parent.state_dict())
    child = make(optimizer={"lr": 5e-3})
    child.load_state_dict(parent.state_dict(), perturb=True)
    assert child.uid not in (fresh, parent.uid)
    (data,) = [data for event_kind, data in child.events if event_kind == "branch"]
    assert data["state"] == pack(parent.state_dict()).digest
    assert data["from"] == parent.identity.to_json()
    assert child.epochs == 1
    child.fit(2)
    parent.fit(2)
    assert child.metrics["lr"] == pytest.approx(5e-3)
    assert not torch.equal(child.parameters()[0], parent.parameters()[0])


def test_the_same_branch_has_the_same_uid_and_result() -> None:
    state = whole(1).state_dict()
    children = [make(optimizer={"lr": 5e-3}) for _ in range(2)]
    for child in children:
        child.load_state_dict(state, perturb=True)
        child.fit(2)
    assert children[0].uid == children[1].uid
    assert children[0].digest == children[1].digest


def test_branches_of_different_states_have_different_uids() -> None:
    uids = set()
    for epochs in (1, 2):
        child = make(optimizer={"lr": 5e-3})
        child.load_state_dict(whole(epochs).state_dict(), perturb=True)
        uids.add(child.uid)
    assert len(uids) == 2


def test_perturbing_nothing_is_loading() -> None:
    task = make()
    uid = task.uid
    task.load_state_dict(whole(1).state_dict(), perturb=True)
    assert task.uid == uid
    task.fit(2)
    assert task.digest == reference(2).digest


@pytest.mark.parametrize(
    "changes", [{"num_steps": 32}, {"model": {"width": 32}}, {"optimizer": {"name": "sgd"}}, {"max_grad_norm": None}]
)
def test_the_structure_cannot_be_perturbed(changes: dict[str, Any]) -> None:
    child = make(**changes)
    with pytest.raises(StateMismatch, match="another structure"):
        child.load_state_dict(whole(1).state_dict(), perturb=True)


def test_the_environment_cannot_be_perturbed() -> None:
    with pytest.raises(StateMismatch, match=r"env.id is 'CartPole-v1' in the state and 'CartPole-v0' in the task"):
        make(env="CartPole-v0").load_state_dict(whole(1).state_dict(), perturb=True)


def test_a_branch_is_stored_under_its_own_uid(store: Store) -> None:
    parent = make(storage=store)
    parent.fit(1)
    child = make(storage=store, optimizer={"lr": 5e-3})
    first = child.uid
    child.load_state_dict(parent.state_dict(), perturb=True)
    child.fit(2)
    saved = store.load(child.uid)
    assert saved is not None
    assert (saved.epochs, saved.digest) == (2, child.digest)
    assert store.load(first) is None
    assert "branch" in [event.kind for event in store.events(child.uid)]


# Storage


def test_a_stored_task_carries_on_and_ends_as_the_one_that_was_never_stopped(store: Store) -> None:
    first = make(storage=store)
    assert not first.resumed
    first.fit(2)
    first.finish()
    second = make(storage=store)
    assert second.resumed
    assert (second.epochs, second.env_steps) == (2, 256)
    assert second.history == first.history
    assert second.digest == reference(2).digest
    second.fit(3)
    second.finish()
    assert second.digest == reference(3).digest
    assert store.metrics(second.uid) == reference(3).history
    first_told, second_told = [event.data for event in store.events(second.uid) if "torch" in event.data]
    assert first_told["torch"] == torch.__version__
    assert second_told["epochs"] == 2
    assert second_told["digest"] == reference(2).digest


def test_everything_is_stored_at_the_end_of_fit(store: Store) -> None:
    task = make(storage=store)
    task.fit(3)
    saved = store.load(task.uid)
    assert saved is not None
    assert (saved.epochs, saved.digest) == (3, task.digest)
    assert store.metrics(task.uid) == task.history


def test_a_second_task_of_the_same_uid_is_refused_and_can_be_initialized_later(store: Store) -> None:
    first, second = make(storage=store), PPO("CartPole-v1", seed=1, storage=store)

    def meanwhile(event: EpochEvent) -> None:
        with pytest.raises(StoreError, match=first.uid):
            second.init(**SMALL)
        assert second.bad is None

    first.fit(2, meanwhile)
    first.finish()
    second.init(**SMALL)
    assert second.resumed
    second.fit(3)
    assert second.digest == reference(3).digest


def test_a_task_that_let_go_of_its_storage_is_not_trained_further(store: Store) -> None:
    task = make(storage=store)
    task.fit(1)
    task.finish()
    digest = task.digest
    task.fit(1)  # done already
    with pytest.raises(TaskError, match=r"has released its lease.*Build a new task"):
        task.fit(2)
    assert task.digest == digest


def test_finishing_twice_or_early_does_no_harm(store: Store) -> None:
    task = make(storage=store)
    task.finish()
    task.finish()
    assert make(storage=store).resumed is False


def test_a_task_that_is_dropped_lets_go_of_its_storage(store: Store) -> None:
    task = make(storage=store)
    task.fit(1)
    del task
    assert make(storage=store).resumed


def test_a_damaged_checkpoint_is_an_error_and_never_a_fresh_start(store: Store, tmp_path: Path) -> None:
    task = make(storage=store)
    task.fit(2)
    task.finish()
    with sqlite3.connect(tmp_path / "studies.db") as connection:
        connection.execute("UPDATE rk_blob SET data = substr(data, 1, size - 1) || x'FF'")
    connection.close()
    again = PPO("CartPole-v1", seed=1, storage=store)
    with pytest.raises(Exception, match="damaged"):
        again.init(**SMALL)
    assert not again.resumed
    assert again.epochs == 0


def test_a_uid_given_by_the_user_belongs_to_one_identity(store: Store) -> None:
    task = PPO("CartPole-v1", seed=1, storage=store).init(**SMALL, uid="mine")
    task.fit(1)
    task.finish()
    assert task.uid == "mine"
    assert PPO("CartPole-v1", seed=1, storage=store).init(**SMALL, uid="mine").epochs == 1
    with pytest.raises(Exception, match="mine"):
        PPO("CartPole-v1", seed=2, storage=store).init(**SMALL, uid="mine")


# Looking


def test_the_report_is_json_and_says_what_is_known() -> None:
    task = whole(1)
    report = task.report()
    assert json.loads(json.dumps(report)) == report
    assert (report["uid"], report["task"], report["seed"], report["epochs"]) == (task.uid, "ppo", 1, 1)
    assert report["metrics"] == task.metrics
    assert report["hyperparameters"]["optimizer"]["lr"] == 1e-3
    assert report["bad"] is None


def test_the_summary_is_for_people() -> None:
    task = whole(2)
    assert repr(task) == f"<PPO: ppo on CartPole-v1, seed 1 ({task.uid[:8]}), epoch 2>"
    assert repr(Cohort([task, make(seed=2)])) == f"<Cohort of 2: {task}, ...>"
    summary = task.summary()
    assert summary.startswith(f"ppo on CartPole-v1, seed 1 ({task.uid[:8]}): 2 epochs, 256 env steps")
    assert "optimizer.lr = 0.001" in summary
    assert "policy_loss: " in summary


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda task: task.load_state_dict(3), "PPO.load_state_dict: state is a dict by name, but got 3"),
        (lambda task: task.state_dict(3), "PPO.state_dict: destination is a dict or None, but got 3"),
        (lambda task: task.evaluate("x"), "PPO.evaluate: episodes is an integer or None, but got 'x'"),
        (lambda task: task.returns(2, seed=0.5), r"PPO.returns: seed is an integer or None, but got 0\.5"),
        (lambda task: Cohort(task), "Cohort: tasks is a list, but got"),
        (lambda task: Cohort([task, 3]), "the members of a cohort must be tasks, but got 3"),
    ],
)
def test_arguments_of_another_type_are_refused_before_anything_happens(
    call: Callable[[PPO], Any], message: str
) -> None:
    task = make()
    with pytest.raises(TypeError, match=message):
        call(task)
    assert task.bad is None
