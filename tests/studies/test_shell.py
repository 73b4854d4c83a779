"""Commands in messages: a real shell reads copies of them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from rekindle.studies.engine.snapshots import look
from rekindle.studies.shell import command_line, option, quoted
from rekindle.studies.storage.store import Store

Cli = Callable[..., tuple[int, str, str]]


def words_of(command: str) -> list[str]:
    """Return the words that a shell passes to ``rekindle``."""
    shell = ["bash", "-e", "-c", f"rekindle() {{ printf '%s\\0' \"$@\"; }}; {command}"]
    return subprocess.run(shell, check=True, capture_output=True, timeout=60).stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("name", ["-x", 'it\'s "a"  $HOME', "two\nlines \x1b[1m"])
def test_printed_commands_reach_a_study_whatever_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REKINDLE_STORAGE", raising=False)

    def paste(command: str) -> str:
        status, out, errors = cli(*words_of(command))
        assert status == 0, errors
        return out

    status, made, errors = cli("create", "surrogate", f"--study={name}", "--trials", "2", "--epochs", "1:3")
    assert status == 0, errors
    worker = made[made.index("rekindle worker") :]
    assert cli("stop", "--", name)[0] == 0
    [resume] = re.findall("`(.*)` continues it", cli("stop", "--", name)[2])
    [trials] = re.findall("`(.*)` shows them", cli("cancel", "--", name, "77")[2])
    paste(resume)
    paste(worker)
    with Store("sqlite:///rekindle.db") as store:
        assert look(store, name).complete
    assert "surrogate, seed 0" in paste(trials)


@pytest.mark.parametrize("word", ["s", "-x", "it's", "a  b", " ", "", "\\\n'\t\x1b", "é\u00a0\U0001f600"])
def test_a_shell_reads_a_quoted_word_as_it_was(word: str) -> None:
    output = " ".join(quoted(word).split())
    assert output.isprintable()
    assert words_of(f"rekindle {output}") == [word]
    given = words_of(f"rekindle {option('--study', word)}")
    assert given == ([f"--study={word}"] if word.startswith("-") else ["--study", word])


def test_printed_commands_name_the_storage_of_their_command(sqlite_url: str, cli: Cli) -> None:
    storage = f"--storage {sqlite_url}"
    assert cli("create", "surrogate", "--study", "s", "--trials", "2", "--epochs", "1:3", *storage.split())[0] == 0
    assert f"rekindle worker --study s {storage}`" in cli("confirm", "s", *storage.split())[2]
    assert cli("stop", "s", *storage.split())[0] == 0
    assert f"`rekindle resume s {storage}` continues it" in cli("stop", "s", *storage.split())[2]
    assert command_line("resume", "s") == "rekindle resume s"
