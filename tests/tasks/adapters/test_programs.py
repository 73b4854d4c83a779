"""Programs as tasks: resuming, reports of three kinds, faults, and the ends of processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import own_program_place
import psutil
import pytest
from rekindle import Store, Task
from rekindle.tasks import load
from rekindle.tasks.adapters import programs, running_program
from rekindle.tasks.adapters.checking import check
from rekindle.tasks.adapters.program_commands import ProgramCommand
from rekindle.tasks.checkpoint.state import pack, unpack
from rekindle.tasks.errors import Diverged, Hung, ProgramError, ProgramFailed
from rekindle.tasks.runtime import progress

PATTERN = r"epoch (?P<epoch>\w+): return=(?P<return>\S+)"
SPACE = {"lr": "loguniform(0.01, 1.0, default_value=0.1)"}


def command(*faults: str, **settings: Any) -> ProgramCommand:
    words = [sys.executable, own_program_place.PROGRAM, "{lr}", "{epochs}", "{seed}", "{checkpoint}", *faults]
    return ProgramCommand.of(words, {"space": SPACE, **settings})


def make(*faults: str, storage: Store | None = None, **settings: Any) -> Task:
    task: Task = load(command(*faults, **settings).name)(seed=1, storage=storage).init()
    return task


def resumed(state: Mapping[str, Any], *faults: str, **settings: Any) -> Task:
    """A task that got a state as a storage would give it back."""
    packed = pack(state)
    task = make(*faults, **settings)
    task.load_state_dict(unpack(packed.manifest, packed.blobs.__getitem__))
    return task


@pytest.mark.parametrize(
    ("fault", "settings"),
    [
        ("", {}),
        ("lines", {"lines": "log.jsonl"}),
        ("pattern", {"pattern": PATTERN}),
        ("pattern", {"pattern": r"return=(?P<return>\S+)"}),
    ],
)
def test_resuming_equals_not_stopping(fault: str, settings: dict[str, Any]) -> None:
    whole, half = make(fault, **settings), make(fault, **settings)
    whole.fit(4)
    half.fit(2)
    again = resumed(half.state_dict(), fault, **settings)
    again.fit(4)
    assert again.digest == whole.digest
    assert half.history + again.history[-2:] == whole.history
    assert [epoch for epoch, _ in whole.history] == [1, 2, 3, 4]
    assert whole.evaluate() == whole.metrics["return"]
    whole.fit(4)
    assert again.digest == whole.digest


def test_reports_of_all_kinds_are_the_same() -> None:
    tasks = [make(), make("lines", lines="log.jsonl"), make("pattern", pattern=PATTERN)]
    for task in tasks:
        task.fit(2)
    assert tasks[0].history == tasks[1].history == tasks[2].history


def test_a_task_that_stops_at_an_epoch_ends_its_program_there(tmp_path: Path) -> None:
    task = make("child")
    task.fit(5, until=lambda history: len(history) == 2)
    assert task.epochs == 2
    assert left() == []
    task.fit(4)
    whole = make("child")
    whole.fit(4)
    assert task.digest == whole.digest


def left() -> list[psutil.Process]:
    """Processes that this one has started and that still run."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if {"1000", own_program_place.PROGRAM} & {*child.cmdline()}]


def test_a_program_killed_amid_its_write_resumes_from_its_last_whole_folder(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    marker = str(tmp_path / "killed")
    task = make("half", marker, storage=store)
    with pytest.raises(
        ProgramFailed, match=r"own_program.py was killed by SIGKILL, on the way to epoch 3; it printed no"
    ):
        task.fit(3)
    again = make("half", marker, storage=store)
    again.fit(3)
    whole = make("half", marker)
    whole.fit(3)
    assert again.digest == whole.digest
    store.close()


@pytest.mark.parametrize(
    ("faults", "settings", "error", "message"),
    [
        (
            ["silent"],
            {},
            ProgramError,
            "must report each epoch from 1 to 2 .*, but it reported nothing; it printed nothing",
        ),
        (
            ["silent"],
            {"lines": "log.jsonl"},
            ProgramError,
            "must report in the file log.jsonl of {checkpoint}, but wrote",
        ),
        (["silent"], {"pattern": "(?P<return>x)"}, ProgramError, "but it reported nothing"),
        (["fork"], {}, ProgramError, "reported nothing; its last lines:\nended before 1 of its processes, which w"),
        (["nan"], {}, Diverged, "return became nan in epoch 1; try other hyperparameters"),
        (["other"], {}, ProgramError, "must report its objective 'return', but reported 'accuracy'; report it, or set"),
        (
            ["crash"],
            {},
            ProgramFailed,
            "ended with status 1, on the way to epoch 2; its last lines:\nno such file: data",
        ),
        (["killed"], {}, ProgramFailed, "was killed by SIGKILL, on the way to epoch 2"),
        (["binary", "crash"], {}, ProgramFailed, "last lines:\n\ufffd+"),
        (["skip"], {}, ProgramError, "from 1 to 2 .*, but it reported nothing after epoch 1"),
        (["lines", "label", "null"], {"lines": "log.jsonl"}, ProgramError, "JSON with an epoch .1, 2, .... and num"),
        (["lines", "label", '"1"'], {"lines": "log.jsonl"}, ProgramError, "JSON with an epoch .1, 2, .... and num"),
        (["pattern", "label", "NaN"], {"pattern": PATTERN}, ProgramError, "done so far, but is nan, in the line"),
        (["pattern"], {"pattern": "epoch (?P<return>.*)"}, ProgramError, "must match a number, but matched '1: return"),
    ],
)
def test_faults_of_programs_are_named(
    faults: list[str], settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    task = make(*faults, **settings)
    with pytest.raises(error, match=message):
        task.fit(2)
    assert left() == []


@pytest.mark.parametrize(
    ("faults", "settings"), [(["pattern"], {"pattern": PATTERN}), (["lines"], {"lines": "log.jsonl"}), ([], {})]
)
def test_epochs_counted_from_0_are_named(faults: list[str], settings: dict[str, Any]) -> None:
    with pytest.raises(ProgramError, match=r"from 1 to 1 .*, but it began with epoch 0; report the number of epochs"):
        make(*faults, "from 0", **settings).fit(1)


def test_a_first_report_beyond_the_target_is_named() -> None:
    with pytest.raises(ProgramError, match=r"from 1 to 1 .*, but it reported epoch 5 first"):
        make("label", "5").fit(1)


def test_a_program_that_reports_nothing_for_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running_program, "GRACE", 0.1)
    task = make("hang", "ignore", "child")
    with progress.limited(1.0), pytest.raises(Hung, match=r"reported nothing for 1 s and was killed \(--stuck\)"):
        task.fit(3)
    assert left() == []


def test_a_program_that_trains_too_far_is_ended_at_its_target() -> None:
    task, other = make("beyond"), make()
    task.fit(2)
    other.fit(2)
    assert task.history == other.history
    assert task.epochs == 2


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        (["x", "{lrr}"], {}, r"or one of epochs, checkpoint, seed, device, but \{lrr\} is neither; did you mean lr"),
        (["x", "{epochs}{checkpoint}"], {}, r"must get lr, but its command has no \{lr\}; add it, such as --lr \{lr\}"),
        (["x", "{{lr}} {epochs}{checkpoint}"], {}, r"must get lr, .* and \{\{lr\}\} is a text; write --lr \{lr\}"),
        (["x", "{lr:.3f} {epochs}{checkpoint}"], {}, r"must get lr, .* and \{lr:.3f\} is a text; write --lr \{lr\}"),
        (["x", "{lr} {foo}"], {}, r"\{foo\} is neither; \{\{foo\}\} is the text in braces"),
        (["x", "{lr}{epochs}"], {}, r"must get checkpoint, but its command has no \{checkpoint\}"),
        ([], {}, "a program needs a command line; add it at the end: -- python train.py"),
        (None, {"objectiv": "x"}, "settings are space, objective, .* but got objectiv; did you mean objective"),
        (None, {"objective": "x:up"}, "NAME, NAME:maximize or NAME:minimize, but got 'x:up'"),
        (None, {"pattern": "("}, "pattern must be a regular expression, but '\\('"),
        (None, {"pattern": "a"}, r"pattern needs a group for the objective, \(\?P<return>...\), but 'a' has none"),
        (None, {"pattern": "(?P<return>.)", "lines": "x"}, "by lines or by a pattern, but both are given"),
        (None, {"version": 0}, "version of a program must be an integer of at least 1, but is 0"),
        (None, {"lines": "../log.jsonl"}, "lines is a file within the checkpoint folder, but is '../log.jsonl'"),
        (None, {"lines": "/log.jsonl"}, "lines is a file within the checkpoint folder, but is '/log.jsonl'"),
        (None, {"bounds": ["a", 1]}, r"bounds of a program must be two numbers, such as \[0, 1\], but are \['a', 1\]"),
        (None, {"bounds": [1]}, r"bounds of a program must be two numbers, such as \[0, 1\], but are \[1\]"),
    ],
)
def test_commands_are_checked(words: list[str] | None, settings: dict[str, Any], message: str) -> None:
    whole = ["x", "{lr}", "{epochs}", "{checkpoint}"]
    with pytest.raises(ValueError, match=message):
        ProgramCommand.of(whole if words is None else words, {"space": SPACE, **settings})


def test_a_name_holds_the_whole_command() -> None:
    made = command("a", objective="loss:minimize", bounds=[0, None], lines="x.jsonl", version=2)
    assert ProgramCommand.parse(made.name) == made
    assert load(made.name).learner.bounds == (0, None)
    values = {"lr": 0.5, "epochs": 3, "checkpoint": "/d", "seed": 1}
    assert made.words(values)[2:] == ["0.5", "3", "1", "/d", "a"]
    with pytest.raises(ValueError, match=r"a program is named command:\{...\}, with run and space, but 'command:x'"):
        load("command:x")


def test_braces_that_are_no_placeholder_are_text() -> None:
    words = [
        "true",
        '{"opt":{"lr":{lr}}, "act": "{act}"}',
        "${{lr}} {}{0} {lr:.1f} {a: {lr}}",
        "{epochs}",
        "{checkpoint}",
    ]
    made = ProgramCommand.of(words, {"space": {"lr": "loguniform(0.01, 1.0)", "act": "choices(['a', '{lr}'])"}})
    assert made.space.defaults() == {"lr": pytest.approx(0.1), "act": "{lr}"}
    assert load(made.name)(seed=1).init().member_ref().learner.values["act"] == "{lr}"  # texts need no structural=True
    written = made.words({"lr": 0.5, "act": "{lr}", "epochs": 1, "checkpoint": "/d"})
    assert written[1:3] == ['{"opt":{"lr":0.5}, "act": "{lr}"}', "${lr} {}{0} {lr:.1f} {a: 0.5}"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-program"], r"machine has no 'no-such-program' .in .*; install it, or give its path"),
        (["train.py"], r"machine has no 'train.py' .in .*; write python train.py, as in a terminal"),
        ([f"{sys.executable} train.py {{epochs}} {{checkpoint}}"], "to start; write its words without quotes around"),
        ([sys.executable, "-u", "src/train.py"], "but .* has no src/train.py; run this in the folder that h"),
    ],
)
def test_a_program_that_is_not_there_is_named(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    missing = ProgramCommand.of(words if " " in words[0] else [*words, "{epochs}", "{checkpoint}"], {"space": {}})
    with pytest.raises(ProgramError, match=message):
        load(missing.name)().init().probe()


def test_a_check_tells_exact_programs_from_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert check(make, 4) == []
    (first, *_) = check(lambda: make("forget"), 4)
    assert first.startswith("return of epoch 3 is -")
    learner = load(command("forget").name).learner

    def labels() -> list[str]:
        return programs.resume_labels(learner.title, learner.resume_differs())

    assert "was not checked; `rekindle check-resume` does" in labels()[0]
    programs.remember(learner, first)
    assert labels() == [f"own_program.py does not resume exactly: {first}"]
    programs.remember(learner, "")
    assert labels() == []
    with pytest.raises(ValueError, match="a resume is checked with at least 2 epochs, but got 1"):
        check(make, 1)


WORKER = """
import sys
from rekindle import Store
from rekindle.tasks import load
task = load(sys.argv[1])(seed=1, storage=Store(sys.argv[2])).init()
print("begins", flush=True)
task.fit(int(sys.argv[3]))
"""


def running(word: str) -> list[int]:
    results = []
    for process in psutil.process_iter(["cmdline"]):
        if word in " ".join(process.info["cmdline"] or []) and process.status() != psutil.STATUS_ZOMBIE:
            results.append(process.pid)
    return results


def kill_and_resume(tmp_path: Path, kills: int, epochs: int, moment: Callable[[int], float]) -> None:
    name, url = command("slow", "child", str(tmp_path)).name, f"sqlite:///{tmp_path / 'k.db'}"
    for kill in range(kills):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, name, url, str(epochs)], stdout=subprocess.PIPE)
        assert worker.stdout is not None
        worker.stdout.readline()
        time.sleep(moment(kill))
        worker.kill()
        worker.wait()
        worker.stdout.close()
        deadline = time.monotonic() + 60
        while running(str(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert running(str(tmp_path)) == []
    whole = load(name)(seed=1).init()
    whole.fit(epochs)
    with Store(url) as store:
        task = load(name)(seed=1, storage=store).init()
        task.fit(epochs)
        assert task.digest == whole.digest
        assert [epoch for epoch, _ in task.history] == [*range(1, epochs + 1)]


def test_kill_9_of_the_worker_ends_the_program_which_resumes(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 1, 8, lambda kill: 0.4)


@pytest.mark.chaos
def test_kills_at_random_moments_change_nothing(tmp_path: Path) -> None:
    kill_and_resume(tmp_path, 50, 40, lambda kill: (kill * 0.618) % 1 * 1.5)


def test_sigterm_saves_the_last_whole_checkpoint_and_ends_the_program(tmp_path: Path) -> None:
    name, url = command("slow", str(tmp_path)).name, f"sqlite:///{tmp_path / 'k.db'}"
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, name, url, "1000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert worker.stdout is not None
    worker.stdout.readline()
    deadline = time.monotonic() + 60
    while not running(f"{own_program_place.PROGRAM} 0.1 1000") and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.5)
    worker.send_signal(signal.SIGTERM)
    _, errors = worker.communicate()
    assert b"Stopped: training was asked to stop by SIGTERM" in errors
    assert running(f"{own_program_place.PROGRAM} 0.1 1000") == []
    with Store(url) as store:
        task = load(name)(seed=1, storage=store).init()
        whole = load(name)(seed=1).init()
        whole.fit(task.epochs)
        assert task.history == whole.history


def test_a_report_without_rekindle_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    import rekindle

    monkeypatch.delenv("REKINDLE_REPORT", raising=False)
    rekindle.report(1, return_=2)
    with pytest.raises(TypeError, match=r"report: epoch must be an integer, the epochs done so far, but got 1.5"):
        rekindle.report(1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="report: loss must be a number, but is 'x'"):
        rekindle.report(1, loss="x")
    lines = Path(rekindle.report.__code__.co_filename).read_text().splitlines()
    assert len(lines) <= 100


def test_secrets_in_the_environment_are_not_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import os\nraise SystemExit(390 * '.' + os.environ['HF_TOKEN'])\n")
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789abcdef")
    made = ProgramCommand.of([sys.executable, str(script), "{epochs}", "{checkpoint}"], {"space": {}})
    with pytest.raises(ProgramFailed, match=r"ended with status 1, .*; its last lines:\n\.+\*\*\*$"):
        load(made.name)().init().fit(1)


def test_code_and_environment_reach_the_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys\nfrom rekindle.tasks.adapters.reporting import report\n"
        "report(1, return_=float(os.environ['SECRET']) + float(os.environ['REKINDLE_SEED']))\n"
    )
    monkeypatch.setenv("SECRET", "3.5")
    made = ProgramCommand.of([sys.executable, str(script), "{epochs}", "{checkpoint}"], {"space": {}})
    store = Store(f"sqlite:///{tmp_path / 's.db'}")
    task = load(made.name)(seed=2, storage=store).init()
    assert task.fit(1)["return"] == 5.5
    assert [*load(made.name).learner.files()] == [str(script)]
    assert b"3.5" not in json.dumps(task.report()).encode()
    assert str(task).startswith("train.py, seed 2")
    store.close()
    assert os.listdir(task.member_ref().learner.folder.work) == []  # type: ignore[attr-defined]


def test_a_program_reports_where_temporary_folders_have_long_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    task = make()
    task.fit(2)
    assert [epoch for epoch, _ in task.history] == [1, 2]
    program = running_program.Program(["true"], folder, {})
    short = program.path.parent
    assert short.is_relative_to("/tmp")
    program.end()
    assert not short.exists()


def test_lines_are_those_of_json_lines() -> None:
    learner = make(lines="log.jsonl").member_ref().learner
    text = '{"epoch": 1, "return": 2, "note": "a\u2028b\x85c"}\r\n\n{"epoch": 2, "return": 3}\n'
    (learner.folder.work / "log.jsonl").write_bytes(text.encode())
    assert learner.read_lines() == {1: {"return": 2.0}, 2: {"return": 3.0}}
    (learner.folder.work / "log.jsonl").write_text('{"epoch": 1, "return": 1' + "0" * 400 + "}")
    with pytest.raises(ProgramError, match=r"a line of log.jsonl must be JSON with an epoch \(1, 2, ...\) and numbers"):
        learner.read_lines()
