"""Studies in Python: equal to the command line's, their results, and tasks taken from them."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gated
import numpy as np
import pandas
import pytest
import rekindle
import torch
from rekindle.spaces import unflatten
from rekindle.studies.cli import main
from rekindle.studies.engine.runner import start_study
from rekindle.studies.engine.snapshots import StudyProgress
from rekindle.studies.errors import BadConfig, CommandRefused, StudyMismatch, UnknownStudy
from rekindle.studies.storage.store import Store
from studying import TINY, bits, surrogate, tiny, undisturbed

OPTIONS: dict[str, Any] = {"trials": 4, "generation": 2, "cohort": 2, "study": "s", "epochs": (1, 4, 2), "fixed": TINY}
OPTIONS |= {"eval_episodes": 20}

FINISHED, GATED = (tiny(4, (1, 4, 2), generation=2, env=env) for env in ("CartPole-v1", "gated:Gated-v0"))
COMMAND = ["tune", "ppo", "CartPole-v1", "--study", "s", "--epochs", "1:4:2", "--trials", "4", "--json"]
COMMAND += ["--generation", "2", "--cohort", "2", "--eval-episodes", "20"]
COMMAND += [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> rekindle.Study:
    url = f"sqlite:///{tmp_path_factory.mktemp('tuned') / 'store.db'}"
    return rekindle.tune(rekindle.PPO, "CartPole-v1", storage=url, progress=False, **OPTIONS)


@pytest.mark.slow
def test_a_study_from_python_is_the_one_of_the_command_line(study: rekindle.Study, cli: Callable[..., Any]) -> None:
    url = str(study.store.database.url)
    assert study.complete
    assert bits(study.store) == undisturbed(FINISHED)
    status, out, errors = cli(*COMMAND, "--storage", url)
    assert (status, "study s is complete" in errors) == (0, True)
    output = json.loads(out)
    best = study.best
    assert best is not None
    assert (best.number, best.uid, best.value) == (
        output["best"]["number"],
        output["best"]["uid"],
        output["best"]["return"],
    )
    assert [(trial.number, trial.state, trial.epochs, trial.digest) for trial in study.trials] == [
        (trial["number"], trial["state"], trial["epochs"], trial["digest"]) for trial in output["trials"]
    ]
    assert study.front == [best]


def test_the_results_are_a_table(study: rekindle.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    table = study.dataframe()
    assert study.best is not None
    assert table.loc[study.best.number, "return"] == study.best.value
    assert list(table["gamma"]) == [trial.hyperparameters["gamma"] for trial in study.trials]
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="needs pandas, which is not installed: pip install pandas"):
        study.dataframe()


def test_a_study_can_be_pasted_back_and_begins_without_a_best(study: rekindle.Study, sqlite_url: str) -> None:
    again = eval(repr(study), {"Study": rekindle.Study})
    assert (again.name, [trial.uid for trial in again.trials]) == (study.name, [trial.uid for trial in study.trials])
    assert study.front == [study.best]
    with Store(sqlite_url) as store:
        start_study(store, "s", surrogate())
        fresh = rekindle.Study("s", store)
        assert (fresh.best, fresh.front, "best" in fresh._repr_html_()) == (None, [], False)


def test_callbacks_see_each_result_and_may_stop_a_study(sqlite_url: str) -> None:
    seen: list[tuple[int, int]] = []

    def note(study: rekindle.Study, trial: rekindle.studies.StudyTrial) -> None:
        seen.append((trial.number, trial.epochs))
        if len(seen) == 3:
            study.stop("seen enough")

    def tuned(callback: Any) -> rekindle.Study:
        return rekindle.tune("ppo", "CartPole-v1", storage=sqlite_url, progress=False, callbacks=callback, **OPTIONS)

    with pytest.raises(TypeError, match="callbacks are functions of a study and a trial, but got"):
        tuned([note, 3])
    study = tuned([note])
    assert not study.complete
    study.resume()
    with pytest.raises(ZeroDivisionError):
        tuned(lambda study, trial: 1 / 0)
    assert tuned(lambda study, trial: seen.append((trial.number, trial.epochs))).complete
    assert len(set(seen)) == len(seen)
    assert bits(study.store) == undisturbed(FINISHED)


@pytest.mark.parametrize("cohort", [1, 8])
def test_callbacks_see_a_result_of_several_seeds_once(sqlite_url: str, cohort: int, monkeypatch: Any) -> None:
    monkeypatch.setattr("rekindle.studies.workers.worker.LARGEST_COHORT", cohort)
    results: list[tuple[int, int, float | None]] = []
    options: dict[str, Any] = {
        "trials": 3,
        "epochs": (1, 2, 2),
        "seeds": 3,
        "scheduler": "halving",
        "sampler": "random",
    }
    study = rekindle.tune(
        "surrogate",
        storage=sqlite_url,
        progress=False,
        callbacks=lambda study, trial: results.append((trial.number, trial.epochs, trial.value)),
        **options,
    )
    assert all(value is not None for _, _, value in results)
    first, last = [sorted(row[0] for row in results if row[1] == epochs) for epochs in (1, 2)]
    assert (first, last) == ([0, 1, 2], [trial.number for trial in study.trials if trial.epochs == 2])


def test_a_task_is_picked_up_to_act_evaluate_and_train_on(study: rekindle.Study) -> None:
    assert study.best is not None
    task = study.store.task(study.best.uid[:8])
    assert (task.uid, task.digest, task.epochs, task.resumed) == (study.best.uid, study.best.digest, 4, True)
    assert task.evaluate() == pytest.approx(study.best.value)
    assert task.act(np.zeros(4, np.float32)) in (0, 1)
    task.fit(5)
    task.finish()
    assert study.store.tasks([task.uid])[0].epochs == 5
    with pytest.raises(ValueError, match=r"no task of .* has a uid that begins with 'zz'"):
        study.store.task("zz")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"trials": 0}, ValueError, "trials must be an integer of at least 1"),
        ({"epochs": (27, 1)}, ValueError, "epochs are low:high:base"),
        ({"fixed": {"gama": 1}}, ValueError, "did you mean gamma"),
        ({"sampler": "tep"}, ValueError, "did you mean tpe"),
        ({"device": "cuda:99"}, ValueError, "'cuda:99' is not available"),
        ({"trails": 4}, TypeError, "tune has no option 'trails'; did you mean trials?"),
        ({"n_trials": 4}, TypeError, "tune has no option 'n_trials'; did you mean trials?"),
        ({"width": 4}, TypeError, r"'width'; a hyperparameter that is not searched goes into fixed=\{\.\.\.\}"),
        ({"search": "gama"}, ValueError, "'gama' is not an open hyperparameter; did you mean gamma?"),  # one name
        ({"objective": "retrun"}, ValueError, "objective 'retrun' is not one of return,"),
        ({"scheduler": "pbt", "perturb": "gama"}, ValueError, "but got 'gama'; did you mean gamma?"),
        ({"known": {"gama": 0.9}}, ValueError, "names hyperparameters of ppo, but got gama; did you mean gamma?"),
    ],
)
def test_bad_options_are_refused_before_a_database_exists(
    options: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        rekindle.tune("ppo", "CartPole-v1", storage=f"sqlite:///{tmp_path / 'x.db'}", **options)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_or_differing_study_is_refused(study: rekindle.Study) -> None:
    with pytest.raises(UnknownStudy, match="there is no study 'other'; there are 's'"):
        rekindle.Study("other", study.store)
    with pytest.raises(StudyMismatch, match="'s' differs in seed"):
        rekindle.tune("ppo", "CartPole-v1", storage=study.store, seed=3, **OPTIONS)


IN_A_CELL = """
import sys, rekindle
sys.path.insert(0, sys.argv[2])
try:
    rekindle.tune("ppo", "gated:Gated-v0", storage=sys.argv[1], **eval(sys.argv[3]))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_leaves_all_saved_and_the_same_call_resumes(
    sqlite_url: str, gate: gated.Gate, child: Callable[..., Any], wait_until: Callable[..., None]
) -> None:
    gate.close(80)
    cell = child(IN_A_CELL, sqlite_url, Path(gated.__file__).parent, OPTIONS)
    wait_until(gate.waiting)
    cell.signal(signal.SIGINT)
    gate.open()
    assert cell.hear() == "interrupted"
    cell.process.wait()
    with Store(sqlite_url) as store:
        assert store.workers() == []
        assert any(store.checkpoints(trial.uid) for trial in store.trials("s"))
    again = rekindle.tune("ppo", "gated:Gated-v0", storage=sqlite_url, **OPTIONS)
    assert bits(again.store) == undisturbed(GATED)


def test_a_bar_shows_epochs_and_the_best(sqlite_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    study = rekindle.tune("ppo", "CartPole-v1", storage=sqlite_url, **{**OPTIONS, "trials": 1, "epochs": 1})
    assert study.best is not None
    errors = capsys.readouterr().err
    assert "s: 100%" in errors
    assert "1/1" in errors
    assert f"best {study.best.value:.1f} (trial 0 at epoch 1)" in errors


def test_a_bar_moves_before_there_is_a_best(
    sqlite_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study, look = rekindle.tune("ppo", "CartPole-v1", storage=sqlite_url, progress=False, **OPTIONS), StudyProgress.look
    monkeypatch.setattr(StudyProgress, "look", lambda self: replace(look(self), best=None))  # as in a race
    capsys.readouterr()
    study.run()
    assert re.search(r"s: 100%.* (\d+)/\1 ", capsys.readouterr().err)


def test_all_trials_begin_with_a_policy_that_the_storage_keeps(sqlite_url: str, tmp_path: Path) -> None:
    source = rekindle.PPO("CartPole-v1", seed=5).init(**TINY)
    source.fit(1)
    output = source.record(2).save(tmp_path / "shown.npz")

    def tune(study: str, **options: Any) -> rekindle.Study:
        options |= {"trials": 1, "epochs": 1, "progress": False, "study": study}
        return rekindle.tune("ppo", "CartPole-v1", storage=sqlite_url, **options)

    given = {
        "search": ["optimizer.lr"],
        "fixed": {**TINY, "cloning.use": True},
        "demonstrations": output,
        "warm_start": source,
    }
    study = tune("s", **given)
    [trial] = study.trials
    task = rekindle.PPO("CartPole-v1", warm_start=source, demonstrations=output)
    task.init(**unflatten(trial.hyperparameters))
    task.fit(1)
    assert (task.uid, task.digest) == (trial.uid, trial.digest)
    assert tune("s", **given).trials == study.trials
    with pytest.raises(StudyMismatch):
        tune("s", **{**given, "warm_start": None})
    fixed = {name: value for name, value in TINY.items() if name != "model.width"}
    with pytest.raises(ValueError, match=r"warm start decides the parts of the policy, but model.width is searched"):
        tune("t", warm_start=source, search=["model.width"], fixed=fixed)


def test_a_study_resumes_without_the_files_that_its_trials_started_from(
    sqlite_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = rekindle.PPO("CartPole-v1", seed=5).init(**TINY)
    source.fit(1)
    files = {"demonstrations": source.record(1).save(tmp_path / "shown.npz")}
    files["warm_start"] = source.save_policy(tmp_path / "policy.safetensors")

    def tune(study: str, trials: int) -> Any:
        options: dict[str, Any] = {"epochs": 1, "search": ["optimizer.lr"], "fixed": {**TINY, "cloning.use": True}}
        options |= {"trials": trials, "progress": False, "study": study, "storage": sqlite_url}
        return rekindle.tune("ppo", "CartPole-v1", **files, **options).trials

    [first] = tune("s", 1)
    for file in files.values():
        file.unlink()
    assert tune("s", 2)[0] == first
    with pytest.raises(ValueError, match=r"there is no file .*shown\.npz"):
        tune("t", 1)
    sources = [f"--{name.replace('_', '-')}={file}" for name, file in files.items()]
    fixed = [f"--set={name}={value}" for name, value in {**TINY, "cloning.use": True}.items()]
    study = ["--study", "s", "--search", "optimizer.lr", "--trials", "3", "--epochs", "1", "--workers", "1"]
    assert main(["tune", "ppo", "CartPole-v1", *fixed, *sources, *study, "--storage", sqlite_url]) == 0
    assert "study s started from it, and resumes" in " ".join(capsys.readouterr().err.split())
    assert rekindle.Study("s", sqlite_url).trials[0] == first
    assert len(rekindle.Study("s", sqlite_url).trials) == 3


def test_numbers_of_numpy_and_whole_floats_are_numbers(sqlite_url: str) -> None:
    plain: dict[str, Any] = {"seed": 1, "trials": 4, "epochs": (1, 3), "generation": 2, "fixed": {"width": 64}}
    theirs = {"seed": np.int64(1), "trials": np.int8(4), "epochs": np.array([1.0, 3.0]), "generation": 2.0}
    theirs |= {"fixed": {"width": np.int64(64)}, "plateau": np.int64(9), "known": [{"lr": np.float64(1e-3)}]}
    plain |= {"plateau": 9, "known": [{"lr": 1e-3}]}
    made = [
        rekindle.tune("surrogate", storage=sqlite_url, study=name, progress=False, **options)
        for name, options in (("plain", plain), ("theirs", theirs))
    ]
    assert made[0].config == made[1].config
    assert [trial.digest for trial in made[0].trials] == [trial.digest for trial in made[1].trials]
    study = made[1]
    study.exclude(study.dataframe()["return"].idxmin())
    study.extend(np.int64(6), epochs=9.0, weight=np.float32(2))
    study.enqueue({"lr": np.float64(2e-3)})
    assert (study.config.trials, study.config.rungs[-1]) == ([4, 6], 9)
    assert study.run(progress=False).complete


@pytest.mark.parametrize(("name", "given"), [("", "''"), ("é" * 300, "300 characters, 'ééééé")])
def test_a_study_has_a_name_that_databases_can_index(sqlite_url: str, name: Any, given: str) -> None:
    with pytest.raises(BadConfig, match=f"a study has a name of 1 to 480 bytes, but got {given}"):
        rekindle.tune("surrogate", storage=sqlite_url, study=name, trials=1)


def test_a_task_takes_numbers_of_numpy(sqlite_url: str) -> None:
    task = rekindle.tasks.load("surrogate")(seed=np.int64(3), env_processes=np.int8(0), width=np.int64(32))
    assert task.init(lr=np.float64(1e-3)).fit(np.int64(2)) == task.fit(2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"epochs must be an integer of at least 0, .* but got 2.5"):
        task.fit(2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"seed must be an integer from 0 to .*, but got True"):
        rekindle.tasks.load("surrogate")(seed=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": []}, r"epochs are low:high:base, one to three numbers such as 1:27:3, but got \[\]"),
        ({"epochs": (1, 2, 3, 4)}, "one to three numbers such as 1:27:3, but got"),
        ({"sampler": object}, "a sampler must be a class derived from optuna.samplers.BaseSampler, but"),
        ({"budget": 3600}, "tune: budget is a text or None, but got 3600"),
        ({"goal": 50.0}, "goal is a text"),
        ({"fixed": ["lr=1"]}, r"fixed is a dict by name or None, but got \['lr=1'\]"),
        ({"fixed": {1: 2}}, "fixed is a dict by name or None, but got {1: 2}"),
        ({"priors": {1: "uniform(0, 1)"}}, "priors is a dict by name or None"),
        ({"search": 5}, "search is a text or a list of texts, but got 5"),
        ({"racing": "yes"}, "racing is true or false, but got 'yes'"),
        ({"trial_time": []}, r"trial_time is a number, a text or None, but got \[\]"),
        ({"callbacks": 3}, "callbacks is a function or a list, but got 3"),
        ({"study": 3}, "study is a text or None, but got 3"),
        ({"env_processes": -1}, "env_processes must be an integer of at least 0, but got -1"),
    ],
)
def test_an_argument_of_another_type_is_refused_in_words(
    sqlite_url: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        rekindle.tune("surrogate", storage=sqlite_url, progress=False, **{"epochs": 1, **options})


def test_a_study_takes_rows_of_tables_and_refuses_other_kinds(sqlite_url: str) -> None:
    study = rekindle.tune("surrogate", storage=sqlite_url, trials=2, epochs=1, progress=False)
    study.enqueue(study.dataframe().loc[1, ["lr", "gamma"]])  # a row of a table
    assert study.commands[-1].data["hyperparameters"]["lr"] == study.trials[1].hyperparameters["lr"]
    for trial in (float("nan"), None, True):
        with pytest.raises(CommandRefused, match="a trial is named by its number or uid, but got"):
            study.exclude(trial)  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match="changed priors are a dict of texts by name, but got 'lr'"):
        study.extend(priors="lr")
    with pytest.raises(TypeError, match="a study has a text as name, but got 3"):
        rekindle.Study(3, sqlite_url)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Study.report: path is a text or a Path, but got None"):
        study.report(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Study.confirm: got an unexpected keyword argument 'junk'; it takes top"):
        study.confirm(junk=1)
    with pytest.raises(ValueError, match="eval_envs must be an integer of at least 1, but got 0"):
        study.run(progress=False, eval_envs=0)
    with pytest.raises(TypeError, match=r"Study.run: progress is true or false, but got 'no'"):
        study.run(progress="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="work takes names of studies"):
        rekindle.work(sqlite_url, ["surrogate"])  # type: ignore[arg-type]
    task = rekindle.tasks.load("surrogate")().init(lr=torch.tensor(0.5) * 1e-2)
    assert task.hyperparameters == {**task.hyperparameters, "lr": 0.004999999888241291}  # type: ignore[dict-item]


def test_studies_that_share_tasks_measure_their_own_number_of_episodes(sqlite_url: str) -> None:
    options: dict[str, Any] = {**OPTIONS, "trials": 1, "epochs": 2, "progress": False, "storage": sqlite_url}
    few = rekindle.tune("ppo", "CartPole-v1", **options | {"study": "few", "eval_episodes": 3, "eval_envs": 2})
    usual = rekindle.tune("ppo", "CartPole-v1", **options)
    assert few.best is not None
    assert usual.best is not None
    task = few.store.task(few.best.uid)
    assert few.best.uid == usual.best.uid
    assert few.best.value == pytest.approx(task.evaluate(3)) != task.evaluate(20)
    assert usual.best.value == pytest.approx(task.evaluate(20))
    result = few.confirm(top=1, seeds=3, progress=False, eval_episodes=2)
    assert few.store.study(result["confirmation"]).config["options"]["eval_episodes"] == 2


def test_tables_sets_and_iterators_are_arguments_of_a_study(sqlite_url: str) -> None:
    same: Any = {"storage": sqlite_url, "progress": False}
    table = pandas.DataFrame({"lr": [1e-3], "width": [64]})
    options = {"known": table, "fixed": pandas.Series({"gamma": 0.9}), "search": {"width", "lr"}}
    study = rekindle.tune("surrogate", trials=1, epochs=iter((1, 1)), **options, **same)
    assert {"lr": 1e-3, "width": 64, "gamma": 0.9}.items() <= study.trials[0].hyperparameters.items()
    assert study.config.open == ["lr", "width"]
    for wrong in (None, 3, rekindle.PPO("CartPole-v1")):
        with pytest.raises(TypeError, match=r"tune: a task is an algorithm, such as PPO or 'ppo', .* but got"):
            rekindle.tune(wrong, "CartPole-v1", **same)
