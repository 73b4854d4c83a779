"""Forked workers: what they run, how they end, and results equal to those of new interpreters."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import lingering
import nursery
import psutil
import pytest
from rekindle.studies.storage.store import Store
from rekindle.studies.study.config import Config
from rekindle.studies.workers.forked import CommandProcess, Crew
from studying import TINY, bits, undisturbed

CREW = """
import json, os, signal, subprocess, sys, time
from rekindle.studies.workers.forked import CommandProcess, Crew

with Crew(3) as crew:
    url = sys.argv[1]
    worker = CommandProcess(["worker", "--study", "nowhere"], url, crew)
    worker.wait(60)
    copier = CommandProcess(["export-curves", "nowhere", "--follow", "--with-parent"], url, crew)
    copier.kill()
    copier.wait(60)
    idle = crew.take()
    try:
        idle.wait(0.05)
    except subprocess.TimeoutExpired:
        idle.terminate()
    found = {"worker": worker.status, "words": list(worker.last_words), "killed": copier.status}
    found |= {"ended": idle.wait(60), "left": crew.take() is None}
with Crew(1) as crew:
    pass
with Crew(1) as crew:
    found["orphan"] = crew.take().pid
    print(json.dumps(found), flush=True)
    os._exit(0)
"""

DISTURBED = """
import json, os, signal, sys
from rekindle.studies.workers import forked
from rekindle.studies.workers.forked import CommandProcess, Crew

signal.alarm(120)  # rather than wait for ever
fork, waitpid, started = os.fork, os.waitpid, os.getpid()

def interrupted():
    pid = fork()
    if not pid:
        os.kill(os.getpid(), signal.SIGINT)  # as by a Ctrl-C at this moment
    return pid

found = {}
os.fork = interrupted
with Crew(4) as crew:
    assert os.getpid() == started, "a child goes on with its parent's code"
    os.fork = fork
    paused, other, killed = crew._idle[0], crew._idle[2], crew._idle[3]
    os.kill(paused.pid, signal.SIGSTOP)
    killed.kill()
    os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
    killed.poll = lambda: None  # as if it had been killed after a look
    worker = CommandProcess(["worker", "--study", "nowhere", "--storage", sys.argv[1]], sys.argv[1], crew)
    found["taken"] = worker.process is other
    worker.wait(60)
    found["worker"] = worker.status
    idle = crew.take()

    def amid(*arguments):
        answer = waitpid(*arguments)
        os.waitpid = waitpid
        idle.poll()  # by the handler of a signal
        return answer

    idle.kill()
    os.waitid(os.P_PID, idle.pid, os.WEXITED | os.WNOWAIT)
    os.waitpid = amid
    found["polled"] = idle.poll()
found["paused"] = paused.poll()
print(json.dumps(found), flush=True)
"""

NO_INTERPRETER = """
import sys
from rekindle.studies.cli import main

sys.executable = "/bin/false"  # every new interpreter fails
sys.exit(main())
"""


def test_forked_processes_run_commands_and_end_with_their_parent(sqlite_url: str) -> None:
    done = nursery.run([sys.executable, "-c", CREW, sqlite_url])
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["worker"] == 2
    assert "there is no database" in result["words"][-1]
    assert (result["killed"], result["ended"], result["left"]) == (-9, -15, True)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(result["orphan"]).wait(30)  # of its parent's end


def test_forked_processes_may_be_paused_or_killed_at_any_moment_and_ctrl_c_ends_none(sqlite_url: str) -> None:
    done = nursery.run([sys.executable, "-c", DISTURBED, sqlite_url])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"taken": True, "worker": 2, "polled": -9, "paused": -9}


def test_a_process_that_is_started_later_begins_where_its_parent_began(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Path.cwd()
    with Crew(0) as crew:
        monkeypatch.chdir(tmp_path)  # as an environment does in the parent; modules are found in the first directory
        process = CommandProcess(["worker", "--study", "nowhere"], sqlite_url, crew)
        assert Path(psutil.Process(int(process.name)).cwd()) == here
        process.kill()
        process.wait(60)


def test_children_of_an_ended_process_are_not_waited_for(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(lingering.VARIABLE, str(tmp_path / "left"))
    values = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    process = CommandProcess(["train", "ppo", "lingering:Lingering-v0", "--epochs", "1", *values], sqlite_url)
    assert process.wait(600)
    assert process.status == 0, list(process.last_words)
    left = [psutil.Process(int(pid)) for pid in (tmp_path / "left").read_text().split()]
    assert left
    for child in left:
        assert child.status() != psutil.STATUS_ZOMBIE  # it still runs, and may write to the pipe that is read here
        child.kill()


@pytest.mark.slow
def test_a_study_of_forked_workers_starts_no_interpreter_and_has_the_same_bits(sqlite_url: str) -> None:
    values = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    command = ["tune", "ppo", "CartPole-v1", "--study", "s", "--trials", "4", "--generation", "4", "--cohort", "2"]
    command += ["--epochs", "1:4:2", "--scheduler", "halving", "--workers", "2", "--stuck", "off", "--json", *values]
    done = nursery.run([sys.executable, "-c", NO_INTERPRETER, *command, "--storage", sqlite_url])
    assert done.returncode == 0, done.stderr
    with Store(sqlite_url) as store:
        assert bits(store, "s") == undisturbed(Config.from_json(store.study("s").config, "s"))
