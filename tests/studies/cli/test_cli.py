"""The command line: killed and resumed processes, documented JSON, and one-line errors."""

from __future__ import annotations

import io
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gated
import nursery
import optuna
import psutil
import pytest
from rekindle.studies.cli import main
from rekindle.studies.cli.commands.storage import repeated
from rekindle.studies.cli.output import tables
from rekindle.studies.engine.confirmations import confirmation_config, start_confirmation
from rekindle.studies.engine.runner import StudyRunner, start_study
from rekindle.studies.engine.snapshots import look
from rekindle.studies.engine.status_views import status_view
from rekindle.studies.engine.study_views import study_view
from rekindle.studies.engine.task_views import task_view
from rekindle.studies.engine.views import RungView, StudyView
from rekindle.studies.steering.steering import Steering
from rekindle.studies.storage.sql import schema
from rekindle.studies.storage.sql.database import sqlite_url
from rekindle.studies.storage.store import Store
from rekindle.studies.upkeep.fsck import check
from rich.console import Console
from studying import TINY, bits, run, surrogate, tiny, undisturbed

EPOCHS = (1, 4, 2)
ALL = {"eval_episodes": 20}
CONFIG = tiny(4, EPOCHS, env="gated:Gated-v0", generation=2, options=ALL)
COMMON = ["--trials", "4", "--generation", "2", "--cohort", "2", "--study", "s", "--epochs", "1:4:2"]
COMMON += ["--scheduler", "halving", "--eval-episodes", "20"]


def settings(values: Mapping[str, Any] = TINY) -> list[str]:
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


FINISHED = tiny(4, EPOCHS, generation=2, options=ALL)  # the study that finished_url holds
TUNE = ["tune", "ppo", "CartPole-v1", *COMMON, *settings()]


TUNE_GATED = ["tune", "ppo", "gated:Gated-v0", *COMMON, *settings()]


def start(url: str, *more: str, command: list[str] = TUNE_GATED, real: bool = False) -> subprocess.Popen[str]:
    """Runs a command on gated environments; in a real interpreter, or in forks."""
    path = [str(Path(gated.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    return (subprocess.Popen if real else nursery.Popen)(
        [sys.executable, "-m", "rekindle.studies.cli", *command, "--storage", url, *more],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("finished") / "store.db"
    run(f"sqlite:///{path}", FINISHED)
    return path


@pytest.fixture
def finished_url(finished: Path, tmp_path: Path) -> str:
    shutil.copy(finished, tmp_path / "store.db")
    return f"sqlite:///{tmp_path / 'store.db'}"


def workers_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The workers of a command, and its copier, which lead sessions of their own."""
    try:
        return [child for child in psutil.Process(process.pid).children() if os.getsid(child.pid) == child.pid]
    except (psutil.NoSuchProcess, ProcessLookupError):
        return []


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str]) -> None:
    """Waits until something is the case, or the process has ended."""
    deadline = time.monotonic() + 600
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def has_study(url: str) -> bool:
    """Whether a database has a study."""
    with Store(url) as store:
        return bool(store.studies())


def stuck(process: subprocess.Popen[str], gate: gated.Gate) -> list[psutil.Process]:
    """The workers of a command that stand still at the gate."""
    return [worker for worker in workers_of(process) if worker.pid in gate.waiting()]


def is_stuck(process: subprocess.Popen[str], gate: gated.Gate) -> bool:
    """Whether a worker of a command stands still at the gate, so that the study cannot end."""
    return bool(stuck(process, gate))


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether a command has its own answer to SIGTERM, and to SIGINT, which comes with it."""
    [caught] = re.findall("SigCgt:\\s+(\\w+)", Path(f"/proc/{process.pid}/status").read_text())
    return bool(int(caught, 16) >> signal.SIGTERM - 1 & 1)


@pytest.mark.slow
def test_killed_at_random_steps_a_study_ends_as_if_nothing_had_happened(sqlite_url: str, gate: gated.Gate) -> None:
    rng = random.Random(4)
    for everybody in (True, False):
        gate.close(rng.randint(30, 200))
        process = start(sqlite_url, "--workers", "2")
        wait_for(lambda process=process: is_stuck(process, gate), process)  # type: ignore[misc]
        crew = workers_of(process)
        process.kill()
        for worker in crew if everybody else ():
            worker.kill()
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        gate.open()
        _, alive = psutil.wait_procs(crew, timeout=300)  # those that are not killed end with their parent
        assert alive == []
    process = start(sqlite_url, command=["worker", "--study", "s"], real=True)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    with Store(sqlite_url) as store:
        assert bits(store) == undisturbed(CONFIG)


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_all_stop_when_asked(sqlite_url: str, gate: gated.Gate) -> None:
    gate.close(20)  # within an epoch, so that the first worker leaves a trial to the second, however late it comes
    process = start(sqlite_url, "--workers", "2")
    wait_for(lambda: len(stuck(process, gate)) == 2, process)
    victim, other = stuck(process, gate)
    victim.kill()
    wait_for(lambda: len({*stuck(process, gate)} - {victim}) == 2, process)
    crew = workers_of(process)
    process.terminate()
    gate.open()
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert f"worker {victim.pid} was killed by SIGKILL; another one replaces it" in errors
    assert "stopped by SIGTERM; everything is saved" in errors
    assert other in crew
    assert not any(worker.is_running() for worker in crew)
    with Store(sqlite_url) as store:
        assert store.workers() == []
    assert run(sqlite_url, CONFIG) == undisturbed(CONFIG)


HELD = """
import os, pathlib, time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

folder = pathlib.Path(__file__).parent

class Held(CartPoleEnv):
    def __init__(self, **options):
        while (folder / f"hold-{os.getpid()}").exists():
            (folder / "held").touch()
            time.sleep(0.01)
        super().__init__(**options)

gymnasium.register("Held-v0", Held, max_episode_steps=30)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_stop_between_a_study_and_its_confirmation_says_how_to_resume(
    sqlite_url: str, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "held.py").write_text(HELD)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    command = ["tune", "ppo", "held:Held-v0", *COMMON, *settings(), "--confirm", "3"]
    process = start(sqlite_url, "--workers", "1", command=command)
    wait_for(lambda: has_study(sqlite_url), process)  # has made the environment once, to see that it can
    (tmp_path / f"hold-{process.pid}").touch()
    wait_for((tmp_path / "held").exists, process)  # makes it again, to see that the confirmation can
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}; everything is saved; run the same command to resume" in errors
    with Store(sqlite_url) as store:
        assert look(store, "s").complete
        assert [study.name for study in store.studies()] == ["s"]


@pytest.mark.slow
def test_two_that_start_the_same_study_at_once_share_it_and_one_may_leave(sqlite_url: str, gate: gated.Gate) -> None:
    gate.close(80)
    stays, leaves = (start(sqlite_url, "--workers", "1", "--json") for _ in range(2))
    wait_for(lambda: is_stuck(stays, gate) or is_stuck(leaves, gate), leaves)
    wait_for(lambda: listens(leaves), leaves)
    leaves.send_signal(signal.SIGINT)
    gate.open()
    _, errors = leaves.communicate()
    assert (leaves.returncode, "stopped by SIGINT" in errors) == (128 + signal.SIGINT, True)
    out, _ = stays.communicate()
    assert stays.returncode == 0
    assert json.loads(out)["state"] == "complete"
    with Store(sqlite_url) as store:
        assert bits(store) == undisturbed(CONFIG)


@pytest.mark.slow
def test_optuna_finds_the_finished_study_in_its_own_tables(finished_url: str, cli: Callable[..., Any]) -> None:
    for _ in range(2):  # the second time there is nothing to add
        status, out, _ = cli(*TUNE, "--storage", finished_url, "--json")
        assert status == 0
        trials = json.loads(out)["trials"]
        mirrored = optuna.load_study(storage=finished_url, study_name="s")
        assert [trial.state.name.lower() for trial in mirrored.trials] == [trial["state"] for trial in trials]
        assert [trial.user_attrs["rk_digest"] for trial in mirrored.trials] == [trial["digest"] for trial in trials]
        assert mirrored.best_value == max(trial["return"] for trial in trials if trial["state"] == "complete")


def test_a_study_of_optunas_own_is_left_as_it_is(finished_url: str, cli: Callable[..., Any]) -> None:
    mine = optuna.create_study(storage=finished_url, study_name="s")
    mine.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    status, _, errors = cli(*TUNE, "--storage", finished_url)
    assert status == 0
    assert "Optuna's tables were left as they are" in errors
    assert len(mine.trials) == 1


def test_the_json_of_a_study_has_the_documented_names(finished_url: str, cli: Callable[..., Any]) -> None:
    status, out, errors = cli("trials", "s", "--storage", finished_url, "--json")
    study = json.loads(out)
    assert (status, errors) == (0, "")
    assert study.keys() >= {  # names may be added, never taken away
        *(
            "format",
            "study",
            "state",
            "task",
            "env",
            "seed",
            "sampler",
            "rungs",
            "fixed",
            "trials_total",
            "counts",
            "best",
            "trials",
        )
    }
    assert study["rungs"] == [1, 2, 4]
    for trial in study["trials"]:
        assert trial.keys() >= {
            *("number", "uid", "state", "bracket", "epochs", "return", "digest", "hyperparameters", "error", "rungs")
        }
        assert trial["rungs"][-1].keys() >= {"rung", "epochs", "state", "return", "digest"}
        assert len(trial["digest"]) == 64
        assert trial["hyperparameters"]["model.width"] == 16


def test_status_shows_every_study(finished_url: str, cli: Callable[..., Any]) -> None:
    status, out, _ = cli("status", "--storage", finished_url, "--json")
    result = json.loads(out)
    assert status == 0
    assert result.keys() >= {"format", "storage", "studies", "workers", "tasks"}
    [study] = result["studies"]
    assert (study["study"], study["state"], result["tasks"], result["workers"]) == ("s", "complete", 4, [])
    assert "cartpole" in cli("status", "--storage", finished_url)[1].lower()


def test_status_shows_one_study_among_others(tmp_path: Path, cli: Callable[..., Any]) -> None:
    with Store(url := f"sqlite:///{tmp_path / 'a.db'}") as store:
        for name in ("one", "other"):
            start_study(store, name, tiny(2, (1, 3, 3)))
    [study] = json.loads(cli("status", "other", "--storage", url, "--json")[1])["studies"]
    assert study["study"] == "other"


def test_tables_of_studies_are_no_wider_than_a_terminal(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        start_study(store, "cartpole", tiny(9, (1, 27, 3), scheduler="hyperband", generation=9))
        StudyRunner(store, "cartpole").advance()
        more = {"epochs": 1, "state": "done", "objectives": None, "digest": None}
        rungs = [RungView(rung=rung, return_=123.4, **more) for rung in range(4)]  # type: ignore[arg-type]
        study = study_view(store, "cartpole")
        trials = [trial.replace(state="complete", rungs=rungs) for trial in study.trials]
        study = study.replace(trials=trials)
        for table in (tables.trials_table(study), tables.status_table(status_view(store))):
            Console(width=80, file=(out := io.StringIO())).print(table)
            lines = out.getvalue().splitlines()
            assert max(len(line.rstrip()) for line in lines) <= 80
            assert not any("…" in line for line in lines if "sqlite" not in line)


def test_train_carries_on_and_show_tells_the_whole_story(
    sqlite_url: str, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    def command(epochs: int, url: str = sqlite_url) -> list[str]:
        values = settings({**TINY, "gamma": 0.98, "optimizer.lr": "1e-3"})
        return [
            "train",
            "ppo",
            "CartPole-v1",
            "--epochs",
            f"{epochs}",
            "--seed",
            "1",
            *values,
            "--storage",
            url,
            "--json",
        ]

    def train(*arguments: Any) -> dict[str, Any]:
        status, out, _ = cli(*command(*arguments))
        assert status == 0
        return dict(json.loads(out))

    first, further, again = train(2), train(5), train(5)
    assert (first["resumed"], further["resumed"], again["resumed"]) == (False, True, True)
    assert {**again, "resumed": False} == train(5, f"sqlite:///{tmp_path / 'other.db'}")
    assert first["digest"] != further["digest"] == again["digest"]
    assert further["hyperparameters"]["gamma"] == 0.98
    status, out, _ = cli("show", first["uid"][:6], "--storage", sqlite_url, "--json")
    output = json.loads(out)
    assert status == 0
    for name in ("uid", "epochs", "return", "digest"):
        assert output[name] == further[name]
    assert [row["epoch"] for row in output["metrics"]] == [1, 2, 3, 4, 5]
    assert [event["kind"] for event in output["events"]].count("resume") >= 2
    assert "checkpoints" in cli("show", first["uid"][:6], "--storage", sqlite_url)[1]
    status, _, errors = cli(*command(1))
    assert status == 2
    assert "training only goes forward, but ppo on CartPole-v1, seed 1" in errors


def test_a_complete_study_says_so(finished_url: str, cli: Callable[..., Any]) -> None:
    status, out, errors = cli(*TUNE, "--storage", finished_url)
    assert status == 0
    assert "study s is complete; rerun with more --trials than 4 to extend it" in errors
    assert "best trials of s" in out
    assert "4 trials: 2 complete, 2 pruned" in out
    assert "rekindle show" in out


def test_a_complete_population_or_grid_is_not_said_to_take_more_trials(
    sqlite_url: str, cli: Callable[..., Any]
) -> None:
    common = ["surrogate", "--epochs", "1", "--workers", "1", "--storage", sqlite_url]
    for how in (
        ["--scheduler", "pbt", "--population", "2", "--interval", "1"],
        ["--sampler", "grid", "--grid-points", "2", "--search", "lr", "--search", "gamma"],
    ):
        command = ["tune", *common, *how, "--study", how[1]]
        assert cli(*command)[0] == 0
        status, out, errors = cli(*command)
        assert (status, errors) == (0, f"study {how[1]} is complete\n")
        assert ("rekindle confirm" in out) == (how[1] == "grid")  # not of a population


def test_a_population_has_not_failed_whose_branches_live(sqlite_url: str, cli: Callable[..., Any]) -> None:
    """As many trials failed as there are members, each of which was replaced."""
    command = ["tune", "surrogate", "--scheduler", "pbt", "--population", "2", "--interval", "1", "--epochs", "8"]
    command += ["--exploit", "tournament", "--workers", "1", "--study", "s", "--storage", sqlite_url]
    assert cli(*command)[0] == 0
    with Store(sqlite_url) as store:
        replaced = [row.number for row in store.trials("s") if row.state == "pruned"][:2]
        ended = schema.trial.update().where(schema.trial.c.number.in_(replaced)).values(state="failed")
        assert store.database.write(lambda connection: connection.execute(ended).rowcount) == 2
    assert cli(*command)[0] == 0


def test_a_confirmation_that_was_stopped_says_how_it_continues(finished_url: str, cli: Callable[..., Any]) -> None:
    with Store(finished_url) as store:
        name = start_confirmation(store, "s", confirmation_config(store, "s", seeds=5))
        Steering(store, name, "ana").stop()
    status, out, errors = cli("confirm", "s", "--seeds", "5", "--workers", "1", "--storage", finished_url)
    assert status == 1
    assert "The confirmation is not complete" in out
    assert f"study {name} had the stop by ana; `rekindle resume {name} --storage {finished_url}` continues it" in errors


def test_confirm_is_proposed_once_a_trial_can_be_confirmed(sqlite_url: str, cli: Callable[..., Any]) -> None:
    command = ["tune", "surrogate", "--epochs", "1:4", "--trials", "4", "--workers", "1", "--storage", sqlite_url]
    status, out, _ = cli(*command, "--budget", "4epochs")
    assert status == 0
    assert "rekindle show" in out
    assert "rekindle confirm" not in out  # no trial is trained to the end
    assert "rekindle confirm surrogate" in cli(*command, "--budget", "100epochs")[1]


BAD = {
    "unknown task": (["tune", "pppo", "CartPole-v1"], "did you mean ppo"),
    "unknown environment": (["tune", "ppo", "CartPoel-v1"], "CartPole"),
    "unknown hyperparameter": (["tune", "ppo", "CartPole-v1", "--set", "gama=1"], "did you mean gamma"),
    "value out of range": (["train", "ppo", "CartPole-v1", "--set", "gamma=2"], "gamma must be"),
    "value of another type": (["train", "ppo", "CartPole-v1", "--set", "num_steps=many"], "num_steps must be"),
    "value that is code": (["train", "ppo", "CartPole-v1", "--set", "gamma=__import__('os')"], "gamma must be"),
    "NaN": (["train", "ppo", "CartPole-v1", "--set", "gamma=nan"], "gamma must be"),
    "no value": (["train", "ppo", "CartPole-v1", "--set", "gamma"], "name=value"),
    "epochs": (["tune", "ppo", "CartPole-v1", "--epochs", "27:1"], "but in 27:1 high is 1"),
    "epochs of train": (["train", "ppo", "CartPole-v1", "--epochs", "1:27"], "--epochs 27"),
    "trials": (["tune", "ppo", "CartPole-v1", "--trials", "0"], "must be a number of at least 1"),
    "seed": (["tune", "ppo", "CartPole-v1", "--seed", "-1"], "seed"),
    "sampler": (["tune", "ppo", "CartPole-v1", "--sampler", "tep"], "did you mean tpe?"),
    "storage": (["tune", "ppo", "CartPole-v1", "--storage", "mongo://x"], "sqlite"),
    "no database": (["status", "--storage", "sqlite:///nowhere.db"], "nowhere.db yet; give --storage"),
    "device": (["train", "ppo", "CartPole-v1", "--device", "gpu"], "must be auto, cpu, cuda, cuda:1 (or another"),
    "device elsewhere": (["tune", "ppo", "CartPole-v1", "--device", "cuda:99"], "'cuda:99' is not available"),
    "GPUs in vain": (["tune", "ppo", "CartPole-v1", "--engine", "ray", "--gpus-per-worker", "1"], "add --device cuda"),
    "no GPU": (["tune", "ppo", "CartPole-v1", "--engine", "ray", "--device", "cuda"], "add --gpus-per-worker 1"),
    "patience": (["status", "--patience", "soon"], "must be seconds, a number from 0 to 10000000"),
    "lease": (["tune", "ppo", "CartPole-v1", "--lease", "0"], "lease_seconds must be above 0"),
    "lease for ever": (["worker", "--lease", "1e20"], "must be seconds, a number from 0 to 10000000, but got '1e20'"),
    "grace for ever": (["train", "ppo", "CartPole-v1", "--grace", "1e300"], "a number from 0 to 10000000"),
    "endless evaluation": (
        ["evaluate", "a", "--episodes", "1000000000"],
        "must be 10000000 at most, but got 1000000000",
    ),
    "many digits": (["tune", "ppo", "CartPole-v1", "--seed", "9" * 5000], "must be an integer from 0 to 2**63 - 1"),
    "unknown command": (["tunne"], "tune"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_with_a_cure_and_leaves_no_database(
    case: str, cli: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, message = BAD[case]
    status, out, errors = cli(*arguments)
    assert status == 2
    assert out == ""
    assert message in errors
    assert errors.count("\n") == 1, errors
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trials", "other"], "there is no study 'other'; there are 's'"),
        (["worker", "--study", "other"], "there is no study 'other'"),
        (["show", "zzz"], "begins with 'zzz'; `rekindle trials STUDY`"),
        (["show", "s"], "begins with 's'; `rekindle trials s` shows them"),
        (["status", "other"], "there is no study 'other'; there are 's'"),
        (["trials"], "required: STUDY; `rekindle status` names the studies"),
        (["show", ""], "begins 4"),
        (["tune", "ppo", "CartPole-v1", "--study", "s", "--seed", "9"], "'s' differs in"),
    ],
)
def test_a_missing_study_or_task_is_reported_in_one_line(
    arguments: list[str], message: str, finished_url: str, cli: Callable[..., Any]
) -> None:
    status, out, errors = cli(*arguments, "--storage", finished_url)
    assert (status, out) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


INTERRUPTED = """
import atexit, signal, sys
from rekindle.studies.cli import dispatch, main

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it

def interrupt(*arguments):
    signal.raise_signal(signal.SIGINT)  # as by Ctrl-C at this moment

if sys.argv.pop() == "end":
    atexit.register(interrupt)
else:
    dispatch.make_parser = interrupt
sys.exit(main())
"""


@pytest.mark.parametrize(("when", "status", "line"), [("begin", 130, "rekindle: stopped\n"), ("end", -2, "")])
def test_ctrl_c_prints_no_traceback_while_a_command_begins_or_ends(
    finished_url: str, when: str, status: int, line: str
) -> None:
    done = nursery.run([sys.executable, "-c", INTERRUPTED, "trials", "s", "--storage", finished_url, when])
    assert (done.returncode, done.stderr) == (status, line)


def test_forked_processes_end_if_tune_refuses_its_options(sqlite_url: str) -> None:
    with start(sqlite_url, command=["tune", "ppo", "CartPole-v1", "--epochs", "9:1"]) as process:
        out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert "epochs are low:high:base with 1 <= low <= high" in errors


def test_debug_shows_where_an_error_comes_from(finished_url: str) -> None:
    from rekindle.studies.errors import UnknownStudy

    with pytest.raises(UnknownStudy):
        main(["trials", "other", "--storage", finished_url, "--debug"])


def test_a_warning_is_a_line_and_has_a_place_if_other_code_raised_it(tmp_path: Path) -> None:
    (tmp_path / "old_envs.py").write_text(
        "import gymnasium, warnings\nwarnings.warn('the server is old')\n"
        "gymnasium.register('Old-v0', 'gymnasium.envs.classic_control:CartPoleEnv', max_episode_steps=20)\n"
    )
    code = (
        "import sys; from rekindle.studies.cli import main; from rekindle.tasks.envs.selftest import bench; "
        "bench.SLOW = -1.0; sys.exit(main())"
    )
    command = [sys.executable, "-W", "default", "-c", code, "probe", "old_envs:Old-v0", "--steps", "40"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"{tmp_path / 'old_envs.py'}:2: UserWarning: the server is old" in done.stderr
    [line] = [line for line in done.stderr.splitlines() if "the self-test" in line]
    assert line.startswith(
        "rekindle: warning: old_envs:Old-v0: the self-test, which finds out how a state is restored,"
    )
    assert "self._count()" not in done.stderr


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from rekindle.studies.cli import main\ntry: main(['--help'])\nfinally: print(*sorted(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.splitlines()[-1].split())
    assert not loaded & {"torch", "numpy", "numba", "optuna", "sqlalchemy", "rich", "gymnasium"}


def test_a_training_ends_when_nothing_gets_better(sqlite_url: str, cli: Callable[..., Any]) -> None:
    command = ["train", "ppo", "CartPole-v1", "--epochs", "60", "--storage", sqlite_url, "--json", *settings()]
    status, out, errors = cli(*command, "--no-better", "entropy:3")
    assert status == 0
    result = json.loads(out)
    assert 3 < result["epochs"] < 60
    assert f"entropy has not risen for 3 epochs: stopped after epoch {result['epochs']}" in errors
    again = json.loads(cli(*command, "--no-better", "entropy:3")[1])
    assert (again["epochs"], again["digest"], again["resumed"]) == (result["epochs"], result["digest"], True)
    status, out, errors = cli(*command, "--no-better", "entropy")
    assert (status, out) == (2, "")
    assert "--no-better must be METRIC:N with N epochs, such as episode_return:20, but got 'entropy'" in errors


def test_a_training_without_any_gradient_step_is_reported(sqlite_url: str, cli: Callable[..., Any]) -> None:
    command = ["train", "a2c", "CartPole-v1", "--epochs", "1", "--storage", sqlite_url, "--set", "epoch_steps=64"]
    assert "nothing was learned" not in cli(*command)[2]
    status, _, errors = cli(*command, "--set", "min_steps=5000")
    assert status == 0
    assert "nothing was learned: no gradient step was due in 1 epochs" in " ".join(errors.split())


@pytest.mark.slow
def test_a_device_is_chosen_for_every_command_and_is_no_part_of_the_task(
    sqlite_url: str, tmp_path: Path, cli: Callable[..., Any]
) -> None:
    command = ["train", "ppo", "CartPole-v1", "--epochs", "1", "--storage", sqlite_url, "--json", *settings()]
    first = json.loads(cli(*command)[1])
    for device in ("auto", "cpu"):
        again = json.loads(cli(*command, "--device", device)[1])
        assert (again["uid"], again["resumed"]) == (first["uid"], True)
        storage = [first["uid"], "--device", device, "--storage", sqlite_url, "--json"]
        assert json.loads(cli("evaluate", *storage)[1])["return"] == pytest.approx(first["return"])
        assert json.loads(cli("replay", *storage)[1])["epochs"] == 1
    status, out, errors = cli("worker", "--study", "s", "--device", "cuda:99", "--storage", sqlite_url)
    assert (status, out) == (2, "")
    assert "there is no study 's'" in errors


@pytest.mark.slow
def test_the_printed_commands_work_on_postgresql(
    postgres_url: str, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = postgres_url.replace("postgres@", "postgres:pa%20ss@")
    run(url, FINISHED)
    status, out, _ = cli(*TUNE, "--storage", url)
    assert status == 0
    assert "***" not in out
    assert "pa%20ss" not in out
    assert "# these take the password from PGPASSWORD or ~/.pgpass" in out
    monkeypatch.setenv("PGPASSWORD", "pa ss")
    commands = [shlex.split(line) for line in out.splitlines() if line.startswith("rekindle ")]
    assert [command[1] for command in commands] == ["show", "confirm", "trials", "report"]
    monkeypatch.chdir(tmp_path)
    for _, name, *arguments in commands:
        assert name == "confirm" or cli(name, *arguments)[0] == 0
    storage = optuna.storages.RDBStorage(commands[0][-1])
    assert len(optuna.load_study(storage=storage, study_name="s").trials) == 4
    storage.remove_session()
    storage.engine.dispose()


def test_a_worker_says_what_the_study_is_when_it_ends(finished_url: str, cli: Callable[..., Any]) -> None:
    status, out, errors = cli("worker", "--study", "s", "--storage", finished_url, "--json")
    assert (status, json.loads(out)["state"]) == (0, "complete")
    assert "works on study s in" in errors


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--no-better", "foo:2"], "--no-better's metric must be one of episode_return, episode_length"),
        (["train", "--no-better", "return:2"], "--no-better return:2 needs the return of each epoch, but --snapshots"),
        (["tune", "--epochs", "3", "--env-steps", "9"], "got --epochs 3 and --env-steps 9; leave one out"),
        (["tune", "--search", "gamma", "--search", "gamma"], "--search names gamma twice; leave one out"),
        (["tune", "--scheduler", "pbt", "--population", "1"], "--population is 1; give it at least 2"),
        (["tune", "--scheduler", "pbt", "--epochs", "2", "--interval", "5"], "--interval 5 is above the 2 epochs"),
        (["tune", "--scheduler", "pbt", "--epochs", "1:8"], "but --epochs is 1:8; use --epochs 8, and --interval"),
        (
            ["tune", "--scheduler", "pbt", "--trials", "50"],
            "--trials is 50, but a population trains its members, 8; use --population 50",
        ),
        (
            ["tune", "--scheduler", "pbt", "--generation", "5"],
            "a population, 8, are suggested and trained together, but --generation is 5; leave it out",
        ),
        (
            ["tune", "--scheduler", "pbt", "--population", "6", "--cohort", "3"],
            "a population, 6, are suggested and trained together, but --cohort is 3; leave it out",
        ),
        (
            ["tune", "--population", "4"],
            "only --scheduler pbt takes --population, but the scheduler is adaptive; add --scheduler pbt",
        ),
        (
            ["tune", "--scheduler", "asha", "--interval", "2", "--perturb", "gamma"],
            "only --scheduler pbt takes --interval and --perturb, but the scheduler is asha",
        ),
    ],
)
def test_options_without_effect_are_refused(
    words: list[str], message: str, sqlite_url: str, cli: Callable[..., Any]
) -> None:
    command, *more = words
    status, out, errors = cli(command, "ppo", "CartPole-v1", "--storage", sqlite_url, *settings(), *more)
    assert (status, out) == (2, "")
    assert message in errors
    assert not Path(sqlite_url.removeprefix("sqlite:///")).exists()


def test_a_name_cannot_write_to_the_terminal(sqlite_url: str, cli: Callable[..., Any]) -> None:
    name = "a\x1b[31mred[bold]"
    run(sqlite_url, tiny(1, (1, 1, 3)), name)
    command = ["tune", "ppo", "CartPole-v1", "--trials", "1", "--generation", "4", "--cohort", "2", "--epochs", "1"]
    asked = [*command, *settings(), "--study", name, "--storage", sqlite_url]
    for words in (asked, ["status", "--storage", sqlite_url], ["trials", name, "--storage", sqlite_url]):
        status, out, errors = cli(*words)
        assert "\x1b" not in out + errors
        assert (status, "\\x1b[31mred[bold]" in out) == (0, True)


def test_counts_have_all_their_digits_and_a_table_says_what_it_measures() -> None:
    assert [tables.number(value) for value in (36864.0, 1e6, 0.0, -3.0, 1e300, 0.00020822, 12345.6)] == [
        *("36864", "1000000", "0", "-3", "1e+300", "0.0002082", "1.235e+04")
    ]
    absent: dict[str, Any] = dict.fromkeys(StudyView.fields)
    common = {"study": "s", "task": "ppo", "env": {}, "seed": 0, "rungs": [1], "trials": [], "front": []}
    for objectives, scheduler, told in (
        ({"return": "maximize"}, "none", "s: ppo, seed 0"),
        ({"episode_length": "minimize"}, "none", "s: ppo, seed 0, minimize episode_length"),
        ({"return": "maximize"}, "confirm", "s: ppo, seed 0, estimates on fresh seeds"),
    ):
        assert (
            tables.trials_table(
                StudyView(**{**absent, **common, "objectives": objectives, "scheduler": scheduler})
            ).title
            == told
        )


def test_show_loses_nothing_on_a_narrow_terminal(finished_url: str) -> None:
    with Store(finished_url) as store:
        uid = store.trials("s")[0].uid
        view = task_view(store, uid).to_json()
    events = [
        {"time": "2026-11-22 10:00:00", "kind": "start", "epochs": 0, "process": "12345 on host", "more": "x" * 90}
    ]
    columns = ("epochs", "bytes", "kept", "digest"), ("time", "kind", "epochs", "process", "more")
    for rows, names in zip((view["checkpoints"], events), columns, strict=True):
        Console(width=80, file=(out := io.StringIO())).print(tables.rows_table("t", rows, names))
        text = out.getvalue()
        assert "…" not in text
        assert all(str(rows[0][name]) in "".join(text.split()) for name in names if name in ("bytes", "kind", "epochs"))
        assert str(rows[0][names[-1]])[:10] in text


@pytest.mark.slow
def test_a_study_that_nobody_trains_is_stopped_and_a_worker_tells_what_it_does(
    sqlite_url: str, gate: gated.Gate, cli: Callable[..., Any]
) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "s", CONFIG)
    assert re.search(r"s +stalled", cli("status", "--storage", sqlite_url)[1])
    gate.close(100)
    process = start(sqlite_url, command=["worker", "--study", "s"])
    wait_for(gate.waiting, process)
    [study] = json.loads(cli("status", "--storage", sqlite_url, "--json")[1])["studies"]
    assert (study["state"], study["workers"]) == ("running", 1)
    process.terminate()
    gate.open()
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert "stopped by SIGTERM; everything is saved" in errors
    status, _, errors = cli("worker", "--study", "s", "--storage", sqlite_url)
    assert status == 0
    assert re.search(r"trial [0-3] \([0-9a-f]{8}\) has [0-9]+ epochs?: return [0-9.]+", errors)
    assert "study s is complete" in errors


def test_a_command_in_a_deleted_directory_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Callable[..., Any]
) -> None:
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    status, out, err = cli("trials", "s")
    assert (status, out) == (2, "")
    assert err == "rekindle: error: a command needs a working directory, but this one was deleted; cd to another one\n"


def test_a_file_is_no_uid(sqlite_url: str, tmp_path: Path, cli: Callable[..., Any]) -> None:
    (tmp_path / "sb3.zip").write_bytes(b"PK")
    command = ["train", "ppo", "CartPole-v1", "--warm-start", str(tmp_path / "sb3.zip"), "--storage", sqlite_url]
    status, _, errors = cli(*command)
    assert status == 2
    assert "sb3.zip must be a model that Stable-Baselines3 saved, but: File is not a zip file" in errors
    status, _, errors = cli(*(word.replace("sb3.zip", "sb3.pt") for word in command))
    assert status == 2
    assert "or a file (.npz, .npy, .safetensors, .zip), but got" in errors


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", pytest.param(">&-", marks=pytest.mark.slow)])
def test_a_study_needs_no_standard_streams(sqlite_url: str, streams: str) -> None:
    argv = ["tune", "surrogate", "--trials", "2", "--epochs", "1:2", "--study", "s", "--workers", "1"]
    program = [sys.executable, "-m", "rekindle.studies.cli", *argv, "--storage", sqlite_url]
    done = subprocess.run(["sh", "-c", f'exec "$0" "$@" {streams}', *program], check=False)
    assert done.returncode == 0
    with Store(sqlite_url) as store:
        assert len(store.trials("s")) == 2
        assert check(store) == []


def test_a_name_that_the_terminal_cannot_show_is_escaped(sqlite_url: str) -> None:
    with Store(sqlite_url) as store:
        start_study(store, "gr\u00fcn", surrogate(2))
    done = subprocess.run(
        [sys.executable, "-m", "rekindle.studies.cli", "trials", "gr\u00fcn", "--storage", sqlite_url],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "gr\\xfcn: surrogate" in done.stdout


def test_a_database_may_lie_in_a_folder_of_any_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "\u00fc 100%25 a"
    folder.mkdir()
    url = sqlite_url(folder / "studies.db")
    run(url, surrogate(2))
    with Store(url) as store:
        assert Path(store.database.url.database) == folder / "studies.db"
        assert repeated(store) == shlex.quote(url)
    assert main(["trials", "s", "--storage", url]) == 0
    assert main(["export", "s", str(folder / "s.rekindle"), "--storage", url]) == 0
    assert main(["import", str(folder / "s.rekindle"), "--storage", sqlite_url(folder / "other.db")]) == 0
    here = f"sqlite:///file:{folder.with_name('plain.db')}"
    run(here.replace("file:", ""), surrogate(2))
    assert main(["trials", "s", "--storage", f"{here}?mode=ro&uri=true"]) == 0
    capsys.readouterr()
    assert main(["trials", "s", "--storage", url.replace("studies", "nowhere")]) == 2
    assert f"there is no database {folder / 'nowhere.db'} yet" in capsys.readouterr().err
