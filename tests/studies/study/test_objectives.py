"""Several objectives: fronts by arithmetic, whole studies, and refusals before any training."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rekindle
import sqlalchemy as sa
from rekindle.spaces import unflatten
from rekindle.studies.cli import main
from rekindle.studies.engine.checked_config import make_population
from rekindle.studies.engine.optuna_mirror import frozen, mirror
from rekindle.studies.engine.snapshots import look
from rekindle.studies.engine.study_views import study_json
from rekindle.studies.errors import BadConfig, DamagedRow
from rekindle.studies.schedulers.asha import ASHA
from rekindle.studies.schedulers.seeds import collapse, seed_options
from rekindle.studies.storage.rows import Segment, Trial
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.study.number_text import in_digits, in_digits_alone
from rekindle.studies.study.objectives import (
    Unmeasured,
    best_first,
    bounds_of,
    crowding,
    dominates,
    fronts,
    mean_of_known,
    measure,
    objective_options,
    objectives_of,
    ranking,
    undominated,
)
from rekindle.studies.study.stored_form import invalid_field
from rekindle.studies.upkeep.exporting import export_study
from rekindle.studies.upkeep.fsck import check
from rekindle.studies.upkeep.fsck_repair import repair
from rekindle.studies.upkeep.importing import import_study
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import EnvSpec, load
from studying import TINY, run, run_by_three, tiny, undisturbed
from support_path import SUPPORT

RETURN_AND_SIZE = objective_options(["return", "model_size"])
OPEN = {name: value for name, value in TINY.items() if name != "model.width"}


def searched(**options: Any) -> Config:
    """A tiny study in which the width, and so the size, is searched."""
    config = tiny(**{"cohort": 1, "options": RETURN_AND_SIZE, **options})
    space = {**config.space, "model.width": "ordinal(4, 8, 16, default=16, structural=True)"}
    fixed = {name: value for name, value in config.fixed.items() if name != "model.width"}
    return Config(**{**config.to_json(), "space": space, "fixed": fixed})


def named(objective: str, bounds: tuple[float | None, float | None]) -> Any:
    """A task with this objective."""
    return rekindle.task(space=rekindle.Space(), objective=objective, bounds=bounds)(
        lambda hp, state, seed: (None, {objective: 1})
    )


def test_bounds_of_objectives_are_known_or_left_open() -> None:
    ppo, digits = load("ppo"), load("digits")
    assert bounds_of("accuracy", digits) == (0, 1)
    assert bounds_of("accuracy", ppo) == bounds_of("return", ppo) == (None, None)
    assert bounds_of("info.is_success", ppo) == bounds_of("evaluated.info.is_success", ppo) == (0, 1)
    last, summed = ({"id": "Reach-v1", "info": {"is_success": how}} for how in ("last", "sum"))
    for name in ("info.is_success", "evaluated.info.is_success"):
        assert bounds_of(name, ppo, [last]) == (0, 1)
        assert bounds_of(name, ppo, [last, summed]) == (0, None)  # an episode may go on at its goal
    assert bounds_of("info.success", ppo) == bounds_of("success_rate", ppo) == (0, 1)
    assert bounds_of("success_rate", named("success_rate", (None, None))) == (0, 1)
    assert bounds_of("success_rate", named("success_rate", (0, 100))) == (0, 100)  # in percent, as the task says
    assert bounds_of("episode_length", ppo) == bounds_of("model_size", digits) == (0, None)


def test_objectives_have_directions() -> None:
    assert objective_options([]) == objective_options(["return"]) == {}
    result = objective_options(["return", "model_size", "env_steps_per_second", "episode_length:minimize"])
    assert result == {
        "objectives": {
            "return": "maximize",
            "model_size": "minimize",
            "env_steps_per_second": "maximize",
            "episode_length": "minimize",
        }
    }
    assert objectives_of(tiny()) == {"return": "maximize"}


def test_another_aggregate_of_the_episodes_can_be_sought(sqlite_url: str) -> None:
    config = tiny(trials=1, options=objective_options(["return_median", "return_top_quartile"]))
    run(sqlite_url, config)
    with Store(sqlite_url) as store:
        study = study_json(store, "s")
        [trial] = study["trials"]
        task = config.make_task(load("ppo"), unflatten(trial["hyperparameters"]), None)
    task.fit(trial["epochs"])
    returns = sorted(task.returns())
    assert study["objectives"] == {"return_median": "maximize", "return_top_quartile": "maximize"}
    assert {name: trial["objectives"][name] for name in study["objectives"]} == {
        "return_median": (returns[9] + returns[10]) / 2,
        "return_top_quartile": pytest.approx(sum(returns[15:]) / 5),
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["model_size", "return", "return"], "return is named again"),
        (["episode_length"], "episode_length:maximize or :minimize"),
        (["model_size:down"], "direction of an objective must be one of maximize, minimize, but got 'down'"),
        (["wolf"], "of their own, as a behaviour's return.NAME has; for a metric .* direction: wolf:maximize or"),
        ([""], "'' is not one of return, return_median, .*, model_size, env_steps_per_second"),
    ],
)
def test_objectives_that_make_no_sense_are_refused(texts: list[str], message: str) -> None:
    with pytest.raises(BadConfig, match=message):
        objective_options(texts)


def test_an_impossible_objective_is_reported_before_training() -> None:
    with pytest.raises(BadConfig, match=r"sampler cmaes takes one objective, but got 2; use tpe, .*nsgaii"):
        tiny(sampler="cmaes", options=RETURN_AND_SIZE)
    with pytest.raises(BadConfig, match=r"objective must be one of .*; did you mean approx_kl\?"):
        tiny(options=objective_options(["approx_kll:minimize"]))
    assert tiny(options=objective_options(["approx_kl:minimize"])).options["objectives"] == {"approx_kl": "minimize"}
    with pytest.raises(BadConfig, match="which needs one objective, but --objective names return, model_size; name"):
        make_population(load("ppo"), "CartPole-v1", epochs=4, **objective_options(["return", "model_size"]))
    with pytest.raises(BadConfig, match=r"objective must be one of .*return\.hunter.*, but got 'return\.bear'"):
        make_population(load("behaviours"), "pettingzoo/hunt_env:Hunt", epochs=4, **objective_options(["return.bear"]))


def test_an_objective_is_a_finite_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT)
    env = EnvSpec("own_envs:Search-v0", info={"cost": "sum", "never": "last"})
    task = load("ppo")(env).init(**unflatten(TINY))

    def measured(name: str, result: float = 1.0) -> float:
        return measure([name], task, result, lambda: task)[name]

    assert measured("return") == 1.0
    assert measured("evaluated.info.cost") == pytest.approx(statistics.fmean(task.measure()["info.cost"]))
    with pytest.raises(Unmeasured, match=r"measured in evaluation, but own_envs:Search-v0 gave no info\.never there"):
        measured("evaluated.info.never")
    with pytest.raises(Unmeasured, match="an objective is a finite number, but return became inf"):
        measured("return", math.inf)
    assert mean_of_known([math.nan, 1.0, 3.0]) == 2.0
    assert mean_of_known([math.nan]) is mean_of_known([]) is None


@pytest.mark.parametrize("objectives", [[], {}, {"return": "up"}, {"return": 1}, {1: "maximize"}])
def test_objectives_in_a_stored_configuration_are_checked(objectives: Any) -> None:
    assert "options" in invalid_field({**tiny().to_json(), "options": {"objectives": objectives}})


def test_fronts_are_those_of_the_definition() -> None:
    rng = random.Random(0)
    for _ in range(20):
        points = [[rng.randint(0, 5) for _ in range(3)] for _ in range(30)]
        result = fronts(points)
        assert sorted(itertools.chain(*result)) == list(range(30))
        left = set(range(30))
        for front in result:
            assert front == sorted(i for i in left if not any(dominates(points[j], points[i]) for j in left))
            left -= set(front)
        assert undominated(points) == result[0]


def test_dominance() -> None:
    assert dominates([1, 1], [1, 0])
    assert not dominates([1, 1], [1, 1])
    assert not dominates([2, 0], [1, 1])


def test_distant_points_come_first_within_a_front() -> None:
    points = [[0.0, 4.0], [1.0, 3.0], [1.5, 2.5], [4.0, 0.0], [0.0, 0.0]]
    assert crowding(points[:4]) == [math.inf, 1.5 / 4 + 1.5 / 4, 3 / 4 + 3 / 4, math.inf]
    assert ranking(points) == [0, 3, 2, 1, 4]
    assert crowding([[1.0, 2.0]] * 3) == [0.0, 0.0, 0.0]
    assert ranking([[1.0], [3.0], [3.0], [2.0]]) == [1, 2, 3, 0]


def test_one_objective_is_ranked_by_its_score() -> None:
    rows = [Segment(n, 0, 1, "done", score) for n, score in enumerate([1.0, 3.0, 3.0, 2.0])]
    assert [row.number for row in best_first(tiny(), [*rows[::-1], Segment(9, 0, 1)])] == [1, 2, 3, 0]


def test_asha_promotes_the_front_of_those_that_have_finished() -> None:
    config = tiny(trials=6, epochs=(1, 2, 2), scheduler="asha", options=RETURN_AND_SIZE, generation=6)
    scheduler = ASHA(config)
    scheduler.observe([Trial(n, f"u{n}", {}) for n in range(6)], [Segment(n, 0, 1) for n in range(6)])
    sizes_and_returns = [(50, 10.0), (60, 5.0), (10, 3.0), (20, 1.0), (5, 2.0), (40, 9.0)]
    promoted = []
    for number, (size, score) in enumerate(sizes_and_returns):
        measured = {"return": score, "model_size": float(size)}
        scheduler.observe([], [Segment(number, 0, 1, "done", score, objectives=measured)])
        following = scheduler.plan().segments
        promoted.append([row.number for row in following])
        scheduler.observe([], following)
    # Of five, two: the ends of the front {0, 2, 4}. Of six, three: also 5, with 7/8 + 40/45 against 7/8 + 35/45 of 2.
    assert promoted == [[], [0], [], [2], [4], [5]]


@pytest.mark.parametrize(
    ("sampler", "scheduler"),
    [
        ("nsgaii", "none"),
        pytest.param("tpe", "halving", marks=pytest.mark.slow),
        pytest.param("nsgaiii", "hyperband", marks=pytest.mark.slow),
    ],
)
def test_any_number_of_workers_finds_the_same_front(sqlite_url: str, sampler: str, scheduler: str) -> None:
    config = searched(trials=5, epochs=(1, 2, 2), generation=5, sampler=sampler, scheduler=scheduler, seed=2)
    assert run_by_three(sqlite_url, config) == undisturbed(config)
    with Store(sqlite_url) as store:
        view = study_json(store, "s")
    assert view["objectives"] == {"return": "maximize", "model_size": "minimize"}
    trials = {trial["number"]: trial for trial in view["trials"]}
    longest = [trial for trial in trials.values() if trial["epochs"] == 2]
    points = {trial["number"]: [trial["return"], -trial["objectives"]["model_size"]] for trial in longest}
    expected = {n for n, mine in points.items() if not any(dominates(other, mine) for other in points.values())}
    assert set(view["front"]) == expected
    assert view["best"] == trials[view["front"][0]]
    assert len({trial["objectives"]["model_size"] for trial in longest}) > 1


def test_the_size_is_that_of_the_networks(sqlite_url: str) -> None:
    run(sqlite_url, searched(trials=3, epochs=(1,), scheduler="none"))
    with Store(sqlite_url) as store:
        for trial, row in zip(store.trials("s"), store.segments("s"), strict=True):
            width = trial.params["model.width"]
            actor, critic = (4 * width + width + (width + 1) * out for out in (2, 1))
            assert row.objectives == {"return": row.score, "model_size": actor + critic}
            assert store.metrics(trial.uid)[-1][1]["model_size"] == actor + critic


def test_one_objective_may_be_any_metric_and_the_score_rises_with_it(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(sqlite_url, tiny(3, (1, 2, 2), options=objective_options(["episode_length:minimize"])))
    with Store(sqlite_url) as store:
        view, rows = study_json(store, "s"), store.segments("s")
        best = look(store, "s").best
    assert best is not None
    assert best.value == min((row.objectives or {})["episode_length"] for row in rows)
    assert all(row.score == -(row.objectives or {})["episode_length"] for row in rows)
    complete = [trial for trial in view["trials"] if trial["state"] == "complete"]
    assert view["best"]["objectives"]["episode_length"] == min(t["objectives"]["episode_length"] for t in complete)
    assert view["best"]["return"] == view["best"]["objectives"]["return"] > 0
    assert main(["status", "--storage", sqlite_url]) == 0
    assert f"{in_digits_alone(best[0])} episode_length" in " ".join(capsys.readouterr().out.split())
    assert main(["trials", "s", "--storage", sqlite_url]) == 0
    lengths = [(row.objectives or {})["episode_length"] for row in rows]
    assert in_digits([best[0], *lengths])[0] in capsys.readouterr().out


def test_speed_is_measured_without_touching_the_training(sqlite_url: str, tmp_path: Path) -> None:
    plain = run(sqlite_url, tiny(trials=2, epochs=(2,), sampler="random", scheduler="none"))
    timed = run(
        f"sqlite:///{tmp_path / 'timed.db'}",
        tiny(
            trials=2,
            epochs=(2,),
            sampler="random",
            scheduler="none",
            options=objective_options(["return", "env_steps_per_second"]),
        ),
    )
    assert timed["trials"] == plain["trials"]
    assert timed["checkpoints"] == plain["checkpoints"]
    assert all(row.objectives["env_steps_per_second"] > 0 for row in timed["segments"])


def test_a_metric_that_is_never_reported_fails_its_trial_and_says_so(sqlite_url: str) -> None:
    config = tiny(trials=1, epochs=(1,), options=objective_options(["approx_kl:minimize"]))
    run(sqlite_url, Config(**{**config.to_json(), "options": {"objectives": {"approx_kll": "minimize"}}}))
    with Store(sqlite_url) as store:
        [trial] = store.trials("s")
    assert trial.state == "failed"
    assert "in 1 epochs it reported approx_kl, " in (trial.error or "")
    assert "and no approx_kll" in (trial.error or "")


def test_the_aggregate_of_seeds_is_of_each_objective_in_its_direction() -> None:
    options = seed_options(4, "top_quartile") | objective_options(["return", "episode_length:minimize"])
    values = [{"return": float(n), "episode_length": float(10 + n)} for n in range(4)]
    rows = [Segment(n, 0, 1, "done", float(n), "d", values[n], seeds=4) for n in range(4)]
    [row] = collapse(tiny(options=options), [], rows)[1]
    assert row.objectives == {"return": 3.0, "episode_length": 10.0}
    assert row.score == 3.0


def test_optuna_sees_all_objectives_and_a_file_keeps_them(sqlite_url: str, tmp_path: Path) -> None:
    import optuna

    before = run(sqlite_url, searched(trials=4, epochs=(1,), scheduler="none"))
    with Store(sqlite_url) as store:
        assert mirror(store, "s") == 4
        export_study(store, "s", tmp_path / "s.study")
    with Store(f"sqlite:///{tmp_path / 'copy.db'}") as copy:
        import_study(copy, tmp_path / "s.study")
        assert copy.segments("s") == before["segments"]
    output = optuna.load_study(study_name="s", storage=sqlite_url)
    assert [direction.name for direction in output.directions] == ["MAXIMIZE", "MINIMIZE"]
    expected = [[row.objectives["return"], row.objectives["model_size"]] for row in before["segments"]]
    assert [trial.values for trial in output.trials] == expected


@pytest.mark.slow
def test_the_command_line_takes_objectives_and_shows_the_front(
    sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "tune",
        "ppo",
        "CartPole-v1",
        "--study",
        "s",
        "--trials",
        "6",
        "--epochs",
        "1",
        "--generation",
        "3",
        "--cohort",
        "1",
        "--scheduler",
        "none",
        "--objective",
        "return",
        "--objective",
        "model_size",
        "--workers",
        "1",
        "--storage",
        sqlite_url,
    ]
    command += [part for name, value in OPEN.items() for part in ("--set", f"{name}={value}")]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "Pareto front of s: maximize return, minimize model_size" in said
    assert main(["trials", "s", "--storage", sqlite_url, "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert set(output["front"]) <= set(range(6))
    assert main(["trials", "s", "--storage", sqlite_url]) == 0
    table = capsys.readouterr().out
    assert table.count(" * ") == len(output["front"])
    assert main(["status", "--storage", sqlite_url]) == 0
    assert main([*command, "--objective", "model_siz"]) == 2
    assert "'model_siz' is not one of return, return_median" in capsys.readouterr().err


def test_a_result_that_lacks_an_objective_is_named_as_damage(sqlite_url: str) -> None:
    config = searched(trials=2, epochs=(1,), scheduler="none")
    run(sqlite_url, config)
    with Store(sqlite_url) as store:
        rows = store.segments("s")
        raw = sa.text("UPDATE rk_segment SET objectives = :text WHERE number = 1").bindparams(text='{"return":1.0}')
        store.database.write(lambda c: c.execute(raw))
        with pytest.raises(DamagedRow, match="all objectives of its study, but one lacks model_size"):
            study_json(store, "s")
        with pytest.raises(DamagedRow, match="one lacks return"):
            best_first(config, [rows[0], replace(rows[1], objectives=None)])
        with pytest.raises(DamagedRow, match="one lacks model_size"):
            frozen(config, (store.trials("s")[1], [store.segments("s")[1]], {}), None)
        findings = check(store)
        assert [(finding.kind, finding.what) for finding in findings] == [("segment-result", "it has no model_size")]
        repair(store, findings)
        assert Worker(store, "s").run()
        assert store.segments("s") == rows
