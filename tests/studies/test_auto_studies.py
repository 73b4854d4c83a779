"""Studies that choose an algorithm: equal with any workers, confirmed, reported, and resumed after SIGKILL."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rekindle
import sqlalchemy as sa
from gated import Gate
from rekindle.studies.cli import main
from rekindle.studies.engine.tune_options import study_config
from rekindle.studies.report.data import report_view
from rekindle.studies.study.number_text import in_digits_alone
from rekindle.studies.upkeep.fsck import check
from rekindle.tasks import load
from studying import TINY, run, run_and_be_killed, run_by_three, undisturbed

REPLAY = {name: TINY[name] for name in ("epoch_steps", "num_envs", "model.width")}
REPLAY |= {"learning_starts": 32, "batch_size": 16, "buffer_size": 200}
FIXED = {f"{name}.{path}": value for name, values in (("ppo", TINY), ("dqn", REPLAY)) for path, value in values.items()}
PRIORS = {"algorithm": "choices(['ppo', 'dqn'])"}
OPTIONS: dict[str, Any] = {"fixed": FIXED, "priors": PRIORS, "trials": 5, "epochs": "1:2", "generation": 5}


def config(env: str = "CartPole-v1", **options: Any) -> Any:
    return study_config(load("auto"), env, **{**OPTIONS, **options})


def test_a_study_chooses_an_algorithm_and_is_confirmed_and_reported(sqlite_url: str, tmp_path: Path) -> None:
    study = rekindle.tune("auto", "CartPole-v1", storage=sqlite_url, study="s", progress=False, **OPTIONS)
    assert {trial.hyperparameters["algorithm"] for trial in study.trials} == {"ppo", "dqn"}
    for trial in study.trials[:2]:
        name = trial.hyperparameters["algorithm"]
        task = load(name)("CartPole-v1").init(**{"ppo": TINY, "dqn": REPLAY}[name])
        task.fit(trial.epochs)
        assert (task.uid, task.digest) == (trial.uid, trial.digest)
        assert study.store.task(trial.uid).name == name
    result = study.confirm(top=2, seeds=3, progress=False)
    assert result["winner"] is not None
    assert study.best is not None
    text, file = study.answer(tmp_path / "agent.safetensors"), tmp_path / "agent.safetensors"
    winner, rows = result["candidates"][result["winner"]], study.store.segments("s:confirmation")
    returns = {row.number: row.score for row in rows if row.configuration == result["winner"]}
    name, highest = winner["hyperparameters"]["algorithm"], max(returns.values())
    of = f"the best of {len(returns)} trainings of trial {winner['trial']} on fresh seeds"
    sentence = f"{name} learned 128 steps in {of} (return {in_digits_alone(highest)}); its agent is in {file}"
    assert sentence in text
    best = next(trial for trial in study.store.trials("s:confirmation") if returns.get(trial.number) == highest)
    assert f'"uid":"{best.uid}"'.encode() in file.read_bytes()
    view = report_view(study.store, "s")
    assert "algorithm" in [dimension.name for dimension in view.dimensions]
    assert check(study.store) == []
    assert main(["trials", "s", "--storage", sqlite_url]) == 0
    assert main(["diagnose", "s", "--storage", sqlite_url]) == 0
    failed = sa.text("UPDATE rk_segment SET state = 'failed', score = NULL WHERE study = 's:confirmation'")
    study.store.database.write(lambda connection: connection.execute(failed))
    text = study.answer(file)
    assert "Nothing is confirmed" in text
    assert f"learned 128 steps in trial {study.best.number}; its agent is in {file}" in text


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "random", "gp", "cmaes", "qmc", "nsgaii"])
def test_samplers_choose_algorithms_equally_with_three_workers(url: str, sampler: str) -> None:
    chosen = config(sampler=sampler, trials=8, portfolio="off")
    by_three = run_by_three(url, chosen)
    assert run(url, chosen, "alone") == by_three


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", ["adaptive", "halving", "hyperband", "none"])
def test_a_study_whose_workers_are_killed_has_the_same_bits(
    url: str, scheduler: str, gate: Gate, wait_until: Callable[..., None]
) -> None:
    chosen = config("gated:Gated-v0", scheduler=scheduler)
    assert run_and_be_killed(url, chosen, gate, wait_until) == undisturbed(chosen)
