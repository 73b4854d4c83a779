"""Forked workers: what they run, how they end, and results equal to those of new interpreters."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from typing import Any

import nursery
import psutil
import pytest
from rekindle.studies.storage.store import Store
from studying import TINY, bits, tiny, undisturbed

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

NO_INTERPRETER = """
import sys
from rekindle.studies.cli import main

sys.executable = "/bin/false"  # every new interpreter fails
sys.exit(main())
"""


def test_forked_processes_run_commands_and_end_with_their_parent(sqlite_url: str) -> None:
    done = nursery.run([sys.executable, "-c", CREW, sqlite_url])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["worker"] == 2
    assert "there is no database" in found["words"][-1]
    assert (found["killed"], found["ended"], found["left"]) == (-9, -15, True)
    with suppress(psutil.NoSuchProcess):
        psutil.Process(found["orphan"]).wait(30)  # of its parent's end


@pytest.mark.slow
def test_a_study_of_forked_workers_starts_no_interpreter_and_has_the_same_bits(sqlite_url: str) -> None:
    config = tiny(4)
    values = [part for name, value in TINY.items() for part in ("--set", f"{name}={value}")]
    command = ["tune", "ppo", "CartPole-v1", "--study", "s", "--trials", "4", "--generation", "4", "--cohort", "2"]
    command += ["--epochs", "1:4:2", "--scheduler", "halving", "--workers", "2", "--stuck", "off", "--json", *values]
    done = nursery.run([sys.executable, "-c", NO_INTERPRETER, *command, "--storage", sqlite_url])
    assert done.returncode == 0, done.stderr
    with Store(sqlite_url) as store:
        assert bits(store, "s") == undisturbed(config)
