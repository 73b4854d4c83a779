"""Only the database's clock counts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rekindle.studies.storage.sql.clock import file_time
from rekindle.studies.storage.store import Store
from skewed import skewed

HOUR = 3600
CODE = """
import sqlite3, sys, time
from rekindle.studies.errors import TaskBusy
from rekindle.studies.storage.store import Store
store = Store(sys.argv[1])
lease = store.open("theirs", {})
try:
    store.open("ours", {})
    busy = False
except TaskBusy as error:
    busy = 50 < error.seconds <= 60
[[now]] = sqlite3.connect(":memory:").execute("SELECT strftime('%s', 'now')")
print(time.time(), now, busy, len(store.workers()), flush=True)
sys.stdin.readline()
"""


@pytest.mark.parametrize(
    ("url", "hours"), [("sqlite", 1), pytest.param("postgresql", -1, marks=pytest.mark.slow)], indirect=["url"]
)
def test_a_process_whose_clock_is_wrong_by_an_hour_takes_and_holds_leases_like_all(
    url: str, tmp_path: Path, hours: int
) -> None:
    environment, beginning = skewed(tmp_path, hours * HOUR)
    with Store(url) as store:
        lease = store.open("ours", {})
        command = [sys.executable, "-c", beginning + CODE, url]
        child = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        its_time, its_sqlite, busy, workers = child.stdout.readline().split()
        assert abs(float(its_time) - time.time() - hours * HOUR) < 60
        if "LD_PRELOAD" in environment:
            assert abs(float(its_sqlite) - time.time() - hours * HOUR) < 60
        assert (busy, workers) == ("True", "2")
        [row] = store.tasks(["theirs"])
        assert 50 < row.seconds <= 60
        assert len(store.workers()) == 2
        assert abs(row.created - time.time()) < 60
        child.communicate("")
        assert not lease.lost


def test_the_clock_of_a_file_that_may_not_be_touched_is_the_process(tmp_path: Path) -> None:
    assert abs(file_time(str(tmp_path / "nothing")) - time.time()) < 1
    assert not (tmp_path / "nothing").exists()


def test_the_clock_of_a_file_moves_with_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    os.utime(path, (0, 0))
    assert abs(file_time(str(path)) - time.time()) < 1
    assert file_time(str(path)) <= file_time(str(path))
    assert path.read_bytes() == b"content"
