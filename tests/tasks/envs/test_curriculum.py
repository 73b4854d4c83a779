"""Parameters of environments: samplers, lessons and their ends, and progress as state."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rekindle import A2C, Cohort, EnvSpec
from rekindle.tasks.checkpoint.manifests import canonical_json
from rekindle.tasks.envs import EnvSpecError, make_envs
from rekindle.tasks.envs.base.curriculum import Curriculum, _in_ranges
from rekindle.tasks.envs.gym.envs import GymEnvs
from support_path import SUPPORT


@pytest.fixture(autouse=True)
def own_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


def curriculum(*criteria: dict[str, Any], purpose: str = "train", members: int = 1) -> Curriculum:
    """Lessons 0, 1, 2, ... with these criteria, and one more without."""
    lessons = [{"value": float(i), "completion_criteria": criterion} for i, criterion in enumerate(criteria)]
    lessons.append({"value": float(len(criteria))})
    return Curriculum({"height": {"lessons": lessons}}, list(range(members)), purpose)


def play(made: Curriculum, *returns: float, steps: int = 10, member: int = 0) -> list[float]:
    """The lesson after each of these episodes."""
    lessons = []
    for value in returns:
        made.advance(steps, np.array([member]), np.array([value]))
        lessons.append(made.metrics(member)["lesson.height"])
    return lessons


# --- samplers ---


def draws(form: Any, count: int = 4000) -> np.ndarray:
    made = Curriculum({"x": form}, [5], "train")
    return np.array([made.options(0, 0, episode)["x"] for episode in range(count)])


def test_a_constant_is_itself() -> None:
    assert set(draws(9.81, 10)) == {9.81}
    assert set(draws({"uniform": [2, 2]}, 10)) == {2.0}


def test_uniform_gaussian_and_multirangeuniform_have_their_moments() -> None:
    uniform, gaussian = draws({"uniform": [-1.0, 3.0]}), draws({"gaussian": [1.0, 0.5]})
    assert -1 <= uniform.min() < -0.99
    assert 2.99 < uniform.max() <= 3
    assert uniform.mean() == pytest.approx(1, abs=0.08)
    assert gaussian.mean() == pytest.approx(1, abs=0.03)
    assert gaussian.std() == pytest.approx(0.5, abs=0.03)
    several = draws({"multirangeuniform": [[0, 1], [5, 8]]})
    low, high = several[several <= 1], several[several >= 5]
    assert len(low) + len(high) == len(several)
    assert len(low) / len(several) == pytest.approx(0.25, abs=0.03)  # each range as likely as it is long
    assert (high.max() <= 8, high.mean()) == (True, pytest.approx(6.5, abs=0.06))


def test_integers_and_choices_are_drawn_with_equal_chances() -> None:
    whole, chosen = draws({"integer": [-1, 2]}), draws({"choice": [0, 0.5, 8]})
    for seen, values in ((whole, [-1, 0, 1, 2]), (chosen, [0, 0.5, 8])):
        result, counts = np.unique(seen, return_counts=True)
        assert result.tolist() == values
        assert counts == pytest.approx(len(seen) / len(values), rel=0.1)
    made = Curriculum({"x": {"choice": ["4x4", "8x8"]}, "n": {"integer": [3, 3]}}, [5], "train")
    assert made.options(0, 0, 0)["x"] in ("4x4", "8x8")
    assert type(made.options(0, 0, 0)["n"]) is int


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [  # the forms of ML-Agents' page Training-Configuration-File.md
        (
            {"sampler_type": "uniform", "sampler_parameters": {"min_value": 0.5, "max_value": 10}},
            {"uniform": [0.5, 10]},
        ),
        ({"sampler_type": "gaussian", "sampler_parameters": {"mean": 4, "st_dev": 0.3}}, {"gaussian": [4, 0.3]}),
        (
            {"sampler_type": "multirangeuniform", "sampler_parameters": {"intervals": [[7, 10], [15, 20]]}},
            {"multirangeuniform": [[7, 10], [15, 20]]},
        ),
        ({"sampler_type": "constant", "sampler_parameters": {"value": 3}}, 3),
    ],
)
def test_the_spelling_of_ml_agents_means_the_same(theirs: Any, ours: Any) -> None:
    assert draws(theirs, 20).tolist() == draws(ours, 20).tolist()
    until = {"measure": "progress", "threshold": 0.1, "horizon": 100}
    lessons = [{"name": "a", "value": theirs, "completion_criteria": until}, {"value": 1}]
    spelled = [{**lessons[0], "completion_criteria": {**until, "behavior": "Walker"}}, {"value": 1}]
    forms = ({"curriculum": spelled}, {"lessons": lessons})
    of_theirs, of_ours = (Curriculum({"x": form}, [5], "train") for form in forms)
    assert of_theirs.options(0, 0, 0) == of_ours.options(0, 0, 0)


def test_a_parameter_that_the_environment_ignores_is_refused() -> None:
    with pytest.raises(EnvSpecError, match=r"reset reads, but it does not read 'gravity'; .* named 'kwargs.gravity'"):
        make_envs(EnvSpec("CartPole-v1", parameters={"gravity": 5.0, "low": -0.01}), [0], 1)
    make_envs(EnvSpec("CartPole-v1", parameters={"low": -0.01, "high": 0.01}), [0], 1)


class Curious(gym.Wrapper):  # type: ignore[type-arg]
    """Reads all options of a reset, whatever their names."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.last = dict(options or {})
        return super().reset(seed=seed)


def test_an_environment_that_reads_all_options_ignores_none() -> None:
    wrappers = [{"entry_point": f"{__name__}:Curious"}]
    make_envs(EnvSpec("CartPole-v1", wrappers=wrappers, parameters={"gravity": 5.0}), [0], 1).close()


def test_arguments_of_the_constructor_are_drawn_for_each_episode() -> None:
    spec = EnvSpec("Pendulum-v1", parameters={"kwargs.g": {"choice": [0, 20]}}, max_episode_steps=5)
    envs = make_envs(spec, [3], 2)
    assert isinstance(envs, GymEnvs)
    seen = set()
    for _ in range(12):
        before = [options["kwargs.g"] for options in envs.options if options]
        start, episodes = envs.obs, envs.episode.copy()
        step = envs.step(np.zeros((1, 2, 1), np.float32))
        for n, g in enumerate(before):  # the acceleration of a free pendulum of length 1: 3 g sin(angle) / 2
            push = (step.next_obs[0, n, 2] - start[0, n, 2]) / 0.05
            assert push == pytest.approx(1.5 * g * start[0, n, 1], abs=1e-3)
        seen |= set(zip(before, episodes.tolist(), strict=True))
    assert {g for g, _ in seen} == {0, 20}
    drawn = [options["kwargs.g"] for options in envs.options if options]
    assert envs.member_metrics(0) == {"parameter.g": sum(drawn) / 2}
    with pytest.raises(EnvSpecError, match=r"same spaces, but with .* action_space is Box.*vary other arguments"):
        make_envs(EnvSpec("LunarLander-v3", parameters={"kwargs.continuous": {"choice": [True]}}), [0], 1)


def test_a_draw_depends_on_seed_purpose_name_environment_and_episode_alone() -> None:
    form = {"uniform": [0, 1]}
    made = Curriculum({"x": form, "y": form}, [5, 6], "train")
    alone = Curriculum({"y": form}, [6], "train")
    assert made.options(1, 3, 4)["y"] == alone.options(0, 3, 4)["y"]
    values = [
        *made.options(0, 0, 0).values(),
        *made.options(1, 0, 0).values(),
        made.options(0, 1, 0)["x"],
        made.options(0, 0, 1)["x"],
        Curriculum({"x": form}, [5], "evaluation").options(0, 0, 0)["x"],
    ]
    assert len(set(values)) == len(values)


# --- lessons ---


def test_a_lesson_ends_when_the_mean_return_passes_the_threshold() -> None:
    made = curriculum({"threshold": 5.0, "min_lesson_length": 3, "signal_smoothing": False})
    assert play(made, 9.0, 9.0) == [0, 0]  # too few
    assert play(made, -3.0) == [0]  # a mean of exactly 5 is not above it
    assert play(made, 9.1) == [1]  # of the last three


def test_the_smoothed_measure_begins_with_the_first_one() -> None:
    # ML-Agents began at 0, smoothed at each call, and carried the value into the next lesson.
    made = curriculum({"threshold": 7.0}, {"threshold": 7.0})
    assert play(made, 4.0) == [0]
    assert play(made, 8.0) == [0]  # 1/4 * 4 + 3/4 * 8 = 7
    assert made.standings[0]["height"].smoothed == 7.0
    assert play(made, 7.1) == [1]
    assert made.standings[0]["height"].smoothed is None
    assert play(made, 7.1) == [2]


def test_the_last_lesson_stays_whatever_criteria_it_has() -> None:
    # ML-Agents took criteria of the last lesson and went beyond the end of the list.
    made = Curriculum(
        {"height": {"lessons": [{"value": i, "completion_criteria": {"threshold": 0}} for i in (1, 2)]}}, [0], "train"
    )
    assert play(made, 1.0, 1.0, 1.0, 1.0) == [1, 1, 1, 1]
    assert made.options(0, 0, 0) == {"height": 2.0}


def test_progress_is_a_share_of_the_horizon() -> None:
    made = curriculum({"measure": "progress", "threshold": 0.5, "horizon": 100})
    assert play(made, 0, 0, 0, 0, 0, 0) == [0, 0, 0, 0, 0, 1]  # 50 of 100 steps are not above a half
    late = curriculum({"measure": "progress", "threshold": 0.0, "horizon": 100, "min_lesson_length": 3})
    assert play(late, 0, 0, 0) == [0, 0, 1]


def test_a_nan_ends_no_lesson_and_is_not_remembered_for_ever() -> None:
    made = curriculum({"threshold": 1.0})
    assert play(made, math.nan, 0.0, 2.0) == [0, 0, 1]


def test_members_and_parameters_advance_apart() -> None:
    lessons = {"lessons": [{"value": 0, "completion_criteria": {"threshold": 1}}, {"value": 1}]}
    slow = {"lessons": [{"value": 0, "completion_criteria": {"threshold": 1, "min_lesson_length": 2}}, {"value": 1}]}
    made = Curriculum({"a": lessons, "b": slow, "c": 3.0}, [0, 1], "train")
    made.advance(2, np.array([1]), np.array([5.0]))
    assert made.metrics(0) == {"lesson.a": 0, "lesson.b": 0}
    assert made.metrics(1) == {"lesson.a": 1, "lesson.b": 0}
    assert made.options(1, 0, 0) == {"a": 1, "b": 0, "c": 3}


def test_evaluation_is_of_the_last_lesson() -> None:
    made = curriculum({"threshold": 1.0}, {"threshold": 1.0}, purpose="evaluation")
    assert made.options(0, 0, 0) == {"height": 2.0}
    assert play(made, 5.0) == [2]


def test_progress_is_state() -> None:
    # ML-Agents stored the number of the lesson only.
    whole, other = (curriculum({"threshold": 7.0}, {"threshold": 7.0, "min_lesson_length": 4}) for _ in range(2))
    returns = [4.0, 7.5, 9.0, 6.0, 7.5, 7.0, 7.3, 7.4, 8.0, 9.0]
    for k, value in enumerate(returns):
        other, before = curriculum({"threshold": 7.0}, {"threshold": 7.0, "min_lesson_length": 4}), other
        other.load_member(0, before.member_state(0))
        assert play(whole, value) == play(other, value), k
        assert canonical_json(whole.member_state(0)) == canonical_json(other.member_state(0))
    assert whole.metrics(0) == {"lesson.height": 2}


# --- in environments and tasks ---


def walk(**parameters: Any) -> EnvSpec:
    return EnvSpec("own_envs:LessonWalk-v0", max_episode_steps=5, parameters=parameters)


LESSONS = {"lessons": [{"value": i, "completion_criteria": {"threshold": 3, "min_lesson_length": 4}} for i in range(9)]}


def test_every_reset_is_given_its_own_draw() -> None:
    envs = make_envs(walk(spread={"uniform": [1, 2]}, wind=0.0), [1], 3)
    seen = [envs.obs[0, :, 2]]
    for k in range(10):
        before = envs.obs
        step = envs.step(np.ones((1, 3), np.int64))
        np.testing.assert_array_equal(step.next_obs[..., 2], before[..., 2])  # one episode, one value
        if k % 5 == 4:
            assert step.truncated.all()
            seen.append(envs.obs[0, :, 2])
    assert len(np.unique(seen)) == 9
    envs.close()


def test_a_lesson_counts_from_the_next_episode_on() -> None:
    envs = make_envs(walk(spread=LESSONS), [1], 3)
    lessons = []
    for _ in range(15):
        envs.step(np.ones((1, 3), np.int64))
        lessons.append((envs.member_metrics(0)["lesson.spread"], envs.obs[0, 0, 2]))
    assert lessons[4] == (0, 0)  # three episodes
    assert lessons[9] == (1, 1)  # six: the fourth ended the lesson, two are of the next
    assert lessons[14] == (2, 2)
    envs.close()


def test_a_lesson_may_cut_the_running_episodes() -> None:
    cut = {"lessons": [{"value": 0, "completion_criteria": {"threshold": 1.5, "require_reset": True}}, {"value": 7}]}
    envs = make_envs(walk(spread=cut, wind={"gaussian": [0.6, 0.1]}), [1, 2], 4)
    lesson = [0.0, 0.0]
    for _ in range(5):
        step = envs.step(np.ones((2, 4), np.int64))
        final = step.next_obs
        np.testing.assert_array_equal(step.terminated, np.abs(final[..., :2]).max(-1) > final[..., 2] + 1)
        for p in range(2):
            before, lesson[p] = lesson[p], envs.member_metrics(p)["lesson.spread"]
            if lesson[p] > before:  # whoever had not ended is truncated, and all begin the new lesson
                np.testing.assert_array_equal(step.truncated[p], ~step.terminated[p])
                np.testing.assert_array_equal(envs.obs[p, :, 2], 7)
    assert [envs.member_metrics(p)["lesson.spread"] for p in range(2)] == [1, 1]
    envs.close()


def test_classic_control_with_parameters_is_gymnasiums_own() -> None:
    envs = make_envs(EnvSpec("CartPole-v1", parameters={"low": 0.03, "high": {"uniform": [0.04, 0.05]}}), [1], 8)
    assert isinstance(envs, GymEnvs)
    assert envs.exact
    assert ((envs.obs >= 0.03) & (envs.obs <= 0.05)).all()
    envs.close()


def test_lessons_are_reported_and_part_of_the_identity() -> None:
    small = {"num_steps": 16, "num_envs": 2, "epoch_steps": 64}
    tasks = [A2C(walk(spread=LESSONS, wind=0.2), seed=seed).init(**small) for seed in range(2)]
    Cohort(tasks).fit(2)
    assert all("lesson.spread" in task.metrics for task in tasks)
    assert tasks[0].metrics["lesson.spread"] > 0
    assert A2C(walk(wind=0.3)).init(**small).uid != A2C(walk(wind=0.2)).init(**small).uid
    assert EnvSpec("CartPole-v1", parameters={}).to_json() == EnvSpec("CartPole-v1").to_json()
    assert "parameters" not in EnvSpec("CartPole-v1").canonical  # as it was before there were any
    assert EnvSpec.from_json(walk(wind=0.2).to_json()) == walk(wind=0.2)


UNTIL = {"threshold": 1}


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ("fast", r"parameters\.x must be a number, .* but got 'fast'"),
        (True, r"parameters\.x must be a number"),
        ({"uniform": [2, 1]}, "low <= high"),
        ({"uniform": [1]}, "parameters.x must be"),
        ({"gaussian": [0, -1]}, "st_dev >= 0"),
        ({"multirangeuniform": [[0, 1], [3, 2]]}, "parameters.x must be"),
        ({"multirangeuniform": []}, "parameters.x must be"),
        ({"normal": [0, 1]}, "parameters.x must be"),
        ({"integer": [1.5, 3]}, "parameters.x must be"),
        ({"choice": []}, "parameters.x must be"),
        (
            {"sampler_type": "uniform", "sampler_parameters": {"min_value": 1, "seed": 3}},
            "no seed, as draws follow the",
        ),
        ({"lessons": []}, r"parameters\.x must be \{'lessons': \[lesson, ...\]\} with one at least"),
        ({"lessons": [{"value": 1}, {"value": 2}]}, r"lessons\[0\] must have completion_criteria, as lessons follow"),
        ({"lessons": [{"name": "low"}]}, r"lessons\[0\] must have a value"),
        ({"lessons": [{"value": 1, "completion_criteria": {"treshold": 1}}]}, "did you mean threshold"),
        ({"lessons": [{"value": 1, "completion_criteria": 3}]}, r"completion_criteria must be an object, but got 3"),
        ({"lessons": [{"value": 1, "completion_criteria": {"measure": "luck"}}]}, "measure must be one of reward, pro"),
        ({"lessons": [{"value": 1, "completion_criteria": {"threshold": "1"}}]}, "threshold must be a number"),
        ({"lessons": [{"value": 1, "completion_criteria": {"min_lesson_length": -1}}]}, "min_lesson_length must be"),
        ({"lessons": [{"value": 1, "completion_criteria": {**UNTIL, "horizon": 9}}]}, "horizon must be left out"),
        ({"lessons": [{"value": 1, "completion_criteria": {"measure": "progress"}}]}, "horizon must be a number of"),
        (
            {"lessons": [{"value": 1, "completion_criteria": {"measure": "progress", "horizon": 9, "threshold": 2}}]},
            "threshold must be from 0 to 1",
        ),
    ],
)
def test_invalid_values_are_refused_with_their_place(form: Any, words: str) -> None:
    with pytest.raises(EnvSpecError, match=words):
        EnvSpec("own_envs:LessonWalk-v0", parameters={"x": form})


def test_the_last_of_several_ranges_ends_at_its_end() -> None:
    ranges = [[0.0, 0.1], [5.0, 5.2], [7.0, 7.7]]
    assert [_in_ranges(ranges, u) for u in (0.0, 0.05, 0.2)] == pytest.approx([0.0, 0.05, 5.1])
    for count in range(1, 60):  # lengths are rounded, and so is their sum: the largest draw must not pass the end
        tenths = [[float(i), i + 0.1] for i in range(count)]
        assert count - 1 < _in_ranges(tenths, np.nextafter(1.0, 0.0)) <= tenths[-1][1]


def test_a_lesson_that_measures_info_waits_for_an_episode_that_has_it() -> None:
    until = {"measure": "info.score", "threshold": 1.0, "min_lesson_length": 2, "signal_smoothing": False}
    lessons = {"lessons": [{"value": 0, "completion_criteria": until}, {"value": 1}]}
    made = Curriculum({"height": lessons}, [0], "train", ("score",))
    for score, lesson in ((5.0, 0), (math.nan, 0), (math.nan, 0), (5.0, 1)):
        made.advance(1, np.array([0]), np.array([0.0]), {"info.score": np.array([score])})
        assert made.metrics(0) == {"lesson.height": lesson}


def test_a_pool_takes_none() -> None:
    with pytest.raises(EnvSpecError, match=r"in a pool takes no parameters, but got \['wind'\]; CartPole-v1"):
        make_envs(EnvSpec("envpool/CartPole-v1", parameters={"wind": 1}), [1], 1)
