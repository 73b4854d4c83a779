"""Instructions and links in the README and docs/."""

from __future__ import annotations

import re
import shlex
import sys
from argparse import ArgumentParser
from functools import cache
from pathlib import Path

import nursery
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN_HERE = PAGES[0], ROOT / "docs" / "guide.md"  # `make docs-test` runs those of all pages


def blocks(language: str) -> list[str]:
    """The code blocks in a language."""
    texts = "".join(page.read_text() for page in RUN_HERE)
    return re.findall(rf"```{language}\n(.*?)```", texts, re.DOTALL)


PROGRAMS = [code for code in blocks("python") if "import " in code]  # the others show single lines


@pytest.mark.parametrize("code", PROGRAMS, ids=lambda code: code.split("\n")[0])
def test_the_python_runs(code: str, tmp_path: Path) -> None:
    for epochs, fewer in (("27", "2"), ("9", "1"), ("3", "1")):  # the same in less time
        code = code.replace(f"fit(epochs={epochs})", f"fit(epochs={fewer})")
    code = code.replace("epochs=3, storage", "epochs=1, epoch_steps=256, storage").replace("n_trials=5", "n_trials=2")
    code = code.replace("epochs=(1, 3)", "epochs=1, fixed={'epoch_steps': 256}")
    code = code.replace("trials=16, epochs=(1, 27)", "trials=2, epochs=1, fixed={'epoch_steps': 256}")
    code = code.replace("range(8)", "range(2)").replace("confirm(seeds=20)", "confirm(top=1, seeds=3)")
    command = [sys.executable, "-c", code]
    result = nursery.run(command, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@cache
def parser() -> ArgumentParser:
    """The command line's."""
    from rekindle.studies.cli.dispatch import make_parser

    return make_parser()


def test_the_commands_parse() -> None:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("rekindle ")]
    commands = [shlex.split(line, comments=True) for line in lines]
    assert len(commands) >= 30
    for program, *arguments in commands:
        assert program == "rekindle"
        parser().parse_args(arguments)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_page_shows_commands_that_parse(page: Path) -> None:
    text = "".join(re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)).replace("\\\n", "")
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["rekindle"]:
            end = min((words.index(sign) for sign in ("|", ">", "&", "--") if sign in words), default=len(words))
            parser().parse_args(words[1:end])


def test_the_commands_run_after_make_tune(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller study than that of `make tune`, of the same name; then the pages' commands."""
    from rekindle import Study
    from rekindle.studies.cli import main

    monkeypatch.chdir(tmp_path)
    [made] = re.findall(r"rekindle (tune ppo .*)", (ROOT / "Makefile").read_text())
    small = ["--set", "epoch_steps=256", "--set", "num_steps=64", "--set", "model.width=16"]
    assert main([*shlex.split(made.replace("1:27", "1:3").replace("16", "2")), *small, "--workers", "1"]) == 0
    best = Study("cartpole", "sqlite:///rekindle.db").best
    assert best is not None
    lines = [line for block in blocks("sh") for line in block.splitlines() if "--storage sqlite:///rekindle.db" in line]
    about = {"status", "trials", "show", "evaluate", "export-policy", "replay", "fork", "fsck", "gc", "export"}
    ran = set()
    for line in lines:
        name, *words = shlex.split(line.removeprefix("rekindle "), comments=True)
        if name in about:
            arguments = [word.replace("UID", best.uid[:8]) for word in words]
            if name == "fork":
                arguments[arguments.index("--at") + 1] = "2"  # of 3, as 26 is of 27
            assert main([name, *arguments]) == 0, line
            ran.add(name)
    assert ran == about


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text())
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_the_readme_stays_short() -> None:
    assert len(PAGES[0].read_text().splitlines()) <= 150


def test_the_glossary_has_one_meaning_for_at_most_25_words() -> None:
    words = re.findall(r"^\| ([\w ]+) \|", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)[1:]
    assert 0 < len(words) == len(set(words)) <= 25
