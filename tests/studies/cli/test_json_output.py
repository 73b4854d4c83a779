"""Results as views: what reads them, and what commands print of them as JSON."""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import nursery
import pytest
from jsonschema import Draft202012Validator
from rekindle.studies.cli.dispatch import make_parser
from rekindle.studies.engine.views import View, to_json
from rekindle.studies.statistics.estimates import Interval
from rekindle.studies.storage.store import Store
from studying import run, surrogate
from support_path import SUPPORT

ROOT = Path(__file__).resolve().parents[3]
READERS = ("report", "cli", "engine", "live")
SUBSCRIPTS = 120  # into options, stored forms and rows of tables, but into no result


def test_results_are_views_and_not_read_by_string_subscripts() -> None:
    """Mypy checks the fields of a view, but no key of a dict."""
    nodes = [
        node
        for package in READERS
        for path in (ROOT / "studies" / package).rglob("*.py")
        if path.parent.name != "run_files"  # which read the files of other tools
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    keys = [node.slice for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)]
    assert len(nodes) > 50_000
    assert sum(isinstance(key.value, str) for key in keys) <= SUBSCRIPTS


NOISY = """
import os, threading
from rekindle.studies.cli.dispatch import _leave_behind
from rekindle.studies.cli.output.results import results, set_apart
set_apart()
print("hello", flush=True)
os.write(1, b"build time: today")
print("result", file=results())
threading.Thread(target=threading.Event().wait).start()
_leave_behind(3)
"""


def test_other_output_than_the_result_goes_to_stderr() -> None:
    ended = nursery.run([sys.executable, "-c", NOISY])
    assert (ended.returncode, ended.stdout, ended.stderr) == (3, "result\n", "hello\nbuild time: today")


HANGING = """
import atexit, sys, threading
from rekindle.studies.cli import dispatch
dispatch.LATEST = 0.2
atexit.register(threading.Event().wait)
print("result")
dispatch._leave_behind(3)
"""


def test_exit_handlers_of_environments_that_hang_are_left() -> None:
    ended = nursery.run([sys.executable, "-c", HANGING])
    assert (ended.returncode, ended.stdout) == (3, "result\n")
    assert "exit handlers (atexit) took more than 0.2 s" in ended.stderr


@pytest.mark.slow
def test_a_result_stands_alone_on_stdout_and_a_command_ends_whatever_environments_do(tmp_path: Path) -> None:
    sizes = {"num_steps": 32, "num_envs": 1, "num_minibatches": 1, "epoch_steps": 32, "update_epochs": 1}
    command = [sys.executable, "-m", "rekindle", "train", "ppo", "faulty_envs:faults/Untidy-v0", "--epochs", "1"]
    command += [word for name, value in sizes.items() for word in ("--set", f"{name}={value}")]
    command += ["--json", "--storage", f"sqlite:///{tmp_path}/a.db"]
    ended = nursery.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": SUPPORT})
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["epochs"] == 1
    assert "build time: today" in ended.stderr


@pytest.fixture(scope="module")
def tool() -> Any:
    """The script that documents the JSON."""
    spec = spec_from_file_location("json_output", ROOT / "docs/tools/json_output.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_and_the_schema_are_those_of_the_views(tool: Any) -> None:
    cure = "run docs/tools/json_output.py"
    assert tool.PAGE.read_text() == tool.page(), cure
    assert tool.SCHEMA.read_text() == tool.schema(), cure


def test_every_command_with_json_is_documented(tool: Any) -> None:
    parsers = make_parser().commands
    with_json = {name for name, parser in parsers.items() if "--json" in parser.format_help()}
    assert with_json - tool.RESULTS.keys() == set()
    assert tool.RESULTS.keys() - parsers.keys() == set()


def test_fields_are_no_methods_of_a_view_and_all_are_described(tool: Any) -> None:
    objects: dict[str, Any] = {}
    for result in tool.RESULTS.values():
        tool.objects_in(result, objects)
    assert len(objects) > 50
    fields = [
        (object_type, name, annotation)
        for object_type in objects.values()
        for name, annotation in tool.fields_of(object_type).items()
    ]
    assert [
        (object_type, name) for object_type, name, _ in fields if issubclass(object_type, View) and hasattr(View, name)
    ] == []
    assert [
        (object_type, name)
        for object_type, name, annotation in fields
        if not tool.described(object_type, name, annotation)[1]
    ] == []


READING = ["trials s", "status", "show UID", "tasks", "watch s", "diagnose s", "space surrogate", "plugins", "fsck"]
WORKING = [
    *("confirm s --top 1 --seeds 3", "trials s", "trials s:confirmation", "compare s again=s", "report s -o r.html"),
    *("plot s -o p.svg", "replay UID", "create surrogate --study new", "stop new", "export s s.rekindle"),
    *(
        "import s.rekindle",
        "train surrogate --epochs 1",
        "gc",
        "gc --yes",
        "delete new --yes",
        "export-curves s --to csv:c",
    ),
]


@pytest.mark.parametrize("lines", [READING, pytest.param(WORKING, marks=pytest.mark.slow)], ids=["reading", "working"])
def test_output_follows_the_schema(
    lines: list[str], tmp_path: Path, cli: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REKINDLE_STORAGE", url := "sqlite:///s.db")
    run(url, surrogate(2, epochs=(1, 1, 2)))
    with Store(url) as store:
        uid = store.trials("s")[0].uid
    schema = json.loads((ROOT / "studies/cli/schema.json").read_text())
    for line in lines:
        command, *words = line.replace("UID", uid).split()
        status, out, err = cli(command, *words, "--json")
        assert status == 0, err
        validator = Draft202012Validator({**schema, "$ref": f"#/$defs/{command}"})
        assert [error.message for error in validator.iter_errors(json.loads(out))] == [], line
    wrong = json.loads(cli("watch", "s", "--json")[1]) | {"epochs": "many"}
    [error] = Draft202012Validator({**schema, "$ref": "#/$defs/watch"}).iter_errors(wrong)
    assert error.message == "'many' is not of type 'integer'"


class PointView(View):
    """A point."""

    merged = frozenset({"more"})

    x: int
    from_: Interval
    y: int = 0
    more: Any = ()


def test_a_view_is_immutable_compared_by_value_and_needs_its_fields() -> None:
    point = PointView(x=1, from_=Interval(2.0, 1.0, 3.0))
    assert point == PointView(x=1, from_=Interval(2.0, 1.0, 3.0), y=0) != point.replace(y=1)
    assert to_json([point]) == [{"x": 1, "from": {"estimate": 2.0, "low": 1.0, "high": 3.0}}]
    assert list(point.replace(y=2, more={"z": 3}).to_json()) == ["x", "from", "y", "z"]
    with pytest.raises(AttributeError, match="a view is immutable, but x was assigned; replace"):
        point.x = 2  # type: ignore[misc]
    for wrong in ({"x": 1}, {"x": 1, "from_": 1, "z": 2}):
        with pytest.raises(TypeError, match=r"PointView has the fields x, from_, y, more; check \['(from_|z)'\]"):
            PointView(**wrong)  # type: ignore[arg-type]
