"""Random environments with faults, trained by commands that are killed: no wrong label, no orphan, no raw error.

REKINDLE_SOAK=200 draws as many examples, others in every run.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nursery
import pytest
from faulty_envs import KILLS
from hypothesis import event, given
from hypothesis import strategies as st
from simulators import marked
from soaking import HARMLESS, KNOWN, SETTINGS, UNSEEN, Training, trainings
from support_path import SUPPORT

KILLS_OF_RUNS = st.lists(st.tuples(st.integers(0, 700), st.sampled_from(["kill", "kill", "hang"])), max_size=2)


def command_of(chosen: Training, verb: str) -> list[str]:
    """Return a command with its values and environment as words."""
    command = [sys.executable, "-m", "rekindle", verb, chosen.algorithm, json.dumps(chosen.env)]
    values = (word for name, value in chosen.values.items() for word in ("--set", f"{name}={value}"))
    return [*command, "--json", *values]


@pytest.mark.slow
@SETTINGS
@given(chosen=trainings(), kills=KILLS_OF_RUNS, processes=st.sampled_from([False, False, False, True]))
def test_commands_that_are_killed_end_as_undisturbed_or_say_why(
    chosen: Training, kills: list[tuple[int, str]], processes: bool
) -> None:
    command = [*command_of(chosen, "train"), "--epochs", "3"]
    with tempfile.TemporaryDirectory() as folder:
        runs = [run(command, Path(folder, "whole"), []), run(command, Path(folder, "killed"), kills)]
        runs += [run([*command, "--env-processes", "2"], Path(folder, "shared"), [])] if processes else []
    check(chosen, [None if result is None else (result["inexact"], result["digest"]) for result in runs])


@pytest.mark.slow
@SETTINGS
@given(chosen=trainings(), kills=KILLS_OF_RUNS)
def test_studies_whose_workers_are_killed_end_as_undisturbed_or_say_why(
    chosen: Training, kills: list[tuple[int, str]]
) -> None:
    command = [*command_of(chosen, "tune"), "--trials", "2", "--epochs", "1:3", "--workers"]
    with tempfile.TemporaryDirectory() as folder:
        whole = run([*command, "1"], Path(folder, "whole"), [])
        killed = run([*command, "2"], Path(folder, "killed"), kills)
    check(chosen, [None if result is None else ([*result["inexact"]], digests(result)) for result in (whole, killed)])


def digests(study: dict[str, Any]) -> str:
    """Return the digests of all segments of a study."""
    return json.dumps({trial["uid"]: [rung["digest"] for rung in trial["rungs"]] for trial in study["trials"]})


def check(chosen: Training, runs: list[tuple[list[str], str] | None]) -> None:
    """Fail if results differ though they are labelled exact, or if a label is wrong.

    Args:
        chosen: what was trained.
        runs: reasons why each run is inexact, and its digest, or None if it was refused; the first is undisturbed.
    """
    whole = runs[0]
    event("refused" if whole is None else "inexact" if whole[0] else "exact")
    if chosen.faults <= {*HARMLESS}:
        assert whole is not None
        assert chosen.late or whole[0] == []
    # A late fault depends on the number of an environment's steps, which no test of a few episodes can see.
    if not chosen.late or chosen.faults <= {*UNSEEN}:
        finished = [result for result in runs if result is not None]
        assert len(finished) in (0, len(runs))
        assert any(inexact for inexact, _ in finished) or len({digest for _, digest in finished}) <= 1, finished


def run(command: list[str], folder: Path, kills: list[tuple[int, str]]) -> dict[str, Any] | None:
    """Run a command until it ends by itself; return its result, or None if it was refused by name."""
    folder.mkdir()
    for number, (steps, way) in enumerate(kills):
        (folder / f"{number},{steps},{way}").touch()
    environment = {**os.environ, "PYTHONPATH": SUPPORT, KILLS: str(folder), "OMP_NUM_THREADS": "1"}
    for number in range(8):  # a slow machine may look like one that hangs
        words = [*command, "--stuck", f"{8 << number}s", "--storage", f"sqlite:///{folder}/a.db"]
        ended = nursery.run(words, cwd=folder, env=environment)
        left = orphans(str(folder))
        assert not left, (left, ended.stderr)
        if ended.returncode != -signal.SIGKILL:
            break
    assert ended.returncode >= 0, (ended.returncode, ended.stderr)
    said = ended.stderr
    assert "Traceback" not in said, said
    assert "with --debug" not in said, said
    if ended.returncode:
        assert any(words in said for words in KNOWN), said
        return None
    result: dict[str, Any] = json.loads(ended.stdout)
    for reason in result["inexact"]:
        assert any(words in reason for words in KNOWN), reason
        assert reason in " ".join(said.split()), (reason, said)
    return result


def orphans(mark: str) -> list[str]:
    """Return commands of processes with this environment variable that do not end within some seconds."""
    end = time.monotonic() + 15
    while (left := marked(KILLS, mark)) and time.monotonic() < end:
        time.sleep(0.02)
    return [Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode() for pid in left]
