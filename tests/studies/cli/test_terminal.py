"""Text on a terminal: long waits, and names that look like emoji."""

from __future__ import annotations

import time

import pytest
from rekindle.studies.cli.output.terminal import new_console, patience


def test_a_long_wait_is_explained_and_a_short_one_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    console = new_console()
    with patience(console, "builds fit:train:", 3600.0):
        pass
    assert capsys.readouterr().out == ""
    with patience(console, "builds fit:train:", 0.0):
        while not (printed := capsys.readouterr().out):
            time.sleep(0.01)
    assert printed == "builds fit:train:\n"
