"""Any Gymnasium environment: stepped, saved, and resumed exactly in a new process."""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import gymnasium as gym
import mujoco
import numpy as np
import nursery
import pytest
import torch
from own_envs import BoxWalk, Brittle
from rekindle import PPO
from rekindle.tasks.checkpoint import state
from rekindle.tasks.envs import Envs, EnvSpec, EnvSpecError, make_envs, spaces_of
from rekindle.tasks.envs.base.actions import Actions
from rekindle.tasks.envs.gym import snapshot
from rekindle.tasks.envs.gym.backend import InProcess
from rekindle.tasks.envs.gym.envs import GymEnvs, reset_seed
from rekindle.tasks.envs.gym.make import make_env
from rekindle.tasks.envs.gym.restore import Restore
from rekindle.tasks.envs.selftest.attempts import self_test
from rekindle.tasks.envs.selftest.episodes import Record, difference
from rekindle.tasks.errors import Diverged, EnvironmentFailed, StateMismatch, UnsupportedSpace, class_and_text
from rekindle.tasks.rng import streams
from support_path import SUPPORT

NORMALIZED = [{"entry_point": "gymnasium.wrappers:NormalizeObservation"}]
DOUBLED = [{"entry_point": "own_envs:Doubled", "kwargs": {"factor": 3.0}}]
COUNTED = [{"entry_point": "gymnasium.wrappers:NormalizeReward"}]
UNTIL = [{"threshold": 2, "require_reset": i < 3} for i in range(9)]
LESSONS = {
    "wind": {"gaussian": [0.5, 0.1]},
    "spread": {"lessons": [{"value": i, "completion_criteria": until} for i, until in enumerate(UNTIL)]},
}
# spec, mode, whether every episode has a new environment
SPECS = {
    "cartpole": (EnvSpec("CartPole-v1"), "snapshot", None),
    "pendulum": (EnvSpec("Pendulum-v1"), "snapshot", None),
    "pendulum with kwargs": (EnvSpec("Pendulum-v1", {"g": 9.0}), "replay", False),
    "lander": (EnvSpec("LunarLander-v3"), "replay", False),
    "continuous lander": (EnvSpec("LunarLander-v3", {"continuous": True}), "replay", False),
    "bipedal walker": (EnvSpec("BipedalWalker-v3"), "replay", True),
    "inverted pendulum": (EnvSpec("InvertedPendulum-v5"), "snapshot", False),
    "hopper": (EnvSpec("Hopper-v5"), "snapshot", False),
    "ant": (EnvSpec("Ant-v5"), "replay", False),
    "pong": (EnvSpec("ALE/Pong-v5", {"obs_type": "grayscale", "repeat_action_probability": 0.0}), "snapshot", False),
    "frozen lake": (EnvSpec("FrozenLake-v1"), "replay", False),
    "dict": (EnvSpec("own_envs:DictWalk-v0"), "replay", False),
    "wrapped dict": (EnvSpec("own_envs:DictWalk-v0", wrappers=DOUBLED), "replay", False),
    "image": (EnvSpec("own_envs:ImageWalk-v0"), "replay", False),
    "normalized": (EnvSpec("InvertedPendulum-v5", wrappers=NORMALIZED), "restart", False),
    "lessons": (EnvSpec("own_envs:LessonWalk-v0", parameters=LESSONS), "replay", False),
    "lessons restarted": (EnvSpec("own_envs:LessonWalk-v0", wrappers=COUNTED, parameters=LESSONS), "restart", False),
    "drawn": (EnvSpec("Pendulum-v1", parameters={"kwargs.g": {"uniform": [5, 10]}}), "replay", True),
    "curriculum": (EnvSpec("own_envs:Curriculum-v0"), "restart", False),
}
STEPS = 60
SLOW = (
    *("pong", "pendulum", "pendulum with kwargs", "continuous lander", "hopper", "ant", "wrapped dict", "image"),
    *("frozen lake", "normalized", "lessons restarted", "drawn"),
)
QUICK = tuple(name for name in SPECS if name not in SLOW)  # each way of restoring; a self-test takes its time


@pytest.fixture(autouse=True)
def own_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


def choose(envs: Envs, step: int, seeds: list[int]) -> np.ndarray:
    """Random actions that depend on a member's seed and the step only."""
    codec = Actions(envs.action_space, "test")
    width = int(np.prod(codec.learner_shape)) * envs.num_envs
    draws = streams.uniform(streams.keys(seeds, "act")[:, None], step * width + np.arange(width))
    shape = (len(seeds), envs.num_envs, *codec.learner_shape)
    return codec.pick(draws.reshape(-1, width // envs.num_envs)).reshape(shape)


def run(envs: Envs, seeds: list[int], begin: int, end: int) -> list[str]:
    """Steps, and each member's digest of all that was seen."""
    hashes = [hashlib.sha256() for _ in seeds]
    for k in range(begin, end):
        seen = (envs.obs, *envs.step(choose(envs, k, seeds)), envs.obs)
        for i, h in enumerate(hashes):
            for array in seen:
                h.update(np.ascontiguousarray(array[i]).tobytes())
    return [h.hexdigest() + state.pack(envs.member_state(i)).digest for i, h in enumerate(hashes)]


def save(envs: Envs, i: int, folder: Path) -> None:
    packed = state.pack(envs.member_state(i))
    folder.mkdir()
    (folder / "manifest").write_bytes(packed.manifest)
    for name, blob in packed.blobs.items():
        (folder / name).write_bytes(blob)


# Runs in a new process: loads each state into the last place of a cohort of two, goes on, prints the digests.
CARRY_ON = f"""
import json, sys
from pathlib import Path
import numpy as np
sys.path[:0] = [{SUPPORT!r}, {str(Path(__file__).parent)!r}]
import test_envs_gym as t
answers = {{}}
for name in sys.argv[2:]:
    spec, *_ = t.SPECS[name]
    folder = Path(sys.argv[1]) / name
    tree = t.state.unpack((folder / "manifest").read_bytes(), lambda blob: (folder / blob).read_bytes())
    envs = t.make_envs(spec, [8, 7], 3)
    t.run(envs, [8, 7], 0, 20)  # used environments, another member's episodes
    envs.load_member(1, tree)
    envs.begin_epoch(np.array([1, 1]))
    answers[name] = t.run(envs, [8, 7], t.STEPS, 2 * t.STEPS)[1]
    envs.close()
print(json.dumps(answers))
"""


@lru_cache
def resumed_elsewhere(names: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """By name, the digests of going on without and with a new process in between."""
    here = {}
    with TemporaryDirectory() as states:
        for name in names:
            envs = make_envs(SPECS[name][0], [7], 3)
            run(envs, [7], 0, STEPS)
            save(envs, 0, Path(states) / name)
            envs.begin_epoch(np.array([1]))
            here[name] = run(envs, [7], STEPS, 2 * STEPS)[0]
            envs.close()
        answer = nursery.run([sys.executable, "-c", CARRY_ON, states, *names])
    assert answer.returncode == 0, answer.stderr
    there = json.loads(answer.stdout)
    return {name: (here[name], there[name]) for name in names}


every = pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])


@pytest.mark.slow
@every
def test_a_new_process_resumes_bit_for_bit(name: str) -> None:
    uninterrupted, resumed = resumed_elsewhere(QUICK if name in QUICK else (name,))[name]
    assert resumed == uninterrupted


@every
def test_the_self_test_finds_the_way(name: str) -> None:
    spec, mode, renew = SPECS[name]
    envs = make_envs(spec, [1], 1)
    assert (envs.mode, envs.exact) == (mode, True), envs.reason
    if isinstance(envs, GymEnvs):
        assert envs.restore.renew == renew
    assert envs.member_state(0)["mode"] == mode
    assert envs.member_state(0)["exact"] is True
    envs.close()


def test_an_emulator_s_state_leads_to_the_same_frames_in_another() -> None:
    kwargs = {"obs_type": "ram", "repeat_action_probability": 0.0}
    spec = EnvSpec("ALE/Pong-v5", kwargs)
    one, other = make_env(spec), make_env(spec)
    assert snapshot.has_snapshot(one)
    assert not snapshot.has_snapshot(make_env(EnvSpec("ALE/Pong-v5", {**kwargs, "repeat_action_probability": 0.25})))
    one.reset(seed=1)
    for action in (2, 3, 2, 0):
        one.step(action)
    states = snapshot.from_tree(snapshot.to_tree([snapshot.take(one), snapshot.take(one)[:-4]]))
    assert [len(state) for state in states] == [len(snapshot.take(one)), len(snapshot.take(one)) - 4]
    other.reset(seed=2)
    snapshot.put(other, states[0], 4)
    for action in (2, 0, 3, 3, 2):
        (expected, *rest), (result, *others) = one.step(action), other.step(action)
        np.testing.assert_array_equal(result, expected)
        assert others[:3] == rest[:3]
    for env in (one, other):
        env.close()


@pytest.mark.slow
@pytest.mark.parametrize("id", ["ALE/Pong-v5", "ale_py:Pong-v4"])
def test_sticky_actions_and_frames_skipped_at_random_are_no_part_of_an_emulator_s_state(id: str) -> None:
    restore = self_test(EnvSpec(id, {"obs_type": "ram"}))
    assert (restore.mode, restore.exact) == ("replay", True)


class Counted(gym.Wrapper):  # type: ignore[type-arg]
    """An environment that is open until it is closed."""

    open: ClassVar[set[int]] = set()

    def __init__(self, env: gym.Env) -> None:  # type: ignore[type-arg]
        super().__init__(env)
        self.open.add(id(self))

    def close(self) -> None:
        self.open.discard(id(self))
        super().close()


def test_environments_that_are_replaced_are_closed() -> None:
    wrappers = [{"entry_point": f"{__name__}:Counted"}]
    spec = EnvSpec("Pendulum-v1", wrappers=wrappers, parameters={"kwargs.g": {"uniform": [5, 10]}}, max_episode_steps=4)
    envs = make_envs(spec, [1], 2)
    for k in range(13):
        envs.step(choose(envs, k, [1]))
    assert len(Counted.open) == 2
    envs.close()
    assert not Counted.open


def test_an_environment_that_ignores_its_seed_is_labelled_not_exact() -> None:
    envs = make_envs(EnvSpec("own_envs:Lottery-v0"), [1], 2)
    assert (envs.mode, envs.exact) == ("restart", False)
    assert "two new environments with the same seed and actions differ in the observation at step 0" in envs.reason
    envs.step(choose(envs, 0, [1]))
    tree = envs.member_state(0)
    envs.begin_epoch(np.array([1]))
    envs.load_member(0, tree)
    envs.begin_epoch(np.array([2]))
    envs.step(choose(envs, 1, [1]))


@pytest.mark.parametrize(
    "name",
    [
        "inverted pendulum",
        "dict",
        "curriculum",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("lander", "bipedal walker")),
    ],
)
def test_a_member_of_five_equals_the_same_member_alone(name: str) -> None:
    spec, seeds = SPECS[name][0], [3, 1, 4, 15, 9]
    cohort = make_envs(spec, seeds, 3)
    together = [run(cohort, seeds, 0, 50)]
    cohort.begin_epoch(np.full(5, 1))
    together.append(run(cohort, seeds, 50, 80))
    for i in (0, 3):
        alone = make_envs(spec, seeds[i : i + 1], 3)
        assert run(alone, seeds[i : i + 1], 0, 50) == [together[0][i]]
        alone.begin_epoch(np.array([1]))
        assert run(alone, seeds[i : i + 1], 50, 80) == [together[1][i]]
        alone.close()
    cohort.close()


@pytest.mark.parametrize("name", ["hopper", "frozen lake", "normalized"])
def test_reset_is_as_newly_made(name: str) -> None:
    envs = make_envs(SPECS[name][0], [5], 2)
    first = run(envs, [5], 0, 30)
    envs.begin_epoch(np.array([4]))
    run(envs, [5], 30, 40)
    envs.reset()
    assert run(envs, [5], 0, 30) == first
    envs.close()


@pytest.mark.parametrize("id", ["Hopper-v5", "own_envs:DictWalk-v0"])
def test_the_time_limit_is_part_of_the_state(id: str) -> None:
    spec = EnvSpec(id, max_episode_steps=4)
    envs = make_envs(spec, [1], 2)
    run(envs, [1], 0, 3)
    other = make_envs(spec, [2], 2)
    other.load_member(0, envs.member_state(0))
    assert other.step(choose(other, 3, [1])).truncated.all()
    assert other.take_episodes().length_sum.tolist() == [8]


def test_loading_does_not_change_what_the_learner_holds() -> None:
    envs = make_envs(EnvSpec("own_envs:DictWalk-v0"), [1, 2], 2)
    tree = envs.member_state(0)
    run(envs, [1, 2], 0, 5)
    held, copy = envs.obs, envs.obs.copy()
    envs.load_member(1, tree)
    assert np.array_equal(held, copy)
    assert not np.array_equal(envs.obs, copy)
    assert np.array_equal(envs.obs[0], copy[0])


def test_next_obs_is_what_followed_and_obs_what_comes_next() -> None:
    envs = make_envs(EnvSpec("own_envs:BoxWalk-v0"), [1], 4)
    for k in range(40):
        step = envs.step(choose(envs, k, [1]))
        ended = step.terminated | step.truncated
        assert np.array_equal(step.next_obs[~ended], envs.obs[~ended])
        assert (step.next_obs[ended] != envs.obs[ended]).any(-1).all()
        assert (np.abs(step.next_obs[step.terminated]).max(-1) > 3).all()
        assert (np.abs(envs.obs) <= 3).all()


def test_seeds_of_training_and_evaluation_never_meet() -> None:
    train = {reset_seed("train", seed, n, e) for seed in range(5) for n in range(8) for e in range(50)}
    other = {reset_seed("evaluation", seed, n, e) for seed in range(5) for n in range(8) for e in range(50)}
    assert len(train) == len(other) == 2000
    assert {seed % 2 for seed in train} == {0}
    assert {seed % 2 for seed in other} == {1}
    assert 0 <= min(train | other) <= max(train | other) < 2**31


def test_a_state_of_another_mode_is_refused() -> None:
    spec = EnvSpec("own_envs:DictWalk-v0")
    recorded = make_envs(spec, [1], 2).member_state(0)
    restore = Restore("restart", True, "it is tested")
    restarting = GymEnvs(spec, [1], 2, "train", lambda: InProcess(spec, 2), restore, spaces_of(spec))
    with pytest.raises(StateMismatch, match="recorded in replay mode, but this process restores by restart"):
        restarting.load_member(0, recorded)


def test_a_state_of_another_environment_is_refused() -> None:
    recorded = make_envs(EnvSpec("own_envs:DictWalk-v0"), [1], 2).member_state(0)
    with pytest.raises(StateMismatch, match=r"DictWalk.*cannot be loaded into .*BoxWalk"):
        make_envs(EnvSpec("own_envs:BoxWalk-v0"), [1], 2).load_member(0, recorded)
    with pytest.raises(StateMismatch, match="of 2 environments does not fit 3"):
        make_envs(EnvSpec("own_envs:DictWalk-v0"), [1], 3).load_member(0, recorded)


def test_a_replay_that_leads_elsewhere_is_refused() -> None:
    envs = make_envs(EnvSpec("own_envs:DictWalk-v0"), [1], 2)
    run(envs, [1], 0, 9)
    tree = envs.member_state(0)
    tree["actions"][-1] = 3 if tree["actions"][-1] != 3 else 1
    with pytest.raises(StateMismatch, match="replaying the running episode of environment 1"):
        envs.load_member(0, tree)


def test_in_restart_mode_an_epoch_must_follow_loading() -> None:
    envs = make_envs(EnvSpec("own_envs:Curriculum-v0"), [1], 2)
    envs.load_member(0, envs.member_state(0))
    with pytest.raises(RuntimeError, match="begin_epoch must follow load_member"):
        envs.step(choose(envs, 0, [1]))


def test_states_share_nothing_with_the_environments() -> None:
    envs = make_envs(EnvSpec("Hopper-v5"), [1], 2)
    run(envs, [1], 0, 5)
    tree = envs.member_state(0)
    copy = state.copy(tree)
    run(envs, [1], 5, 15)
    assert state.difference(tree, copy) == []
    envs.load_member(0, tree)
    run(envs, [1], 5, 15)
    assert state.difference(tree, copy) == []


@pytest.mark.parametrize(
    ("name", "shape", "type_code"),
    [
        ("DictWalk", (), "i"),
        ("BoxWalk", (2,), "f"),
        ("RowsWalk", (2,), "i"),
        ("GridWalk", (6,), "i"),
        ("BitsWalk", (4,), "i"),
    ],
)
def test_every_kind_of_action_is_taken(name: str, shape: tuple[int, ...], type_code: str) -> None:
    envs = make_envs(EnvSpec(f"own_envs:{name}-v0"), [1, 2], 3)
    actions = choose(envs, 0, [1, 2])
    assert actions.shape == (2, 3, *shape)
    assert actions.dtype.kind == type_code
    envs.step(actions)
    wrong = make_envs(EnvSpec(f"own_envs:{name}-v0"), [1, 2], 3)
    with pytest.raises(ValueError, match=r"(?s)actions for .* must be .* of shape"):
        wrong.step(actions[:1])
    with pytest.raises(ValueError, match="must be"):
        wrong.step(actions.astype(np.int64 if type_code == "f" else np.float32))


def test_box_actions_are_clipped_where_there_are_bounds() -> None:
    envs = make_envs(EnvSpec("own_envs:BoxWalk-v0"), [1], 1)
    free = make_envs(EnvSpec("own_envs:BoxWalk-v0"), [1], 1)
    step, clipped = (e.step(np.array([[[a, 50.0]]], np.float32)) for e, a in ((envs, 9.0), (free, 2.0)))
    assert np.array_equal(step.next_obs, clipped.next_obs)


def test_unsupported_observations_and_actions_are_named() -> None:
    with pytest.raises(UnsupportedSpace, match=r"SequenceWalk.*observation_space\['said'\]\[0\] is Sequence"):
        make_envs(EnvSpec("own_envs:SequenceWalk-v0"), [1], 1)
    with pytest.raises(UnsupportedSpace, match=r"GraphActionWalk.*action_space is Dict"):
        make_envs(EnvSpec("own_envs:GraphActionWalk-v0"), [1], 1)


@pytest.mark.parametrize(
    ("id", "words"),
    [
        ("Cartpole-v1", "Did you mean: `CartPole`"),
        ("CartPole-v9", "provides versioned environments"),
        ("LunarLander-v1", "use `LunarLander-v3`"),
        ("no_such_module:Env-v0", "no_such_module"),
        ("CartPole", "named with its version, as results depend on it, but got CartPole; write CartPole-v1"),
        ("own_envs:Missing-v0", "Missing"),
        ("own_envs:DictWalk", "but got own_envs:DictWalk; write own_envs:DictWalk-v0"),
        (
            "own_envs:Doubled",
            r"register\('Doubled-v0', 'own_envs:Doubled'\) in own_envs, and write own_envs:Doubled-v0",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*is deprecated")
def test_an_unknown_environment_is_named(id: str, words: str) -> None:
    with pytest.raises(EnvSpecError, match=words):
        make_envs(EnvSpec(id), [1], 1)


def test_wrong_arguments_and_wrappers_are_named() -> None:
    with pytest.raises(EnvSpecError, match=r"LunarLander-v3 cannot be made with kwargs \{'gravitas': 1\}"):
        make_envs(EnvSpec("LunarLander-v3", {"gravitas": 1}), [1], 1)
    for entry_point, kwargs in (("own_envs:Nothing", {}), ("nowhere:Doubled", {}), ("own_envs:Doubled", {"by": 3})):
        with pytest.raises(EnvSpecError, match=entry_point.partition(":")[2]):
            make_envs(EnvSpec("FrozenLake-v1", wrappers=[{"entry_point": entry_point, "kwargs": kwargs}]), [1], 1)


@pytest.mark.parametrize(
    ("id", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("Hopper-v5", "mujoco", "mujoco"),
        ("ALE/Pong-v5", "ale_py", "atari"),
        ("envpool/CartPole-v1", "envpool", "envpool"),
    ],
)
def test_a_missing_package_names_the_extra(id: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.startswith((f"gymnasium.envs.{extra}", package))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(EnvSpecError, match=rf"pip install 'rekindle-rl\[{extra}\]'"):
        make_envs(EnvSpec(id, {"frame_skip": 4} if extra in ("mujoco", "envpool") else {}), [1], 1)


def test_the_self_test_is_deterministic_and_leaves_global_random_state_alone() -> None:
    spec = EnvSpec("LunarLander-v3")
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()
    self_test.cache_clear()
    first = self_test(spec)
    self_test.cache_clear()
    assert self_test(spec) == first
    assert self_test(spec) is self_test(EnvSpec("LunarLander-v3"))
    assert np.array_equal(before, np.random.get_state()[1])
    assert torch.equal(torch_before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("kwargs", "again"),
    [
        ({"when": "once"}, "does not with the same seeds and actions"),
        ({"when": "seeds", "below": 6}, "does so again with the same, but not with other seeds and actions"),
    ],
)
def test_a_simulator_that_fails_rarely_is_tested_again(
    kwargs: dict[str, Any], again: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Brittle, "began", False)
    self_test.cache_clear()
    with pytest.warns(UserWarning, match=rf"Brittle-v0: .* ConnectionError \(.* gone \(0\)\) .*, and {again};"):
        restore = self_test(EnvSpec("own_envs:Brittle-v0", kwargs))
    assert restore == self_test(EnvSpec("own_envs:Brittle-v0", {"when": "seeds"}))  # which never fails
    assert (restore.mode, restore.exact) == ("replay", True)


def test_a_simulator_that_fails_at_every_attempt_is_refused() -> None:
    with pytest.raises(ConnectionError, match=r"the simulator is gone \(0\)"):  # the first error
        self_test(EnvSpec("own_envs:Brittle-v0", {"when": "always"}))
    with pytest.raises(ConnectionError):
        self_test(EnvSpec("own_envs:Brittle-v0", {"when": "seeds", "below": 90}))


def test_a_warning_that_is_made_an_error_is_no_failure_of_a_simulator(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = list[int]()
    walk = BoxWalk.step

    def step(self: BoxWalk, action: Any) -> Any:
        steps.append(1)
        warnings.warn("an old name", DeprecationWarning, stacklevel=1)
        return walk(self, action)

    monkeypatch.setattr(BoxWalk, "step", step)
    self_test.cache_clear()
    with pytest.raises(DeprecationWarning) as error:  # warnings are errors here
        self_test(EnvSpec("own_envs:BoxWalk-v0"))
    assert len(steps) == 1, "it is not tried again"
    why = "a warning, which -W, PYTHONWARNINGS or a filter of this program makes an error"
    assert class_and_text(error.value) == f"DeprecationWarning: an old name ({why})"
    self_test.cache_clear()
    with pytest.warns(DeprecationWarning, match="an old name"):
        assert self_test(EnvSpec("own_envs:BoxWalk-v0")).exact
    self_test.cache_clear()


def test_a_replay_ends_with_its_episode() -> None:
    backend = InProcess(EnvSpec("own_envs:BoxWalk-v0", max_episode_steps=9), 1)
    first = backend.begin([0], [3], [None], False)
    [last] = backend.replay([0], [np.ones((9, 2), np.float32)])
    backend.begin([0], [3], [None], False)
    [longer] = backend.replay([0], [np.ones((20, 2), np.float32)])
    assert longer.steps == 9
    assert longer.equals(last)
    assert not np.array_equal(last.obs, first[0])
    backend.close()


def test_episodes_of_different_lengths_differ_in_that() -> None:
    record = Record(b"the same", 0.0, False, False, b"")
    assert difference([record] * 3, [record] * 3) is None
    assert difference([record] * 3, [record] * 4) == "the length of the episode (2 steps)"


def test_an_environment_that_cannot_be_made_or_seeded_is_named() -> None:
    with pytest.raises(EnvSpecError, match=r"Seedless-v0: environments have .*reset.* that of Seedless has no seed;"):
        make_envs("own_envs:Seedless-v0", [1], 1)
    with pytest.raises(EnvSpecError, match=r"Faulty-v0 cannot be made with kwargs .*: a map has four corners"):
        make_envs(EnvSpec("own_envs:Faulty-v0", {"what": "value"}), [1], 1)
    with pytest.raises(EnvSpecError, match=r"Faulty-v0 cannot be made with kwargs .*: missing .* 'memory_length'"):
        make_envs(EnvSpec("own_envs:Faulty-v0", {"what": "memory"}), [1], 1)
    with pytest.raises(EnvironmentFailed, match=r"Faulty-v0 .*: its constructor raised FileNotFoundError: there is no"):
        make_envs(EnvSpec("own_envs:Faulty-v0", {"what": "file"}), [1], 1)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no space", "observation_space and action_space, but Faulty has no action_space; set it in its __init__"),
        ("no Gymnasium", "action_space, but Faulty has a builtins.tuple as observation_space; set it"),
        ("shape", r"must have the shape \(2,\), as observation_space says, but reset gave the shape \(1,\); fix one"),
        ("shape of a step", r"must have the shape \(2,\), as .* says, but step gave the shape \(1,\); fix one"),
        ("no info", r"reset returns \(observation, info\), .* but it returned array\(.*; return an info, \{\}"),
        ("no dict", "reset and step return info as a dict, but it is"),
        (
            "two rewards",
            r"a number, two booleans .* array\(\[0., 0.\]\), .*; weigh the 2 parts of its reward: \"reward_weights\"",
        ),
    ],
)
def test_environments_have_gymnasium_s_spaces_resets_and_steps(what: str, message: str) -> None:
    with pytest.raises(EnvSpecError, match=f"own_envs:Faulty-v0: .*{message}"):
        make_envs(EnvSpec("own_envs:Faulty-v0", {"what": what}), [1], 1)


@pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")  # inf minus inf, before the error
@pytest.mark.parametrize(
    ("what", "at", "when"),
    [
        ("observation", 5, "step 5"),
        ("reward", 5, "step 5"),
        ("huge reward", 5, "step 5"),
        ("observation", 0, "the reset"),
    ],
)
def test_a_number_that_is_not_finite_is_blamed_on_the_environment(what: str, at: int, when: str) -> None:
    task = PPO(EnvSpec("own_envs:Faulty-v0", {"what": what, "at": at})).init(
        num_steps=8, num_envs=2, num_minibatches=1, update_epochs=1, epoch_steps=16, model={"width": 8, "layers": 1}
    )
    number = rf"an? {what.removeprefix('huge ')} that is not finite in 32 bits"
    message = rf"{number} at {when} of episode 0 of its environment 0 \(seed \d+\); fix it"
    with pytest.raises(Diverged, match=f"own_envs:Faulty-v0 gave {message}"):
        task.fit(1)


def test_mujoco_does_not_tell_at_every_environment_what_is_deprecated_in_its_models(
    capfd: pytest.CaptureFixture[str],
) -> None:
    make_envs(EnvSpec("HalfCheetah-v5"), [1], 2).close()
    assert "deprecated" not in "".join(capfd.readouterr())
    assert mujoco.get_mju_user_warning() is None
    told: list[str] = []
    mujoco.set_mju_user_warning(told.append)  # a user's own
    try:
        make_envs(EnvSpec("HalfCheetah-v5"), [1], 1).close()
        assert told
    finally:
        mujoco.set_mju_user_warning(None)


def test_a_self_test_that_takes_long_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rekindle.tasks.envs.selftest.bench.SLOW", 0.0)
    self_test.cache_clear()
    words = (
        r"Blackjack-v1: the self-test, .* 1,500 steps or more in each process; .* minutes; .*\"restore\": \"restart\""
    )
    with pytest.warns(UserWarning, match=words) as warned:
        self_test(EnvSpec("Blackjack-v1"))
    assert len(warned) == 1


def test_a_forecast_of_a_self_test_leaves_out_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.chain([100.0, 100.0], itertools.repeat(100.1))  # after each step, when the test began at 0
    monkeypatch.setattr("rekindle.tasks.envs.selftest.bench.monotonic", lambda: next(seconds))
    self_test.cache_clear()
    self_test(EnvSpec("Blackjack-v1"))  # a warning would be an error


@pytest.mark.parametrize(
    ("declared", "mode", "renew"),
    [("restart", "restart", False), ("replay", "replay", False), ("renew", "replay", True)],
)
def test_a_declared_way_to_restore_takes_the_place_of_the_self_test(
    declared: str, mode: str, renew: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    monkeypatch.setenv("REKINDLE_TESTS_STEPS", str(tmp_path))
    envs = make_envs(EnvSpec("slow_envs:Slow-v0", restore=declared), [1], 2)
    assert isinstance(envs, GymEnvs)
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [1], "one step, whose result is checked"
    assert (envs.mode, envs.restore.renew, envs.exact) == (mode, renew, False)
    [label] = envs.inexact(0)
    assert f"is restored as declared (restore={declared})" in label
    assert "was not tested; leave restore out" in label


def test_a_declared_way_to_restore_is_one_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    with pytest.raises(EnvSpecError, match=r"must be restart, replay, renew, snapshot, .* but got 'resume'"):
        EnvSpec("slow_envs:Slow-v0", restore="resume")
    with pytest.raises(EnvSpecError, match=r"snapshots are those of MuJoCo and Atari; declare restore as 'replay'"):
        make_envs(EnvSpec("slow_envs:Slow-v0", restore="snapshot"), [1], 1)
    with pytest.raises(EnvSpecError, match=r"CartPole-v1: restore .* leave it out"):
        make_envs(EnvSpec("CartPole-v1", restore="replay"), [1], 1)
    snapshots = make_envs(EnvSpec("InvertedPendulum-v5", restore="snapshot"), [1], 1)
    assert snapshots.mode == "snapshot"
