"""What the README tells a newcomer to run does run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """The README's code blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", blocks("python"), ids=["a task and a cohort", "an Optuna study"])
def test_the_python_runs(code: str, tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_commands_parse() -> None:
    from rekindle.studies.cli.parser import make_parser

    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("rekindle ")]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) >= 16
    for program, *arguments in commands:
        assert program == "rekindle"
        make_parser().parse_args(arguments)
