"""Which test executes which statement, also in child processes that are killed: probes planted in a copy of a checkout.

Each statement gets a byte in a file that all processes of one test worker share by mmap; executing the statement sets
it. That costs far less than a trace function, follows forks and new interpreters, and survives SIGKILL. A pytest plugin
notes after each test which bytes were set, and clears them. A conditional without `else` gets one with a probe, and a
loop one that is reached without `break`, so that branches are counted as well.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ALONE = {"watcher.py"}  # programs that run without what their parent's path leads to
COMPILED = re.compile(r"^@(kernel|inner)\b", re.MULTILINE)  # machine code has no probes: numba does not know them

MODULE = """
import mmap, os
_path = os.environ.get("REKINDLE_PROBES")
if _path:
    with open(_path, "r+b") as _file:
        _p = mmap.mmap(_file.fileno(), 0)
else:
    _p = bytearray({count})
"""

PLUGIN = """
import os, sys
import pytest
_folder = os.environ["REKINDLE_PROBES_FOLDER"]
os.environ["REKINDLE_PROBES"] = os.path.join(_folder, f"{{os.getpid()}}.bytes")
with open(os.environ["REKINDLE_PROBES"], "wb") as _file:
    _file.write(bytes({count}))
from _rekindle_probes import _p

def _note(name, seconds, failed):
    seen = _p[:]
    _p[:] = bytes({count})
    ones = [place for place, value in enumerate(seen) if value]
    with open(os.path.join(_folder, f"{{os.getpid()}}.txt"), "a") as file:
        print(name, f"{{seconds:.3f}}", int(failed), *ones, sep="\\t", file=file)

_state = {{}}

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    import time
    if "collected" not in _state:
        _state["collected"] = True
        _note("", 0.0, False)  # what is executed when modules are imported
    _state["failed"], start = False, time.monotonic()
    yield
    _note(item.nodeid, time.monotonic() - start, _state["failed"])

def pytest_runtest_logreport(report):
    if report.failed:
        _state["failed"] = True
"""


@dataclass(frozen=True)
class Probe:
    """A statement, or the way past a condition or loop."""

    path: str
    line: int
    branch: bool


class _Planter(ast.NodeTransformer):
    def __init__(self, path: str, probes: list[Probe]):
        self.path, self.probes = path, probes

    def probe(self, line: int, branch: bool = False) -> ast.stmt:
        self.probes.append(Probe(self.path, line, branch))
        return ast.parse(f"_p[{len(self.probes) - 1}] = 1").body[0]

    def block(self, statements: list[ast.stmt], branch: bool = False) -> list[ast.stmt]:
        """Return the statements, each behind its probe."""
        planted: list[ast.stmt] = []
        for place, node in enumerate(statements):
            bare = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if not bare and not (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
                planted.append(self.probe(node.lineno, branch and place == 0))
            planted.append(self.visit(node))
        return planted

    def generic_visit(self, node: ast.AST) -> ast.AST:
        choice = isinstance(node, ast.If | ast.For | ast.While)
        for name in ("body", "orelse", "finalbody"):
            if isinstance(block := getattr(node, name, None), list) and block and isinstance(block[0], ast.stmt):
                setattr(node, name, self.block(block, branch=choice))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            part.body = self.block(part.body, branch=True)
        if isinstance(node, ast.If | ast.For | ast.While) and not node.orelse:
            node.orelse = [self.probe(node.lineno, branch=True)]
        return node


def plant(root: Path, folders: tuple[str, ...], path: Path) -> list[Probe]:
    """Plant probes in all modules of a copy's folders; `path` gets the module and the plugin that they need."""
    probes: list[Probe] = []
    for folder in folders:
        for file in sorted((root / folder).rglob("*.py")):
            source = file.read_text()
            if file.name in ALONE or COMPILED.search(source):
                continue
            tree = _Planter(str(file.relative_to(root)), probes).visit(ast.parse(source))
            if not any(isinstance(node, ast.Assign) for node in tree.body):  # a docstring alone
                continue
            first = next(i for i, node in enumerate(tree.body) if isinstance(node, ast.Assign))  # a probe
            tree.body.insert(first, ast.parse("from _rekindle_probes import _p").body[0])
            file.write_text(ast.unparse(ast.fix_missing_locations(tree)))
    (path / "_rekindle_probes.py").write_text(MODULE.format(count=len(probes)))
    (path / "_rekindle_probes_plugin.py").write_text(PLUGIN.format(count=len(probes)))
    return probes


@dataclass(frozen=True)
class Executed:
    """What the tests execute.

    Attributes:
        lines: of each file, the names of the tests that execute a line; "" where that is when it is imported.
        seconds: that each test took.
        bad: the tests that failed without any fault.
        shares: for each folder, executed and all statements, executed and all branches.
    """

    lines: Mapping[str, Mapping[int, frozenset[str]]]
    seconds: Mapping[str, float]
    bad: frozenset[str]
    shares: Mapping[str, tuple[int, int, int, int]]


def read(notes: Path, probes: list[Probe]) -> Executed:
    """Read what the plugin noted."""
    by_probe: defaultdict[int, set[str]] = defaultdict(set)
    seconds, bad = dict[str, float](), set[str]()
    for file in notes.glob("*.txt"):
        for line in file.read_text().splitlines():
            name, took, failed, *ones = line.split("\t")
            if name:
                seconds[name] = float(took)
            if failed == "1":
                bad.add(name)
            for one in ones:
                by_probe[int(one)].add(name)
    lines: defaultdict[str, dict[int, frozenset[str]]] = defaultdict(dict)
    for place, probe in enumerate(probes):
        if not probe.branch or by_probe[place]:
            tests = lines[probe.path].get(probe.line, frozenset())
            lines[probe.path][probe.line] = tests | by_probe[place]
    shares = {}
    for folder in sorted({probe.path.partition("/")[0] for probe in probes}):
        mine = [(p, bool(by_probe[i])) for i, p in enumerate(probes) if p.path.startswith(f"{folder}/")]
        plain, ways = [hit for p, hit in mine if not p.branch], [hit for p, hit in mine if p.branch]
        shares[folder] = (sum(plain), len(plain), sum(ways), len(ways))
    return Executed(dict(lines), seconds, frozenset(bad), shares)
