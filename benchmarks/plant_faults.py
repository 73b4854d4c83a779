"""How many faults the tests catch: each is planted in a copy of a checkout, and the tests that execute it are run.

    python benchmarks/plant_faults.py [CHECKOUT] [--count 60] [--seed 1] [--jobs 2] [--executed FILE]
                                      [--timeout 300] [--pytest-args ARGUMENTS] [--list]

CHECKOUT is this one if no other is named. Nothing is written to it: it is copied to a temporary folder, once for each
job.

First all tests run once in a copy with probes (probes.py), which note which test executes which line, in whatever
process. With --executed that is kept in FILE, and a FILE that is there is read instead. The statements and branches of
each folder that were executed are printed.

A fault is a change of one expression or statement: another comparison, operator, constant, condition or value that is
returned, an argument less, a call less. Lines are drawn evenly from all that can be changed, then a change of the line,
by the seed. What only people or type checkers read is left alone: docstrings, messages of errors, f-strings, help,
annotations, asserts, `if TYPE_CHECKING`, `strict=` of zip.

Then the tests that executed the line are run, those beside the module and the quick ones first, up to the first that
fails. Lines that are executed when a module is imported are followed by all tests of the folder, tests/tasks say; so
are those of kernels, where no probe can be. A fault is caught if a test fails with it, fails again with it, and passes
without it; or if a test takes longer than --timeout. A fault on a line that no test executes survives, and says so.
"""

from __future__ import annotations

import argparse
import ast
import os
import pickle
import queue
import random
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import uuid
from collections.abc import Callable, Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from rekindle.benchmarks.probes import Executed, plant, read

FOLDERS = ("spaces", "tasks", "studies")
LEFT_OUT = (".git", ".venv", "__pycache__", "*.egg-info", "*.db", "*.db-shm", "*.db-wal", ".*_cache", ".hypothesis")
TESTS = {"testing.py"}  # tests that others inherit
QUIET = {"strict", "help", "metavar", "description", "epilog"}  # arguments that people read, or that guard only
MEMORY = 8 << 30  # bytes that a process may have, lest a fault takes all
MARK, RUN = "REKINDLE_PLANTED", uuid.uuid4().hex  # in the environment of all that this starts

# --- faults ---

OTHER: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,), ast.Add: (ast.Sub,), ast.Sub: (ast.Add,), ast.Mult: (ast.Div,), ast.Div: (ast.Mult,),
    ast.FloorDiv: (ast.Div,), ast.Mod: (ast.FloorDiv,), ast.Pow: (ast.Mult,), ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,), ast.And: (ast.Or,), ast.Or: (ast.And,),
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A change of a file.

    Attributes:
        line: where what is changed begins; statement: the lines of its statement, of which a probe knows one at least.
        at_import: whether the line is executed when the module is imported.
        start, end: the bytes that are replaced by `text`.
    """

    path: str
    line: int
    statement: range
    at_import: bool
    start: int
    end: int
    text: str
    description: str

    def planted(self, source: bytes) -> bytes:
        """The file with the fault."""
        return source[: self.start] + self.text.encode() + source[self.end :]


@dataclass(frozen=True)
class Place:
    """The statement that an expression stands in."""

    statement: range
    at_import: bool


class Finder:
    """Finds all faults that can be planted in a file."""

    def __init__(self, path: str, source: bytes):
        self.path, self.source, self.faults = path, source, list[Fault]()
        self.offsets = [0]
        for line in source.splitlines(keepends=True):
            self.offsets.append(self.offsets[-1] + len(line))
        self.body(ast.parse(source).body, at_import=True)

    def body(self, statements: Sequence[ast.stmt], at_import: bool) -> None:
        for statement in statements:
            self.statement(statement, at_import)

    def statement(self, node: ast.stmt, at_import: bool) -> None:
        """All that can be changed in a statement."""
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.Raise) or is_text(node):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            self.body(node.orelse, at_import)
            return
        blocks = [block for name in ("body", "orelse", "finalbody") if (block := getattr(node, name, None))]
        first = min(part.lineno for part in (node, *getattr(node, "decorator_list", ())))
        last = blocks[0][0].lineno - 1 if blocks else node.end_lineno or node.lineno
        place = Place(range(first, max(node.lineno, last) + 1), at_import)
        self.change_statement(node, place)
        for part in of_statement(node):
            self.expression(part, place)
        called = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for block in blocks:
            self.body(block, at_import and not called)
        for handler in getattr(node, "handlers", ()):
            self.body(handler.body, at_import)
        for case in getattr(node, "cases", ()):
            if case.guard is not None:
                self.expression(case.guard, Place(range(case.guard.lineno, case.guard.lineno + 1), at_import))
            self.body(case.body, at_import)

    def change_statement(self, node: ast.stmt, place: Place) -> None:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.add(node, "pass", "a call that is not made", place)
        if isinstance(node, ast.Return) and node.value is not None and not is_constant(node.value, None):
            self.add(node, "return None", "None is returned", place)
        if isinstance(node, ast.AugAssign):
            for other in OTHER.get(type(node.op), ()):
                self.add(node, ast.unparse(changed(node, op=other())), "another operator", place)
        if isinstance(node, ast.If | ast.While):
            self.add(node.test, f"not ({ast.unparse(node.test)})", "the opposite condition", place)

    def expression(self, node: ast.AST, place: Place) -> None:
        """All that can be changed in an expression and those in it."""
        if isinstance(node, ast.JoinedStr):  # what people read; and Python 3.11 does not know the places in it
            return
        if isinstance(node, ast.expr):
            for text, description in changes(node):
                self.add(node, text, description, place)
        if isinstance(node, ast.comprehension):
            for test in node.ifs:
                self.add(test, f"(not ({ast.unparse(test)}))", "the opposite condition", place)
        for child in ast.iter_child_nodes(node):
            if not (isinstance(child, ast.keyword) and child.arg in QUIET):
                self.expression(child, place)

    def add(self, node: ast.expr | ast.stmt, text: str, description: str, place: Place) -> None:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self.offsets[node.lineno - 1] + node.col_offset
        end = self.offsets[node.end_lineno - 1] + node.end_col_offset
        self.faults.append(
            Fault(self.path, node.lineno, place.statement, place.at_import, start, end, text, description)
        )


def is_sound(fault: Fault, source: bytes) -> bool:
    """Whether the file can be compiled with the fault, and is another program then."""
    try:
        compile(fault.planted(source), fault.path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # a pattern that is no expression, for example
        return False
    return ast.dump(ast.parse(fault.planted(source))) != ast.dump(ast.parse(source))


def is_constant(node: ast.AST, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, or a list of names for others."""
    names = node.targets if isinstance(node, ast.Assign) else []
    return (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)) or any(
        isinstance(name, ast.Name) and name.id == "__all__" for name in names
    )


def of_statement(node: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement itself: not its blocks, not its annotations."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "body", "orelse", "finalbody", "handlers", "cases", "type_comment"):
            continue
        if isinstance(value, ast.arguments):
            yield from [*value.defaults, *(default for default in value.kw_defaults if default is not None)]
        else:
            yield from (part for part in (value if isinstance(value, list) else [value]) if isinstance(part, ast.AST))


def changed(node: Any, **parts: Any) -> Any:
    """A copy of a node with other parts."""
    return type(node)(**{**vars(node), **parts})


def changes(node: ast.expr) -> Iterator[tuple[str, str]]:
    """What an expression can be changed to, each with the kind of change."""
    match node:
        case ast.Compare():
            for place, op in enumerate(node.ops):
                for other in OTHER[type(op)]:
                    ops = [*node.ops[:place], other(), *node.ops[place + 1 :]]
                    yield f"({ast.unparse(changed(node, ops=ops))})", "another comparison"
        case ast.BinOp() if not any(isinstance(x, ast.JoinedStr) or is_string(x) for x in (node.left, node.right)):
            for other in OTHER.get(type(node.op), ()):
                yield f"({ast.unparse(changed(node, op=other()))})", "another operator"
        case ast.BoolOp():
            yield f"({ast.unparse(changed(node, op=OTHER[type(node.op)][0]()))})", "and for or, or for and"
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield f"({ast.unparse(node.operand)})", "no not, or no minus"
        case ast.IfExp():
            test = ast.UnaryOp(ast.Not(), node.test)
            yield f"({ast.unparse(changed(node, test=test))})", "the opposite condition"
        case ast.Constant():
            yield from ((repr(value), "another constant") for value in other_constants(node.value))
        case ast.Call():
            if len(node.args) > 1:  # without its only one, a call fails wherever it is executed
                yield ast.unparse(changed(node, args=node.args[:-1])), "an argument less"
            for place, keyword in enumerate(node.keywords):
                if keyword.arg not in QUIET:
                    rest_of = [*node.keywords[:place], *node.keywords[place + 1 :]]
                    yield ast.unparse(changed(node, keywords=rest_of)), "an argument less"


def is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)


def other_constants(value: object) -> list[object]:
    """Constants near this one; none for texts that people read."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, value - 1]
    if isinstance(value, float):
        return [value * 2 if value else 1.0]
    return [f"{value}_"] if isinstance(value, str) and value.isidentifier() else []


def drawn(root: Path, seed: int, count: int) -> list[Fault]:
    """So many faults on different lines, the same for the same seed and sources."""
    lines: dict[tuple[str, int], list[Fault]] = {}
    for folder in FOLDERS:
        for path in sorted(path for path in (root / folder).rglob("*.py") if path.name not in TESTS):
            for fault in Finder(str(path.relative_to(root)), path.read_bytes()).faults:
                lines.setdefault((fault.path, fault.line), []).append(fault)
    rng, chosen = random.Random(seed), list[Fault]()
    for line in rng.sample(sorted(lines), len(lines)):
        kinds = sorted({fault.description for fault in lines[line]})
        rng.shuffle(kinds)  # a kind is drawn first, since there are many ways to leave an argument out
        ways = sorted(rng.sample(lines[line], len(lines[line])), key=lambda fault: kinds.index(fault.description))
        source = (root / line[0]).read_bytes()
        chosen += [fault for fault in ways if is_sound(fault, source)][:1]
        if len(chosen) >= count:
            break
    return chosen


# --- which tests execute what ---


def tests_of(executed: Executed, fault: Fault, root: Path) -> tuple[list[str], list[str]]:
    """The tests to run: those that execute the line, in order; and folders, if it is executed by an import."""
    lines = executed.lines.get(fault.path, {})
    names = frozenset[str]().union(*(lines.get(line, ()) for line in fault.statement))
    beside = [str(path.relative_to(root)) for path in (root / "tests").rglob(f"test_{Path(fault.path).stem}.py")]
    tests = sorted(
        (name for name in names - {""} - executed.bad),
        key=lambda name: (name.partition("::")[0] not in beside, executed.seconds.get(name, 0.0), name),
    )
    imported = "" in names or (fault.at_import and bool(names)) or fault.path not in executed.lines  # no probes there
    return tests, [*beside, f"tests/{fault.path.partition('/')[0]}"] if imported else []


def failed(output: str, tests: Container[str]) -> list[str]:
    """The tests that failed, of what pytest said; their names may have in them what stands between name and message."""
    names = []
    for line in re.findall(r"^(?:FAILED|ERROR) (\S.*::.*)$", output, re.MULTILINE):
        parts = line.split(" - ")
        every = [" - ".join(parts[: end + 1]) for end in range(len(parts))]
        names.append(next((name for name in reversed(every) if name in tests), every[0]))
    return names


def measure(checkout: Path, folder: Path, jobs: int, more: Sequence[str]) -> Executed:
    """Run all tests of a copy with probes, and return what they execute."""
    copy, notes = Copy(checkout, folder / "probed"), folder / "notes"
    notes.mkdir()
    probes = plant(copy.root, FOLDERS, copy.path_of_modules)
    copy.pytest(["-p", "_rekindle_probes_plugin", "-n", str(jobs), "--dist", "loadfile", *more], None,
               REKINDLE_PROBES_FOLDER=str(notes))  # fmt: skip
    return read(notes, probes)


def print_totals(executed: Executed) -> None:
    """Print the share of statements and of branches that the tests execute, for each folder."""
    for folder, (lines, all_lines, ways, all_ways) in executed.shares.items():
        print(f"{folder:8} {lines} of {all_lines} statements ({100 * lines / max(1, all_lines):.2f}%), "
              f"{ways} of {all_ways} branches ({100 * ways / max(1, all_ways):.2f}%)", flush=True)  # fmt: skip


# --- running tests ---


class Copy:
    """A copy of a checkout, which tests run in and find as `rekindle`."""

    def __init__(self, checkout: Path, folder: Path):
        self.root = folder / "checkout"
        self.path_of_modules = path = folder / "path"
        shutil.copytree(checkout, self.root, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
        path.mkdir()
        (path / "rekindle").symlink_to(self.root, target_is_directory=True)
        describe(self.root, path)
        self.path = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.planted = 0

    def plant(self, fault: Fault) -> Callable[[], None]:
        """Plants a fault; what takes it out again."""
        file = self.root / fault.path
        source, before = file.read_bytes(), file.stat()
        self.planted += 1
        file.write_bytes(fault.planted(source))
        stamp = before.st_mtime + self.planted  # no compiled file may be taken for that of another fault
        os.utime(file, (stamp, stamp))

        def take_out() -> None:
            file.write_bytes(source)
            os.utime(file, (before.st_atime, before.st_mtime))

        return take_out

    def pytest(
        self, arguments: Sequence[str], limit: float | None, log: Path | None = None, **more: str
    ) -> tuple[int | None, str]:
        """The exit status, None if it took longer than the limit; and what it said. All that it started is ended."""
        token = f"{RUN} {uuid.uuid4().hex}"
        environment = {**os.environ, "PYTHONPATH": self.path, MARK: token, **more}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", *arguments]
        log = log or self.root.parent / "log.txt"  # no pipe, which a server that goes on would hold open
        with log.open("w") as output, subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        ) as process:  # fmt: skip
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                end_all(token)
        return status, log.read_text(errors="replace")


def describe(root: Path, folder: Path) -> None:
    """Writes what an installed package says of itself: its entry points, which Orion finds the plug-ins by."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    about = folder / f"{project['name']}-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    lines = []
    for group, points in {**project.get("entry-points", {}), "console_scripts": project.get("scripts", {})}.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items()), ""]
    (about / "entry_points.txt").write_text("\n".join(lines))


def end_all(token: str) -> None:
    """Ends every process that has this token in its environment: pytest, and servers of tests that were cut short."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK, "").startswith(token):
                process.kill()


@dataclass(frozen=True)
class Verdict:
    """What became of a fault: whether it was caught, by what, and how many tests there were to ask."""

    caught: bool
    by: str
    tests: int


class Undecided(Exception):
    """The tests cannot be run, and it is not the fault that they cannot be run by."""


class Judge:
    """Asks the tests of a copy about faults."""

    def __init__(self, executed: Executed, timeout: float, more: Sequence[str]):
        self.executed, self.timeout, self.more = executed, timeout, more

    def judge(self, copy: Copy, fault: Fault) -> Verdict:
        """Plants the fault, and runs the tests."""
        tests, folders = tests_of(self.executed, fault, copy.root)
        take_out = copy.plant(fault)
        try:
            for selection in filter(None, (tests, folders)):
                if by := self.ask(copy, selection, take_out, fault):
                    return Verdict(True, by, len(tests))
        except Undecided as error:
            return Verdict(False, f"undecided: {error}", len(tests))
        finally:
            take_out()
        return Verdict(False, "" if tests or folders else "no test executes it", len(tests))

    def ask(self, copy: Copy, selection: list[str], take_out: Callable[[], None], fault: Fault) -> str:
        """What catches the fault, of these tests or folders; "" if nothing does."""
        doubted: list[str] = []
        while left := [name for name in selection if name not in doubted]:
            status, output = self.run(copy, left, doubted)
            if status in (0, 5):
                return ""
            if status is None or re.search(r"^Timeout \(\d", output, re.MULTILINE):
                return "a test that does not end"
            failures = failed(output, self.executed.seconds)[:1]
            named = failures or selection
            again, _ = self.run(copy, named, [])
            take_out()
            without, words = self.run(copy, named if failures else [*selection, "--collect-only"], [])
            copy.plant(fault)
            if again != 0 and without == 0:
                return named[0] if failures else "an error before any test"
            if not failures or failures[0] in doubted:
                raise Undecided(f"pytest ends with {without} without any fault: {words[-300:]}")
            doubted.append(named[0])  # it is not the fault that it fails by
        return ""

    def run(self, copy: Copy, selection: list[str], left_out: list[str]) -> tuple[int | None, str]:
        """Runs tests up to the first that fails."""
        options = [f"--deselect={name}" for name in [*left_out, *sorted(self.executed.bad)]]
        arguments = copy.root.parent / "arguments.txt"
        arguments.write_text("\n".join([*options, *selection]) + "\n")
        seconds = sum(took for name, took in self.executed.seconds.items() if name.startswith(tuple(selection)))
        hang = ["-o", f"faulthandler_timeout={self.timeout}", "-o", "faulthandler_exit_on_timeout=true"]
        return copy.pytest(["-x", *hang, *self.more, f"@{arguments}"], 5 * seconds + 2 * self.timeout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", default=Path(__file__).resolve().parents[1])
    parser.add_argument("--count", type=int, default=60, help="how many faults")
    parser.add_argument("--seed", type=int, default=1, help="of the choice of faults")
    parser.add_argument("--jobs", type=int, default=2, help="how many run at the same time")
    parser.add_argument("--executed", type=Path, metavar="FILE", help="which test executes which line; kept")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds that a test may take with a fault")
    parser.add_argument("--pytest-args", default="", help="more for pytest, as one argument")
    parser.add_argument("--list", action="store_true", help="show the faults, and plant none")
    options = parser.parse_args()
    more = shlex.split(options.pytest_args)
    faults = drawn(options.checkout, options.seed, options.count)
    if options.list:
        for fault in faults:
            print(shown(fault, options.checkout))
        return
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        Path(folder).chmod(0o755)  # the tests' PostgreSQL server runs as another user if this one is root
        copies: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for job in range(options.jobs):
            copies.put(Copy(options.checkout, Path(folder) / str(job)))
        if options.executed and options.executed.exists():
            executed: Executed = pickle.loads(options.executed.read_bytes())
        else:
            executed = measure(options.checkout, Path(folder), options.jobs, more)
            if options.executed:
                options.executed.write_bytes(pickle.dumps(executed))
        print_totals(executed)
        judge = Judge(executed, options.timeout, more)
        report(faults, copies, judge, options.checkout, options.jobs)


def report(faults: Sequence[Fault], copies: queue.SimpleQueue[Copy], judge: Judge, checkout: Path, jobs: int) -> None:
    """Judges all faults, prints each when that is done, and the totals."""

    def one(number: int) -> Verdict:
        copy, start = copies.get(), time.monotonic()
        try:
            verdict = judge.judge(copy, faults[number])
        finally:
            copies.put(copy)
        state = "caught" if verdict.caught else "SURVIVED"
        why = f"{verdict.by or 'no test fails'} ({verdict.tests} tests execute it, {time.monotonic() - start:.0f} s)"
        print(f"{number + 1:3} {state:8} {shown(faults[number], checkout)}\n             {why}", flush=True)
        return verdict

    with ThreadPoolExecutor(jobs) as pool:
        try:
            verdicts = list(pool.map(one, range(len(faults))))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all(RUN)
            raise
    for folder in (*FOLDERS, ""):
        mine = [v for f, v in zip(faults, verdicts, strict=True) if f.path.startswith(folder)]
        caught, unseen = sum(v.caught for v in mine), sum(v.by == "no test executes it" for v in mine)
        print(f"{folder or 'all':8} {caught} of {len(mine)} caught; {len(mine) - caught} survived, "
              f"{unseen} of them where no test executes the line")  # fmt: skip


def shown(fault: Fault, checkout: Path) -> str:
    """The fault on a line or two."""
    source = (checkout / fault.path).read_bytes()
    before = " ".join(source[fault.start : fault.end].decode().split())
    after = " ".join(fault.text.split())
    return f"{fault.path}:{fault.line}  {fault.description}: {before[:90]}  ->  {after[:90]}"


if __name__ == "__main__":
    main()
