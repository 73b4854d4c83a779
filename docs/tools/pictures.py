"""Pictures of README, made by the code that they show: a plot, and a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "pictures"
BUILD = ROOT / "build" / "pictures"
TUNE = ["tune", "ppo", "CartPole-v1", "--trials", "16", "--epochs", "1:27", "--study", "cartpole"]
COLUMNS = 96
MOST = 100_000  # bytes of a picture


def rekindle(*words: str) -> str:
    """Run a command as in a terminal, and return its stdout."""
    command = [sys.executable, "-m", "rekindle.studies.cli", *words, "--storage", "sqlite:///studies.db"]
    look = {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    environment = {**os.environ, **look}
    done = subprocess.run(command, cwd=BUILD, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.replace(f"{BUILD}/", "")


def terminal(title: str, output: str) -> str:
    """Return a picture of a terminal, without fonts of the network."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi(output.strip("\n")))
    form = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title=title, theme=DIMMED_MONOKAI, code_format=form, unique_id="rekindle")


def main() -> None:
    """Write the pictures; a study that is there already is trained no more."""
    BUILD.mkdir(parents=True, exist_ok=True)
    FOLDER.mkdir(exist_ok=True)
    rekindle(*TUNE)
    (FOLDER / "terminal.svg").write_text(terminal(" ".join(["rekindle", *TUNE]), rekindle(*TUNE)), encoding="utf-8")
    rekindle("plot", "cartpole", "--kind", "curves", "-o", str(FOLDER / "curves.svg"))
    for path in sorted(FOLDER.glob("*.svg")):
        size = path.stat().st_size
        print(f"{path.relative_to(ROOT)}: {size:,} bytes")
        assert size < MOST, f"a picture of README has less than {MOST:,} bytes, but {path} has {size:,}"


if __name__ == "__main__":
    main()
