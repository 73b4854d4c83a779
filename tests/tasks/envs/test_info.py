"""Entries of `info` as metrics: reductions, state, and output."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rekindle import PPO, EnvSpec
from rekindle.studies.cli import main
from rekindle.tasks.envs import EnvSpecError, make_envs
from rekindle.tasks.envs.base.info import EpisodeInfo, find, numbers_in
from rekindle.tasks.evaluation.measuring import measure_episodes
from support_path import SUPPORT
from test_envs_gym import choose

INFO = {"cost": "sum", "right": "last", "count.steps": "max"}
SEARCH = EnvSpec("own_envs:Search-v0", parameters={"wind": 0.5}, info=INFO)
SMALL: dict[str, Any] = {
    "num_steps": 8,
    "num_envs": 2,
    "num_minibatches": 1,
    "update_epochs": 1,
    "epoch_steps": 32,
    "model": {"width": 8, "layers": 1},
}


@pytest.fixture(autouse=True)
def own_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)


def test_an_episode_is_reduced_over_the_steps_that_have_the_entry() -> None:
    reductions = {name: name for name in ("last", "mean", "sum", "min", "max")}
    info = EpisodeInfo(reductions, np.array([0, 1]))
    for first, second in ((3.0, np.nan), (np.nan, np.nan), (-1.0, np.inf), (4.0, np.nan)):
        info.add(np.array([[first] * 5, [second] * 5]))
    info.end(np.array([0, 1]))
    assert info.last[0].tolist() == [4, 2, 6, -1, 4]
    assert np.isnan(info.last[1]).all()
    info.begin([0])
    info.add(np.array([[8.0] * 5, [0.0] * 5]))
    info.end(np.array([0]))
    assert info.take_metrics() == [
        {"info.last": 6.0, "info.mean": 5.0, "info.sum": 7.0, "info.min": 3.5, "info.max": 6.0},
        {},  # without a finite number no episode counts
    ]
    assert info.take_metrics() == [{}, {}]


class Refusing:
    """An object of others whose conversion to an array fails."""

    def __array__(self, *form: Any, **options: Any) -> Any:
        raise RuntimeError("not now")


def test_objects_that_are_no_arrays_are_no_numbers() -> None:
    gradient = torch.ones(1, requires_grad=True) * 2
    info = {"loss": gradient, "model": Refusing(), "steps": torch.tensor([3]), "rows": np.arange(3)}
    assert [*numbers_in(info)] == ["steps"]


def test_metrics_are_those_of_the_environment_itself() -> None:
    # The same episodes by hand, from what the environment says.
    envs = make_envs(SEARCH, [4], 2)
    costs: list[list[float]] = [[], []]
    episodes: list[tuple[float, float, int]] = []
    for k in range(40):
        step = envs.step(choose(envs, k, [4]))
        for n in range(2):
            costs[n].append(abs(float(step.next_obs[0, n, 0])))
            if step.terminated[0, n] or step.truncated[0, n]:
                episodes.append((sum(costs[n]), float(step.next_obs[0, n, 0] > 0), len(costs[n])))
                costs[n] = []
    cost, right, steps = (sum(column) / len(episodes) for column in zip(*episodes, strict=True))
    expected = {"info.cost": pytest.approx(cost, rel=1e-5), "info.right": right, "info.count.steps": steps}
    assert envs.info.take_metrics() == [expected]
    assert envs.unreported == ()


def test_company_processes_and_a_restart_in_an_episode_change_no_metric() -> None:
    whole, spread = make_envs(SEARCH, [4, 5], 2), make_envs(SEARCH, [4, 5], 2, processes=1)
    other = make_envs(SEARCH, [5], 2)
    for k in range(13):
        for envs in (whole, spread):
            envs.step(choose(envs, k, [4, 5]))
    other.load_member(0, whole.member_state(1))
    for k in range(13, 30):
        for envs in (whole, spread):
            envs.step(choose(envs, k, [4, 5]))
        other.step(choose(other, k, [5]))
    expected = whole.info.take_metrics()
    assert spread.info.take_metrics() == expected
    assert other.info.take_metrics() == expected[1:]
    assert expected[0] != expected[1]
    spread.close()


def test_a_lesson_may_be_measured_by_an_entry() -> None:
    until = {"measure": "info.count.steps", "threshold": 8.5, "signal_smoothing": False}
    lessons = {"spread": {"lessons": [{"value": 0, "completion_criteria": until}, {"value": 99}]}, "wind": 0.2}
    task = PPO(EnvSpec("own_envs:Search-v0", parameters=lessons, info=INFO)).init(**SMALL)
    task.fit(6)
    ended = [metrics["lesson.spread"] for _, metrics in task.history]
    longest = [metrics["info.count.steps"] for _, metrics in task.history]
    assert ended[0] == 0 or longest[0] > 8.5
    assert ended[-1] == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"info": {"cost": "average"}}, r"info: cost must be reduced by last, mean, sum, min, max, but got 'average'"),
        ({"info": "cost"}, "info must be a list of names, or a dict of names and reductions, but got 'cost'"),
        ({"info": [3]}, "info must be a list of names"),
        (
            {
                "info": ["cost"],
                "parameters": {"x": {"lessons": [{"value": 1, "completion_criteria": {"measure": "info.gain"}}]}},
            },
            r"measure must be one of reward, progress, info.cost, or reported in info, but got 'info.gain'",
        ),
    ],
)
def test_invalid_values_are_refused(content: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvSpecError, match=words):
        EnvSpec.from_json({"id": "own_envs:Search-v0", **content})


def test_an_entry_that_is_no_number_is_refused() -> None:
    with pytest.raises(
        EnvSpecError, match=r"info must be one number a step, but info\['word'\] is 'left'; leave it out"
    ):
        make_envs(EnvSpec("own_envs:Search-v0", info=["word"]), [1], 1)


def test_a_spec_without_info_is_what_it_was() -> None:
    assert "info" not in EnvSpec("CartPole-v1").to_json()
    assert EnvSpec("CartPole-v1", info=["a"]).to_json()["info"] == {"a": "last"}


@pytest.mark.slow
def test_commands_show_entries_seek_them_and_hint_at_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    spec = json.dumps({"id": "own_envs:Search-v0", "parameters": {"wind": 0.5}})
    small = ["--set", "num_steps=8", "--set", "epoch_steps=64", "--set", "model.width=16", "--storage", url, "--json"]
    assert main(["train", "ppo", spec, "--epochs", "1", "--info", "cost:sum", "--info", "wrong", *small]) == 0
    out, err = capsys.readouterr()
    assert "no episode had info wrong; the environment gives count.steps, right, cost" in err
    trained = json.loads(out)
    assert trained["metrics"]["info.cost"] > 0
    assert main(["evaluate", trained["uid"], "--episodes", "3", "--storage", url, "--json"]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    assert evaluated["info.cost"] > 0
    assert evaluated["info.wrong"] is None

    assert main(["train", "ppo", spec, "--epochs", "1", *small]) == 0
    assert "gives info cost, count.steps, right; --info NAME makes it a metric" in capsys.readouterr().err
    seek = ["--objective", "info.cost:minimize", "--objective", "evaluated.info.cost:minimize", "--scheduler", "none"]
    search = ["--info", "cost:sum", *seek, "--trials", "2", "--epochs", "1", "--study", "s", "--workers", "1"]
    assert main(["tune", "ppo", spec, *search, *small]) == 0
    capsys.readouterr()
    assert main(["trials", "s", "--storage", url, "--json"]) == 0
    for trial in json.loads(capsys.readouterr().out)["trials"]:
        assert trial["objectives"]["info.cost"] > 0
        assert trial["objectives"]["evaluated.info.cost"] > 0


def test_evaluation_has_each_episodes_entries() -> None:
    task = PPO(SEARCH).init(**SMALL)
    measured = task.measure(5)
    assert set(measured) == {"return", "info.cost", "info.right", "info.count.steps"}
    assert measured["return"] == task.returns(5) == measure_episodes(task.member_ref().learner, 5).returns[0].tolist()
    assert all(1 <= steps <= 9 for steps in measured["info.count.steps"])
    assert set(measured["info.right"]) <= {0.0, 1.0}


def test_an_info_that_contains_itself_is_read_once() -> None:
    info: dict[str, Any] = {"cost": 1.0, "part": {"x": 2}, 3: 4}
    info["part"]["whole"] = info["me"] = info
    assert [*numbers_in(info)] == ["cost", "part.x"]  # 3 has no name by which `find` could read it


def test_an_entry_of_a_dict_whose_name_has_a_dot_is_reported() -> None:
    info = {"eval.hard": {"cost": 1.0}, "eval": {"hard": 2.0, "easy.first": {"cost": 3.0}}, "x.y": 4.0}
    assert find(info, "eval.hard.cost") == 1.0
    assert find(info, "eval.easy.first.cost") == 3.0
    assert find(info, "x.y") == 4.0
    assert find(info, "eval.hard.speed") is None
