"""Workers whose machine lacks what a study trains with, or has another version: they leave its trials to others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rekindle.studies.engine.checked_config import make_config
from rekindle.studies.engine.runner import start_study
from rekindle.studies.errors import CommandRefused, MachineMismatch
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.store import Store
from rekindle.studies.workers.sharing import sharing_worker
from rekindle.studies.workers.worker import Worker
from rekindle.tasks import load
from rekindle.tasks.adapters.program_commands import ProgramCommand
from studying import surrogate

Cli = Callable[..., tuple[int, str, str]]
TRAIN = """import pathlib, sys
lr, epochs, folder = float(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
done = len(list(folder.iterdir()))
for epoch in range(done, epochs):
    (folder / str(epoch)).touch()
    print(f"return={-lr / (epoch + 1)}", flush=True)
"""


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The working directory, which has the program, and another folder, which does not."""
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
    (here / "train.py").write_text(TRAIN)
    monkeypatch.chdir(here)
    return here, there


def begin(store: Store, program: str = "train.py", python: str = sys.executable) -> None:
    words = [python, program, "{lr}", "{epochs}", "{checkpoint}"]
    settings = {"space": {"lr": "uniform(0.1, 1.0)"}, "pattern": r"return=(?P<return>\S+)"}
    task = load(ProgramCommand.of(words, settings).name)
    start_study(store, "s", make_config(task, None, trials=2, epochs=[2], scheduler="none", generation=2))


def untouched(store: Store) -> None:
    """Check that no trial failed or used a retry, and that nobody holds one."""
    trials = store.trials("s")
    assert {trial.state for trial in trials} <= {"running"}
    assert store.holders() == {}
    assert all(not history.failed for history in store.histories([trial.uid for trial in trials]).values())


def test_a_worker_without_the_program_leaves_its_trials_unharmed_to_another(
    folders: tuple[Path, Path], sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = folders
    with Store(sqlite_url) as store:
        begin(store)
        monkeypatch.chdir(there)
        with pytest.raises(
            MachineMismatch, match=rf"train.py of digest \w{{12}}, but the working directory {there} lac"
        ):
            Worker(store, "s").run()
        (there / "train.py").write_text(TRAIN + "# changed\n")
        with pytest.raises(
            MachineMismatch, match=r"has it with digest \w{12}; put .* accept .*rekindle extend s --code"
        ):
            Worker(store, "s").run()
        untouched(store)
        monkeypatch.chdir(here)
        assert Worker(store, "s").run()
        assert {trial.state for trial in store.trials("s")} == {"complete"}


def test_a_program_that_vanishes_during_a_study_is_not_its_trials_fault(
    folders: tuple[Path, Path], sqlite_url: str
) -> None:
    here, _ = folders
    with Store(sqlite_url) as store:
        (here / "train.py").write_text("import os\nos.remove('train.py')\nraise SystemExit('gone')\n")
        begin(store)
        with pytest.raises(MachineMismatch, match="lacks it; put that file there"):
            Worker(store, "s").run()
        untouched(store)


@pytest.mark.parametrize("begins_there", [False, True])
def test_a_worker_trains_other_studies_where_it_cannot_train_one(
    folders: tuple[Path, Path], sqlite_url: str, monkeypatch: pytest.MonkeyPatch, begins_there: bool
) -> None:
    said: list[str] = []
    with Store(sqlite_url) as store:
        begin(store)
        start_study(store, "other", surrogate(2))
        monkeypatch.chdir(folders[begins_there])
        worker = sharing_worker(store, ["s", "other"], lambda name, text: said.append(text))
        monkeypatch.chdir(folders[1])
        with pytest.raises(MachineMismatch, match="lacks it"):
            worker.run()
        assert sum(line.startswith("is left to others: study 's' trains with train.py of digest") for line in said) == 1
        assert {trial.state for trial in store.trials("other")} <= {"complete", "pruned"}
        untouched(store)


def test_a_machine_without_the_interpreter_or_the_working_directory_is_named(
    folders: tuple[Path, Path], sqlite_url: str, tmp_path: Path
) -> None:
    here, _ = folders
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    with Store(sqlite_url) as store:
        begin(store, python=str(python))
        worker = Worker(store, "s")
        python.unlink()
        with pytest.raises(MachineMismatch, match=f"cannot be trained here: .* this machine has no '{python}'"):
            worker.run()
        shutil.rmtree(here)
        with pytest.raises(MachineMismatch, match="working directory of its worker, but that was removed"):
            worker.run()
        untouched(store)
    os.chdir(tmp_path)


def test_a_changed_program_goes_on_once_it_is_accepted(folders: tuple[Path, Path], sqlite_url: str) -> None:
    here, _ = folders
    with Store(sqlite_url) as store:
        begin(store)
        with pytest.raises(CommandRefused, match="the files of study 's' are the same in this folder"):
            Steering(store, "s").extend(code=True)
        (here / "train.py").write_text(TRAIN + "# changed\n")
        with pytest.raises(MachineMismatch, match="has it with digest"):
            begin(store)
        command = Steering(store, "s").extend(code=True, why="a comment")
        assert (command.kind, [*command.data["files"]]) == ("code", ["train.py"])
        begin(store)
        assert Worker(store, "s").run()


def test_files_of_a_program_are_its_code_and_settings(folders: tuple[Path, Path]) -> None:
    here, _ = folders
    (here / "package/parts").mkdir(parents=True)
    for name, text in {
        "package/train.py": "import os, package.parts.sizes\nfrom . import nets, none\nfrom .parts import *\n",
        "package/nets.py": "def make():\n    from package import train\n    from .parts.sizes import SMALL\n",
        "package/parts/__init__.py": "from .. import nets\n",
        "package/parts/sizes.py": "SMALL =",
        "package/other.py": "",
        "main.py": "import package.nets as n, json",
        "a.yaml": "x",
        "log.csv": "x",
        "start": "#!/bin/sh\n",
    }.items():
        (here / name).write_text(text)
    imported = ["package/parts/__init__.py", "package/nets.py", "package/parts/sizes.py"]
    for words, files in {
        "./start --data=log.csv": ["start"],
        "python -m package.train --config=a.yaml": ["package/train.py", *imported, "a.yaml"],
        "python main.py": ["main.py", imported[1], "package/train.py", imported[0], imported[2]],
        "python train.py a.yaml no.py": ["train.py", "a.yaml"],
        f"{here}/start log.csv": [],
    }.items():
        command = ProgramCommand.of([*words.split(), "{epochs}", "{checkpoint}"], {"space": {}})
        assert [*load(command.name).learner.files()] == files, words


@pytest.mark.slow
def test_a_worker_process_in_another_folder_ends_with_one_plain_line(
    folders: tuple[Path, Path], url: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-m", "rekindle", "worker", "--storage", url, "--study", "s"]
    with Store(url) as store:
        begin(store)
        ended = subprocess.run(words, cwd=folders[1], capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 1
        last = ended.stderr.splitlines()[-1]
        assert last.startswith("rekindle: error: study 's' trains with train.py of digest")
        assert "Traceback" not in ended.stderr
        untouched(store)
        trained = subprocess.run(words, cwd=folders[0], capture_output=True, text=True, timeout=300, check=False)
        assert trained.returncode == 0, trained.stderr
        assert {trial.state for trial in store.trials("s")} == {"complete"}
