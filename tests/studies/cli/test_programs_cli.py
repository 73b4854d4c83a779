"""Programs on the command line: studies, run files, checks of exactness, and what is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import own_program_place
import pytest
from rekindle import Store, Task, tune
from rekindle.studies.engine.checked_config import make_config
from rekindle.studies.engine.runner import note_resumes, start_study
from rekindle.studies.engine.study_views import study_view
from rekindle.studies.errors import BadConfig
from rekindle.studies.study.config import Config
from rekindle.studies.upkeep.deleting import delete
from rekindle.tasks import load
from rekindle.tasks.adapters import programs
from rekindle.tasks.adapters.program_commands import ProgramCommand
from rekindle.tasks.catalog import NOT_CHECKED

Cli = Callable[..., tuple[int, str, str]]
EXAMPLES = Path(__file__).parents[3] / "examples" / "programs"
WORDS = [sys.executable, own_program_place.PROGRAM, "{lr}", "{epochs}", "{seed}", "{checkpoint}"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(programs, "_result_file", lambda learner: tmp_path / "cache" / learner.command.run[-1][-6:])
    Path("space.toml").write_text('lr = "loguniform(0.01, 1.0, default_value=0.1)"\n')
    return tmp_path


def test_a_program_is_trained_checked_and_trained_on(cli: Cli, sqlite_url: str) -> None:
    program = ["command", "--space", "space.toml", "--storage", sqlite_url, "--json"]
    status, _, errors = cli("train", *program, "--epochs", "2", "--", *WORDS)
    assert status == 0, errors
    assert "whether own_program.py resumes exactly was not checked; `rekindle check-resume` does" in " ".join(
        errors.split()
    )
    status, printed, errors = cli("check-resume", *program, "--epochs", "4", "--", *WORDS, "outside")
    assert (status, json.loads(printed)["exact"], json.loads(printed)["outside"]) == (0, True, ["model.bin"]), errors
    status, printed, _ = cli("check-resume", *program, "--", *WORDS, "forget")
    assert (status, json.loads(printed)["exact"]) == (1, False)
    cli("check-resume", *program, "--", *WORDS)
    status, printed, errors = cli("train", *program, "--epochs", "4", "--set", "lr=0.1", "--", *WORDS)
    assert (status, json.loads(printed)["resumed"]) == (0, True)
    assert "not bit-exact" not in errors


def test_a_study_of_a_program_is_that_of_python_and_of_a_run_file(cli: Cli, sqlite_url: str) -> None:
    size = ["--trials", "3", "--epochs", "1:2:2", "--scheduler", "halving", "--workers", "1"]
    program = ["command", "--space", "space.toml", "--storage", sqlite_url, "--json", *size]
    status, printed, errors = cli("create", *program, "--study", "line", "--", *WORDS)
    assert status == 0, errors
    Path("run.toml").write_text(
        f'task = "command"\nspace = "space.toml"\ncommand = {json.dumps(WORDS)}\nepochs = "1:2:2"\n'
    )
    status, printed, errors = cli(
        "create", "run.toml", "--storage", sqlite_url, "--study", "file", *size[:2], *size[4:], "--json"
    )
    assert status == 0, errors
    name = ProgramCommand.of(WORDS, {"lr": "loguniform(0.01, 1.0, default_value=0.1)"}).name
    with Store(sqlite_url) as store:
        how = {"trials": 3, "epochs": (1, 2, 2), "scheduler": "halving", "progress": False}
        study = tune(name, storage=store, study="python", **how)
        assert store.study("line").config == store.study("file").config == store.study("python").config
        assert [trial.state for trial in study.trials].count("pruned") == 1
        assert study.best is not None
    status, printed, _ = cli("trials", "python", "--storage", sqlite_url)
    assert "python: own_program.py, seed 0" in printed


def test_a_mended_program_is_confirmed_again(cli: Cli, sqlite_url: str) -> None:
    script = "import sys\nif int(sys.argv[1]) == 0: print('return', 1)\n"  # reports nothing on fresh seeds
    Path("train.py").write_text(script)
    space = {"space": {"lr": "uniform(0, 1)"}, "pattern": r"return (?P<return>\S+)"}
    name = ProgramCommand.of([sys.executable, "train.py", "{seed}", "{lr}{epochs}{checkpoint}"], space).name
    how = {"epochs": 1, "scheduler": "none", "progress": False}
    with Store(sqlite_url) as store:
        study = tune(name, storage=store, study="s", trials=1, **how)
        assert study.confirm(seeds=3, progress=False)["cost"]["failed"] == 3
        assert study.confirm(seeds=3, progress=False)["confirmation"] == "s:confirmation"  # the same would fail again
        Path("train.py").write_text(script.replace("== 0", ">= 0"))
        study.extend(code=True)
        assert study.confirm(seeds=3, progress=False)["candidates"][0]["estimate"]["value"] == 1
        Path("train.py").write_text("")
        failed = tune(name, storage=store, study="t", trials=1, seed=1, **how)
        with pytest.raises(
            BadConfig, match=r"all of its trials failed. `rekindle trials t` says .*`rekindle delete t`"
        ):
            failed.confirm(seeds=3)
    status, printed, _ = cli("trials", "s:confirmation", "--storage", sqlite_url)
    assert "s:confirmation: train.py" in printed  # :name: is no picture
    status, printed, _ = cli(
        "tune", name, "--trials", "1", "--epochs", "1", "--study", "t", "--seed", "1", "--storage", sqlite_url
    )
    assert status == 1
    assert "once that is mended, `rekindle delete t --storage" in " ".join(printed.split())


def label_of(task: type[Task]) -> str:
    return "forgets" if "forget" in task.name else "remembers"


def test_a_check_is_noted_in_the_studies_of_its_program_alone(sqlite_url: str) -> None:
    space = {"lr": "loguniform(0.01, 1.0, default_value=0.1)"}
    one, other = (load(ProgramCommand.of(words, space).name) for words in (WORDS, [*WORDS, "forget"]))
    with Store(sqlite_url) as store:
        for task in (one, other):
            start_study(store, label_of(task), make_config(task, None, trials=1, epochs=[1], scheduler="none"))
        assert {study_view(store, label_of(task)).exactness for task in (one, other)} == {NOT_CHECKED}
        note_resumes(store, one, "")
        note_resumes(store, other, "return of epoch 3")
        exactness = [study_view(store, label_of(task)).exactness for task in (one, other)]
        assert exactness == ["exact", "not exact: return of epoch 3"]
        assert Config.from_json(store.study(label_of(one)).config, "").exactness == "exact"


def test_a_check_is_noted_in_no_study_that_changed_meanwhile(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was deleted, and another goes on with other files."""
    one = load(ProgramCommand.of(WORDS, {"lr": "loguniform(0.01, 1.0, default_value=0.1)"}).name)
    with Store(sqlite_url) as store:
        for name in ("deleted", "changed", "same"):
            start_study(store, name, make_config(one, None, trials=1, epochs=[1], scheduler="none"))
        listed = store.studies()
        delete(store, "deleted", dry_run=False)
        other = {"train.py": "0" * 64}
        store.change_study("changed", lambda form: {**(form or {}), "options": {"files": other}})
        monkeypatch.setattr(store, "studies", lambda: listed)
        note_resumes(store, one, "")
        monkeypatch.undo()
        assert [study.name for study in store.studies()] == ["changed", "same"]
        assert store.study("changed").config["options"] == {"files": other}
        assert study_view(store, "same").exactness == "exact"


@pytest.mark.slow
def test_the_exactness_of_a_program_is_said_wherever_its_study_is_shown(cli: Cli, sqlite_url: str) -> None:
    stored = ["--storage", sqlite_url]
    name = ProgramCommand.of(WORDS, {"lr": "loguniform(0.01, 1.0, default_value=0.1)"}).name
    how: dict[str, Any] = {"epochs": 1, "scheduler": "none", "storage": sqlite_url, "progress": False}
    uid = tune(name, study="s", trials=1, **how).trials[0].uid

    def shown() -> list[str]:
        assert cli("report", "s", *stored, "--output", "page.html")[0] == 0
        texts = [cli(*words, *stored)[1] for words in (["trials", "s"], ["status"], ["show", uid])]
        return [
            re.split("after a kill(?:<[^>]*>|[^a-z<])*", text)[1] for text in (*texts, Path("page.html").read_text())
        ]

    assert all(text.startswith("not checked") for text in shown())
    assert json.loads(cli("trials", "s", *stored, "--json")[1])["inexact"] == {}
    for fault, status, verdict in (("forget", 1, "not exact: return of epoch 3"), ("", 0, "exact")):
        words = [*WORDS, fault] if fault else WORDS
        program = ["--space", "space.toml", *stored, "--", *words]
        other = ProgramCommand.of(words, {"lr": "loguniform(0.01, 1.0, default_value=0.1)"}).name
        tune(other, study=f"s{fault}", trials=1, **how)
        assert cli("check-resume", "command", *program)[0] == status
        view = json.loads(cli("trials", f"s{fault}", *stored, "--json")[1])
        assert view["exactness"].startswith(verdict)
    assert all(text.startswith("exact") for text in shown())
    assert "command:{" not in cli("status", *stored)[1]
    tune(name, study="later", trials=1, **how)
    assert json.loads(cli("trials", "later", *stored, "--json")[1])["exactness"] == "exact"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["command", "--", *WORDS], "a program's hyperparameters are in a file; name it: --space space.toml"),
        (["command", "--space", "none.toml", "--", *WORDS], "none.toml must be a file of TOML, but"),
        (["command", "--space", "space.toml"], "a program needs a command line; add it at the end: -- python train.py"),
        (
            ["command", "--space", "space.toml", "--", *WORDS[:-1]],
            "must get checkpoint, but its command has no {checkpo",
        ),
        (["command", "--space", "space.toml", "--", *WORDS, "{lrr}"], "{lrr} is neither; did you mean lr?"),
    ],
)
def test_a_command_line_without_its_parts_is_refused(cli: Cli, sqlite_url: str, words: list[str], message: str) -> None:
    status, _, errors = cli("train", "--storage", sqlite_url, *words)
    assert status == 2
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "space", "exact"),
    [
        ("torch_file.py", "space.toml", True),
        ("sklearn_file.py", "lines.toml", True),
        ("sb3_file.py", "space.toml", False),
    ],
)
def test_the_examples_say_whether_they_are_exact(cli: Cli, file: str, space: str, exact: bool) -> None:
    named = ["--lr", "{lr}", "--epochs", "{epochs}", "--seed", "{seed}", "--dir", "{checkpoint}"]
    words = ["{lr}", "{epochs}", "{seed}", "{checkpoint}"] if file.startswith("sklearn") else named
    program = [sys.executable, str(EXAMPLES / file), *words]
    status, printed, errors = cli("check-resume", "command", "--space", str(EXAMPLES / space), "--json", "--", *program)
    assert printed, errors
    assert json.loads(printed)["exact"] == exact
    assert status == (0 if exact else 1)


def test_a_state_that_is_no_data_is_one_plain_line(cli: Cli, sqlite_url: str) -> None:
    Path("keeping.py").write_text(
        "import rekindle\n@rekindle.task(space=rekindle.Space(), objective='x')\n"
        "def train(hp, state, seed): return {'model': object()}, {'x': 1}\n"
    )
    status, _, errors = cli("train", "keeping:train", "--epochs", "1", "--storage", sqlite_url)
    assert status == 1
    assert errors.endswith("the state['model'] is a object; put its numbers there, such as its state_dict() or coef_\n")
