"""Environments that break rules: what crosses the border is copied, checked once, and labelled."""

from __future__ import annotations

import datetime
import json
import locale
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from rekindle import PPO, Cohort, EnvSpec, Store
from rekindle.studies.cli import main
from rekindle.tasks import load
from rekindle.tasks.checkpoint.state import pack, unpack
from rekindle.tasks.envs import EnvSpecError, make_envs
from rekindle.tasks.envs.base.observations import Observations
from rekindle.tasks.envs.gym.envs import GymEnvs
from rekindle.tasks.envs.gym.make import begin_episode
from rekindle.tasks.envs.gym.rewards import check_step
from rekindle.tasks.envs.gym.surroundings import guards_of
from rekindle.tasks.envs.selftest.attempts import self_test
from rekindle.tasks.envs.selftest.clock import clock_ahead
from rekindle.tasks.envs.selftest.kept_state import instance_state
from rekindle.tasks.errors import Diverged, TaskError, UnsupportedSpace
from rekindle.tasks.identity import TaskIdentity
from rekindle.tasks.probing import probe
from rekindle.tasks.runtime.fingerprint import InexactWarning
from rekindle.tasks.task import Task
from support_path import SUPPORT

SMALL = {"num_steps": 10, "num_envs": 2, "num_minibatches": 2, "epoch_steps": 100, "update_epochs": 1}
OF_SB3 = {"n_steps": 10, "num_envs": 2, "batch_size": 10, "epoch_steps": 100, "n_epochs": 1}


@pytest.fixture(autouse=True)
def faulty_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def make(name: str, seed: int = 0, **given: Any) -> Task:
    return PPO(EnvSpec(f"faulty_envs:faults/{name}-v0", **given.pop("env", {})), seed=seed, **given).init(**SMALL)


def trained(name: str, epochs: int = 2, **given: Any) -> Task:
    task = make(name, **given)
    task.fit(epochs)
    return task


WIND = {"parameters": {"wind": {"uniform": [0, 1]}}}
COPIED = [("Mirror", {}), ("Halver", {}), ("Keeper", {}), ("Flips", WIND)]


@pytest.mark.parametrize(("name", "env"), COPIED)
def test_in_place_changes_by_an_environment_stay_in_it(name: str, env: Any, url: str) -> None:
    whole = trained(name, env=env)
    make(name, env=env, storage=Store(url)).fit(1)
    resumed = trained(name, env=env, storage=Store(url))
    assert resumed.resumed
    assert (resumed.digest, whole.inexact) == (whole.digest, [])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env"), COPIED)
def test_in_place_changes_are_the_same_in_cohorts_and_processes(name: str, env: Any) -> None:
    whole, other = make(name, env=env), make(name, 1, env=env)
    Cohort([other, whole]).fit(2)
    assert trained(name, env=env, env_processes=2).digest == whole.digest == trained(name, env=env).digest


def test_a_task_whose_episodes_do_not_replay_restarts_them_and_says_so(url: str) -> None:
    first = make("Late", storage=Store(url))
    first.fit(4)  # 200 steps of both environments
    assert first.inexact == []
    again = make("Late", storage=Store(url))
    with pytest.warns(InexactWarning, match=r"replaying the running episode.*They begin anew, so it is not bit-exact"):
        again.fit(5)
    [reason] = again.inexact
    assert "running episodes began anew" in reason
    assert reason in again.summary()
    assert again.report()["inexact"] == [reason]
    again.release()
    third = make("Late", storage=Store(url))
    assert third.inexact == [reason]  # the label is part of the state
    with Store(url) as store:
        events = {event.kind: event.data for event in store.events(third.uid)}
    assert events["inexact"] == {"epochs": 4, "inexact": [reason]}
    assert json.loads(json.dumps(third.report()))["inexact"] == [reason]


@pytest.mark.parametrize(
    ("name", "env", "words"),
    [
        ("Hidden", {}, "must lead to where it was, but does not"),
        ("Once", {"kwargs": {"length": 400, "at": 150}}, r"but it raised RuntimeError \(no way back\)"),
    ],
)
def test_a_replay_that_ends_otherwise_in_any_way_begins_episodes_anew(
    name: str, env: Any, words: str, url: str
) -> None:
    make(name, env=env, storage=Store(url)).fit(4)
    again = make(name, env=env, storage=Store(url))
    with pytest.warns(InexactWarning, match=words):
        again.fit(5)
    assert "running episodes began anew" in again.inexact[0]


def test_environments_that_were_closed_begin_anew_if_they_cannot_be_led_back() -> None:
    task = trained("Late", 4)
    task.close()
    assert task.inexact == []
    task.fit(5)
    assert "running episodes began anew" in task.inexact[0]
    task.close()
    task.fit(6)
    assert len(task.inexact) == 1


def test_an_episode_that_cannot_be_played_again_labels_a_training() -> None:
    [reason] = trained("Once", 8, seed=1, env={"kwargs": {"length": 3, "at": 2}}).inexact
    assert "played again in another one, raised RuntimeError (no way back), though" in reason


def test_a_warning_turned_into_an_error_refuses_to_restart_episodes(url: str) -> None:
    make("Late", storage=Store(url)).fit(4)
    with pytest.raises(InexactWarning):  # warnings are errors here
        make("Late", storage=Store(url)).fit(5)
    with pytest.warns(InexactWarning):
        make("Late", storage=Store(url)).fit(5)


def test_an_environment_that_cannot_be_restored_is_labelled_with_reason_and_cure() -> None:
    task = trained("Forgets", 1)
    [reason] = task.inexact
    assert "two new environments with the same seed and actions differ in the observation at step 0" in reason
    assert "restarts at each epoch, and not bit for bit" in reason
    assert reason.endswith(
        "draw all chance from self.np_random, after super().reset(seed=seed), and keep all state in self"
    )
    assert task.report()["inexact"] == [reason]
    assert f"not bit-exact: {reason}" in task.summary()
    task.finish()
    assert task.inexact == [reason]  # also without a learner


@pytest.mark.parametrize("name", ["OldStyle", "Unseeded", "SharedSpace", "Sticky"])
def test_state_shared_between_environments_is_given_to_each(name: str, url: str) -> None:
    whole, other = make(name), make(name, 1)
    Cohort([other, whole]).fit(2)
    make(name, storage=Store(url)).fit(1)
    resumed = trained(name, storage=Store(url))
    assert (resumed.digest, resumed.inexact) == (whole.digest, [])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["OldStyle", "Unseeded", "SharedSpace", "Sticky"])
def test_state_shared_between_environments_is_given_to_each_in_processes(name: str) -> None:
    assert trained(name, env_processes=2).digest == trained(name).digest


def test_the_generators_of_the_process_are_left_as_they_were() -> None:
    np.random.seed(3)
    expected = np.random.RandomState(3).uniform()
    trained("OldStyle", 1)
    assert np.random.uniform() == expected


def test_an_environment_that_refuses_to_be_reset_in_an_episode_is_told_to_allow_it() -> None:
    rule = (
        "faults/Unwilling-v0: an environment can be reset at any time, but in the middle of an episode its reset raised"
    )
    with pytest.raises(EnvSpecError, match=f"{rule} RuntimeError: the episode is not over; let it begin a new episode"):
        self_test(EnvSpec("faulty_envs:faults/Unwilling-v0"))


def test_users_are_told_that_nothing_lasts_where_each_episode_has_a_new_environment() -> None:
    [advice] = self_test(EnvSpec("faulty_envs:faults/Sticky-v0")).advice
    assert "so each episode has a new environment, and nothing lasts from one to the next, such as a cur" in advice
    assert advice.endswith('or keep all within an epoch: {"id": ..., "restore": "restart"}')


@pytest.mark.parametrize("processes", [0, 2])
def test_draws_from_global_generators_that_the_self_test_does_not_reach_are_found_in_training(processes: int) -> None:
    spec, values = EnvSpec("faulty_envs:faults/Deep-v0"), SMALL | {"epoch_steps": 400}
    tasks = [PPO(spec, seed=seed, env_processes=processes).init(**values) for seed in (0, 1)]
    Cohort(tasks).fit(1)
    for task in tasks:
        [reason] = task.inexact
        assert "draws from the global generator of numpy.random and random, which the self-test's short" in reason
        assert reason.endswith(
            "draw all chance from self.np_random, after super().reset(seed=seed), and keep all state in self"
        )


def test_draws_of_others_from_global_generators_make_no_training_inexact() -> None:
    task = make("Drift")

    def draw(*_: Any) -> None:
        np.random.normal()

    learner, _ = task.member_ref()
    learner.envs.watch(draw)  # type: ignore[attr-defined]
    task.fit(2)
    assert task.inexact == []


@pytest.mark.parametrize(
    ("name", "mode", "exact", "words"),
    [
        ("Extra", "replay", True, "in used and in new environments"),
        ("Drift", "replay", True, "in used and in new environments"),
        ("ZeroIsNone", "replay", True, "in used and in new environments"),
        ("SeededByReset", "replay", True, "in used and in new environments"),
        ("Sticky", "replay", True, "so each episode has a new environment"),
        ("RarelySticky", "replay", True, "so each episode has a new environment"),
        ("ClassCounter", "restart", False, "environments of one process share what they depend on"),
        ("LateImage", "restart", False, "two new environments with the same seed and actions differ"),
        ("Season", "restart", False, "it depends on the time: 40 days later it differs in the observation at step 1"),
        ("Uptime", "restart", False, "it depends on the time"),
        ("Repeats", "restart", True, "an earlier episode shows in the observation at step 0"),
    ],
)
def test_the_self_test_finds_what_survives_or_is_shared(name: str, mode: str, exact: bool, words: str) -> None:
    envs = make_envs(EnvSpec(f"faulty_envs:faults/{name}-v0"), [0], 1)
    assert (envs.mode, envs.exact) == (mode, exact)
    assert words in envs.reason


@pytest.mark.parametrize("reading", ["localtime", "gmtime", "ctime", "strftime", "asctime", "clock_gettime", "numpy"])
def test_the_self_test_finds_the_hour_however_it_is_read(reading: str) -> None:
    restore = self_test(EnvSpec("faulty_envs:faults/Hourly-v0", {"reading": reading}))
    assert (restore.mode, restore.exact) == ("restart", False)
    assert "it depends on the time: 40 days later it differs in the observation at step 1" in restore.reason


def test_moments_that_are_given_do_not_depend_on_the_time() -> None:
    assert self_test(EnvSpec("faulty_envs:faults/Hourly-v0", {"reading": "past"})).exact


@pytest.mark.parametrize("how", [("now",), ("today",), ("now", "ms")])
def test_a_moment_of_numpy_that_is_ahead_keeps_its_unit(how: tuple[str, ...]) -> None:
    usual: Any = np.datetime64(*how)
    with clock_ahead(gym.make("CartPole-v1")):
        ahead: Any = np.datetime64(*how)
    assert ahead.dtype == usual.dtype
    assert datetime.timedelta(days=40) <= (ahead - usual).item() < datetime.timedelta(days=42)


def test_the_self_test_leaves_the_clock_right() -> None:
    import faulty_envs

    usual = np.datetime64
    make_envs(EnvSpec("faulty_envs:faults/Season-v0"), [0], 1).close()
    assert faulty_envs.datetime is datetime.datetime
    assert np.datetime64 is usual
    assert abs(time.time() - datetime.datetime.now().timestamp()) < 86_400


def test_a_seed_without_effect_is_told_with_restarts() -> None:
    task = trained("Repeats", 1)
    assert task.inexact == []
    assert any("each epoch repeats the same episodes, since the seed has no effect" in text for text in task.advice)
    assert task.advice[-1] in task.summary()


def test_seeds_that_decide_between_few_beginnings_have_an_effect() -> None:
    [advice] = trained("FewBeginnings", 1).advice
    assert "an earlier episode shows in the observation at step 0" in advice


def test_an_environment_with_a_method_that_seeds_it_is_told_to_call_it() -> None:
    [label] = trained("OldSeed", 1).inexact
    assert label.endswith("or if its method seed(seed) seeds it, let reset or a wrapper of it call that")


def test_state_that_a_thread_changes_meanwhile_is_read() -> None:
    env = gym.make("faulty_envs:faults/Received-v0")
    env.reset(seed=0)
    try:
        for _ in range(300):
            assert instance_state(env)
    finally:
        env.close()


def test_an_environment_that_takes_seed_0_for_none_resumes_exactly_and_is_told(url: str) -> None:
    whole = trained("ZeroIsNone")
    make("ZeroIsNone", storage=Store(url)).fit(1)
    resumed = trained("ZeroIsNone", storage=Store(url))
    assert (resumed.digest, resumed.inexact, whole.inexact) == (whole.digest, [], [])
    [advice] = whole.advice
    assert advice.endswith("reset takes seed 0 for no seed; write `if seed is not None` where it says `if seed`")


@pytest.mark.parametrize(
    ("wrapper", "cure"), [("NormalizeObservation", "normalize_obs"), ("NormalizeReward", "normalize_reward")]
)
def test_running_statistics_of_a_wrapper_are_named_with_their_cure(wrapper: str, cure: str) -> None:
    wrapped = {"wrappers": [{"entry_point": f"gymnasium.wrappers:{wrapper}"}]}
    [text] = trained("Drift", 1, env=wrapped).advice
    assert f"the running statistics of the wrapper {wrapper} start again in each epoch and in evaluation" in text
    assert text.endswith(f"leave it out, and set {cure}=true")


@pytest.mark.parametrize("processes", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_difference_that_the_self_test_missed_is_found_in_training(processes: int) -> None:
    task = make("Rare", env_processes=processes)
    task.fit(2)
    assert task.inexact == []
    task.fit(60)
    [reason] = task.inexact
    assert "played again in another one, ended differently" in reason
    assert reason.endswith("keep what episodes depend on in the environment, and set it in every reset")
    assert ("inexact", [reason]) in [
        (event_kind, data.get("inexact")) for event_kind, data in task.events if event_kind != "init"
    ]


def test_the_last_episode_before_a_save_within_an_epoch_is_checked_after_the_resume() -> None:
    def opened() -> GymEnvs:
        envs = make_envs(EnvSpec("faulty_envs:faults/Aged-v0", {"place": "class", "after": 10**12}), [3, 4], 2)
        assert isinstance(envs, GymEnvs)
        assert envs.restore.ages == "process"
        return envs

    envs, young = opened(), opened()
    actions = np.linspace(-1, 1, 4, dtype=np.float32).reshape(2, 2, 1)
    for _ in range(53):  # ten episodes of each, and three steps more
        envs.step(actions)
    for i in range(2):
        packed = pack(envs.member_state(i))
        young.load_member(i, unpack(packed.manifest, packed.blobs.__getitem__))
        assert str(young.member_state(i)) == str(envs.member_state(i))
    ended = young.checks.last[1]
    young.checks.last[1] = ended._replace(outcome=ended.outcome._replace(total=5.0))  # as an old process had it
    young.step(actions)
    young.take_episodes()
    assert young.inexact(0) == []
    [reason] = young.inexact(1)
    assert "episode 9 of environment 1, played again in another process, ended differently (step 5, return -" in reason
    assert "before step 5, return 5)" in reason
    assert "last_ended" not in young.member_state(0)
    for group in (envs, young):
        group.close()


@pytest.mark.parametrize("place", ["class", "module", "argument"])
def test_an_effect_of_the_age_of_a_process_is_found_in_training(place: str) -> None:
    task = make("Aged", env={"kwargs": {"place": place}})
    assert task.inexact == []
    task.fit(30)
    [reason] = task.inexact
    assert "played again in another process, ended differently" in reason
    young = make("Aged", env={"kwargs": {"place": place, "after": 10**9}})
    young.fit(10)
    assert young.inexact == []


@pytest.mark.parametrize("algorithm", ["ppo", "sb3:PPO"])
def test_an_effect_of_age_that_has_just_begun_is_found_at_the_end_of_an_epoch(algorithm: str) -> None:
    def aged(after: int) -> dict[str, Any]:
        return {"kwargs": {"place": "class", "after": after}}

    name = "faulty_envs:faults/Aged-v0"
    counted = gym.make(name, place="class").unwrapped.counted  # type: ignore[attr-defined]
    before = counted["steps"]
    self_test(EnvSpec(name, **aged(10**9 + len(algorithm))))  # one that no other test has made
    now = counted["steps"]
    spec = EnvSpec(name, **aged(now + (now - before) + 190))
    task = load(algorithm)(spec).init(**(SMALL if algorithm == "ppo" else OF_SB3))
    task.fit(1)
    assert task.inexact == []
    task.fit(2)  # its last ten steps are rewarded otherwise
    [reason] = task.inexact
    assert "played again in another process, ended differently" in reason


@pytest.mark.parametrize(
    ("env", "ages"),
    [
        (EnvSpec("faulty_envs:faults/Drift-v0"), ""),
        (EnvSpec("faulty_envs:faults/Rare-v0"), "instance"),
        (EnvSpec("faulty_envs:faults/Aged-v0", kwargs={"place": "class"}), "process"),
        (EnvSpec("pettingzoo/faulty_envs:AgedTeam"), "process"),
        (EnvSpec("CartPole-v1", max_episode_steps=100), ""),
    ],
    ids=str,
)
def test_state_that_outlives_episodes_is_found_by_looking_at_it(env: EnvSpec, ages: str) -> None:
    assert self_test(env).ages == ages


def test_an_environment_of_this_program_alone_is_checked_in_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    env_class = type(gym.make("faulty_envs:faults/Aged-v0", place="class").unwrapped)
    gym.register("OwnAged-v0", env_class)
    monkeypatch.setattr("rekindle.tasks.envs.gym.checks.CHECKED_IF_IT_AGES", 2)
    task = PPO(EnvSpec("OwnAged-v0", kwargs={"place": "class", "after": 10**9})).init(**SMALL)
    task.fit(3)
    assert task.inexact == []


def test_checks_in_training_take_a_hundredth_of_the_steps() -> None:
    envs = make_envs(EnvSpec("faulty_envs:faults/Drift-v0"), [0, 1], 4)
    played: list[int] = []
    play_again = envs.backend.play_again  # type: ignore[attr-defined]

    def count(index: int, seed: int, options: Any, actions: np.ndarray, fresh: bool) -> Any:
        played.append(len(actions))
        return play_again(index, seed, options, actions, fresh)

    envs.backend.play_again = count  # type: ignore[attr-defined]
    for _ in range(2300):
        envs.step(np.zeros((2, 4, 1), np.float32))
    assert {*played} == {23}
    assert 0.005 < sum(played) / (2300 * 8) < 0.015


def settings() -> list[Any]:
    return [
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_num_threads(),
        np.geterr(),
        [*warnings.filters],
        os.getcwd(),
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGALRM),
        signal.getitimer(signal.ITIMER_REAL),
        dict(os.environ),
        locale.setlocale(locale.LC_ALL),
        (sys.stdout, sys.stderr),
    ]


@pytest.mark.parametrize("at", ["constructor", "reset", "step"])
def test_settings_that_an_environment_changes_do_not_reach_the_learner(at: str) -> None:
    before = settings()
    task = trained("Meddler", env={"kwargs": {"at": at}})
    task.evaluate(2)
    assert settings() == before
    plain = trained("Drift")
    assert all(torch.equal(*pair) for pair in zip(task.parameters(), plain.parameters(), strict=True))
    assert task.metrics == plain.metrics


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("class", r"observation\['k'\] must lie between 0 and 4, as observation_space says, but \w+ gave 5"),
        ("key", r"observation must have 'k', as observation_space says, but \w+ gave {'x': .*}"),
        ("shape", r"observation must have the shape \(1,\), as .* but \w+ gave the shape \(3,\)"),
        ("end of data", "its own code raised StopIteration"),
        ("tuple", r"step returns \(observation, reward, terminated, truncated, info\), .* but it returned"),
        ("no reset", r"reset returns \(observation, info\), as Gymnasium's does, but it returned None; return an info"),
        (
            "long reset",
            r"reset returns \(observation, info\), as Gymnasium's does, but it returned \(array.*in place of 3 parts",
        ),
        (
            "list reset",
            r"reset returns \(observation, info\), .* but it returned \[array.*return a tuple in place of a list",
        ),
        ("large", "gave a reward that is not finite in 32 bits"),
        ("huge", "gave an observation that is not finite in 32 bits"),
    ],
)
@pytest.mark.parametrize("after", [0, 1200])
def test_wrong_data_is_named_with_environment_rule_and_cure(what: str, words: str, after: int) -> None:
    with pytest.raises(TaskError, match=f"faulty_envs:faults/Wrong-v0:? .*({words})"):
        trained("Wrong", 40, env={"kwargs": {"what": what, "after": after}})


@pytest.mark.parametrize("after", [0, 1200])
def test_an_exception_without_a_text_is_named(after: int, monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    env = json.dumps({"id": "faulty_envs:faults/Wrong-v0", "kwargs": {"what": "mute", "after": after}})
    given = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    assert main(["train", "ppo", env, "--epochs", "40", *given]) == 1
    errors = capsys.readouterr().err
    assert "faults/Wrong-v0: the environment's own code raised Mute: (its __str__ raised ValueError)" in errors
    assert "Traceback" not in errors


def test_an_evaluation_with_numbers_that_are_not_finite_is_refused_or_told() -> None:
    task = trained("Drift", 1)

    def wrong(what: str) -> dict[str, Any]:
        return {"id": "faulty_envs:faults/Wrong-v0", "kwargs": {"what": what, "after": 0}}

    with pytest.warns(
        UserWarning, match=r"in its evaluation, faulty_envs:faults/Wrong-v0 gave an observation that is not"
    ):
        assert np.isfinite(task.evaluate(20, env=wrong("huge")))
    with pytest.raises(Diverged, match=r"a return of its evaluation is not finite, since .*Wrong-v0 gave a reward"):
        task.evaluate(20, env=wrong("large"))
    with pytest.raises(Diverged, match=r"faulty_envs:faults/Wrong-v0 gave a reward that is not finite"):
        probe(PPO, TaskIdentity.of(PPO, EnvSpec.of(wrong("large")), 0, {}))


def test_a_broken_pipe_of_an_environment_is_its_error(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    env = json.dumps({"id": "faulty_envs:faults/Wrong-v0", "kwargs": {"what": "pipe", "after": 0}})
    assert main(["probe", env]) == 1
    assert "own code raised BrokenPipeError: the simulator is gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("end", r"two booleans and a dict, but it returned .*'False' is of type <U5"),
        ("no end", r"two booleans and a dict, but it returned .*None is of type object"),
        ("reward", r"with a number, .* but it returned .*'NoneType'"),
        ("text", r"with a number, .* but it returned .*'1' is of type <U1"),
        ("pair", r"with a number, .* but it returned .*array\(\[1., 1.\]\).* weigh the 2 parts"),
        ("complex", r"with a number, .* but it returned .*1j"),
        ("whole", r"with a number, .* but it returned .*too large"),
    ],
)
@pytest.mark.parametrize("after", [0, 1200])
def test_rewards_and_ends_of_wrong_types_are_named(what: str, words: str, after: int) -> None:
    def play() -> None:
        envs = make_envs(EnvSpec("faulty_envs:faults/Wrong-v0", {"what": what, "after": after}), [0], 1)
        for _ in range(after):
            envs.step(np.zeros((1, 1, 1), np.float32))

    with pytest.raises(EnvSpecError, match=f"faulty_envs:faults/Wrong-v0: step returns .* {words}"):
        play()


def test_observations_with_gradients_are_named() -> None:
    words = r"observation must consist of numbers without gradients, as .* but reset gave tensor"
    with pytest.raises(EnvSpecError, match=f"faulty_envs:faults/Wrong-v0: {words}"):
        make_envs(EnvSpec("faulty_envs:faults/Wrong-v0", {"what": "gradient", "after": 0}), [0], 1)


def test_info_that_is_no_dict_is_named_and_odd_numbers_in_it_are_read() -> None:
    def reported(what: str, after: int) -> Task:
        return trained("Wrong", 40, env={"kwargs": {"what": what, "after": after}, "info": {"x": "last"}})

    with pytest.raises(
        ValueError, match=r"faulty_envs:faults/Wrong-v0: reset and step return info as a dict, but it is 'none'"
    ):
        reported("info", 600)
    assert "info.x" not in reported("long info", 0).metrics
    assert reported("nothing", 0).metrics["info.x"] == 1


def test_an_environment_can_compute_gradients_in_its_steps() -> None:
    assert trained("Differentiates").metrics == trained("Drift").metrics


@pytest.mark.parametrize("name", ["Answers", "Denies"])
def test_an_environment_that_answers_every_name_has_no_masks(name: str) -> None:
    assert trained(name).metrics == trained("Drift").metrics


@pytest.mark.parametrize(
    ("result", "words"),
    [
        ((0, np.ones(1), False, False, {}), r"such as reward.item\(\), or if the code is not yours, .*: \[1\] in the"),
        ((0, [1.0], False, False, {}), r"such as reward\[0\], or if"),
        (iter([1]), "no tuple"),
    ],
)
def test_rewards_in_arrays_and_results_that_are_no_tuples_are_named(result: Any, words: str) -> None:
    with pytest.raises(EnvSpecError, match=f"a: step returns .*{words}"):
        check_step(result, EnvSpec("a"))


def test_spaces_without_numbers_are_refused_and_lists_are_tuples() -> None:
    with pytest.raises(UnsupportedSpace, match="env: observations have at least one number, but observation_space is"):
        Observations(spaces.Box(-1, 1, (0,)), "env")
    assert make_envs(EnvSpec("faulty_envs:faults/Lists-v0"), [0], 1).exact


def test_numbers_outside_of_their_bounds_are_told() -> None:
    envs = make_envs(EnvSpec("faulty_envs:faults/Beyond-v0"), [0], 1)
    assert envs.advice == (
        "faulty_envs:faults/Beyond-v0: observation was 3, outside of its bounds -1 to 1; correct the bounds",
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Seedless", r"reset takes any seed .*, but reset\(seed=\d+\) raised ValueError \(seeds are not supported\)"),
        ("Growing", r"have one action_space, but at first it was Box\(.*\(1,\).*and now it is Box\(.*\(2,\)"),
    ],
)
def test_refused_seeds_and_changing_actions_are_named(name: str, words: str) -> None:
    with pytest.raises(EnvSpecError, match=f"faulty_envs:faults/{name}-v0: .*{words}"):
        trained(name, 4)


@pytest.mark.parametrize("env", [{}, {"restore": "replay"}])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("within", [False, True])
def test_actions_that_an_environment_takes_away_are_named(within: bool, in_place: bool, env: dict[str, Any]) -> None:
    words = r"have one action_space, but at first it was Discrete\(4\) and now it is Discrete\(2\); make it as large as"
    with pytest.raises(EnvSpecError, match=f"faulty_envs:faults/Shrinking-v0: .*{words}"):
        trained("Shrinking", env={"kwargs": {"within": within, "in_place": in_place}, **env})


def test_a_reset_that_fails_by_accident_does_not_refuse_seeds() -> None:
    class Once(gym.Env[Any, Any]):
        failed = False

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
            if not self.failed:
                self.failed = True
                raise ValueError("the map has no way out")
            return 0, {}

    with pytest.raises(ValueError, match=r"^the map has no way out$"):
        begin_episode(Once(), EnvSpec("a"), 0, None, None)


@pytest.mark.slow
def test_wrong_data_in_a_process_is_named_as_it_is_here() -> None:
    with pytest.raises(EnvSpecError, match=r"observation must have the shape \(1,\).*gave the shape") as caught:
        trained("Wrong", 40, env={"kwargs": {"what": "shape", "after": 600}}, env_processes=1)
    assert "registers itself" not in str(caught.value)


@pytest.mark.parametrize(("name", "given"), [("Dose", {}), ("Dose", {"use_sde": True}), ("Plan", {})])
def test_actions_in_units_of_their_bounds_are_exact(name: str, given: dict[str, Any]) -> None:
    def dose(seed: int) -> Task:
        return PPO(f"faulty_envs:faults/{name}-v0", seed=seed).init(**SMALL, **given)

    first, whole, other = dose(0), dose(0), dose(1)
    Cohort([other, whole]).fit(2)
    first.fit(1)
    resumed = dose(0)
    resumed.load_state_dict(first.state_dict())
    resumed.fit(2)
    assert resumed.digest == whole.digest
    assert "actions" in whole.identity.units
    obs = np.float32([0.1])
    action = whole.act(obs)
    numbers = action["dose"] if name == "Plan" else action
    assert (numbers > 100).all()  # an untrained policy begins at the middle


def test_jax_starts_with_one_thread_in_an_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NPROC", "7")
    make_envs(EnvSpec("faulty_envs:faults/Threads-v0"), [1], 2).close()

    from faulty_envs import Threads

    assert {*Threads.threads} == {"1"}
    assert os.environ["NPROC"] == "7"


def test_a_guard_within_steps_leaves_the_learner_s_settings_alone() -> None:
    guards = guards_of("nested")
    with guards.always:
        pass
    with guards.stepping:
        torch.set_default_dtype(torch.float64)
        with guards.always:  # as when garbage collection closes another environment
            pass
    assert torch.get_default_dtype() is torch.float32


def test_observations_of_images_alone_are_read() -> None:
    soak = {"see": ["image", {"board": "board"}], "do": "choice", "length": 5, "faults": {}}
    task = trained("Soak", 1, env={"kwargs": soak})
    assert task.inexact == []
    assert task.metrics["episode_length"] == 5


OFFERED = {"wrappers": [{"entry_point": "faulty_envs:Offering"}]}
UNUSUAL = [
    ("Keeps", {}),
    ("Named", {}),
    ("Within", OFFERED),
    ("Within", {"kwargs": {"has": False}, **OFFERED}),
    ("Defaulting", {"parameters": {"wind": 0.1}}),
]


@pytest.mark.parametrize(("name", "env"), UNUSUAL)
def test_unusual_but_legal_environments_train_and_resume_exactly(name: str, env: Any) -> None:
    whole, first, resumed = (make(name, env=env) for _ in range(3))
    whole.fit(2)
    first.fit(1)
    resumed.load_state_dict(first.state_dict())
    resumed.fit(2)
    assert (resumed.digest, whole.inexact) == (whole.digest, [])
