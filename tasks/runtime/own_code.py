"""Digests of the user's own code.

A digest covers a definition and what it uses, in its module and in the files beside it.

A script that defines a function and then runs a study is edited again and again, for more trials or another plot. So
the digest covers only the statements that the definition depends on. Installed packages have versions instead.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...spaces.choices import name_of

INSTALLED = {"site-packages", "dist-packages"}  # folders of packages that others have released
PACKAGE = __name__.partition(".")[0]
TASK = "task"  # name of the decorator that makes a task of a function


def named_digest(definition: Callable[..., Any]) -> dict[str, str]:
    """Return the digest of the user's class or function, by its name."""
    return {name_of(definition): digest} if (digest := digest_of(definition)) else {}


@functools.cache
def digest_of(definition: Callable[..., Any]) -> str:
    """Return a digest of a class or function and what it uses.

    It is "" for Rekindle's own code, for installed code, and without a source. It is computed once, as a process
    imports a module once.
    """
    module = sys.modules.get(definition.__module__)
    file = Path(getattr(module, "__file__", None) or "/")
    top = definition.__module__.partition(".")[0]
    if top == PACKAGE or INSTALLED & {*file.parts}:
        return ""
    parts = [""]
    with suppress(OSError, TypeError, SyntaxError, UnicodeDecodeError):  # typed at a prompt
        parts = [inspect.getsource(definition)]
    name = definition.__qualname__.partition(".")[0]
    with suppress(OSError, SyntaxError, UnicodeDecodeError):
        package = getattr(module, "__package__", "") or ""
        root = file.parents[package.count(".") + 1 if package else 0]
        parts = [*_used(file.read_text(), name, package, root)] or parts
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12] if any(parts) else ""


def _used(source: str, name: str, package: str, root: Path) -> Iterator[str]:
    """Yield the statements that a name depends on, and files they import."""
    statements = ast.parse(source).body
    binds, reads = zip(*((_bound(x), _names(x)) for x in statements), strict=True) if statements else ((), ())
    names, wanted, used = set[str]().union(*binds), {name}, set[int]()
    while more := {i for i in range(len(statements)) if i not in used and binds[i] & wanted}:
        used |= more
        wanted |= set[str]().union(*(reads[i] for i in more))
    for i, statement in enumerate(statements):
        changed = reads[i] & names if isinstance(statement, ast.Expr) else set()  # as by CONFIG.update(...)
        if i in used or (changed and name not in changed and changed <= wanted):
            yield (code := _text(source, statement, name))
            for file in imported_files(code, package, root):
                with suppress(OSError, UnicodeDecodeError):
                    yield file.read_text()


def _text(source: str, statement: ast.stmt, name: str) -> str:
    """Return the code of a statement, with its decorators.

    The one that makes a task of the named function is left out: hyperparameters are part of the identity, and users
    edit their ranges for another study.
    """
    parts: list[ast.AST] = [statement]
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        makers = [x.func if isinstance(x, ast.Call) else x for x in statement.decorator_list]
        of_task = [statement.name == name and ast.unparse(x).rpartition(".")[2] == TASK for x in makers]
        parts[:0] = [x for x, left_out in zip(statement.decorator_list, of_task, strict=True) if not left_out]
    return "\n".join(ast.get_source_segment(source, part) or "" for part in parts)


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a top-level statement binds or changes."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}
    names = {alias.asname or alias.name.partition(".")[0] for alias in _aliases(statement)}
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.MatchAs | ast.MatchStar):
            names |= {node.name} if node.name else set()
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For | ast.withitem):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            targets = [node.optional_vars] if isinstance(node, ast.withitem) else targets
            names |= {name for target in targets if target is not None for name in _names(target)}
    return names


def _names(node: ast.AST) -> set[str]:
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def _aliases(node: ast.AST) -> Iterator[ast.alias]:
    for x in ast.walk(node):
        if isinstance(x, ast.Import | ast.ImportFrom):
            yield from x.names


def imported_files(code: str, package: str, root: Path, yielded: set[Path] | None = None) -> Iterator[Path]:
    """Yield the files below a folder that code imports, and theirs.

    Args:
        code: statements; without any that Python can parse, there are no files.
        package: name of the package that they are in, or "".
        root: folder in which Python finds the user's modules and packages.
        yielded: files that were yielded before; no file is yielded twice.
    """
    yielded = set() if yielded is None else yielded
    for name in _imported_names(code, package):
        file, inside = _located(name.split("."), root)
        if file and file not in yielded:
            yielded.add(file)
            yield file
            with suppress(OSError, UnicodeDecodeError):
                yield from imported_files(file.read_text(), inside, root, yielded)


@functools.lru_cache(maxsize=1024)
def _imported_names(code: str, package: str) -> list[str]:
    """Return names that are modules if files of them exist.

    Packages come before what is in them.
    """
    names: list[str] = []
    with suppress(SyntaxError, ValueError):  # ValueError: null characters
        for x in ast.walk(ast.parse(code)):
            base: list[str] = []
            if isinstance(x, ast.ImportFrom):
                parents = package.split(".")[: 1 - x.level or None] if x.level else []
                base = [part for part in (*parents, x.module) if part]
            for alias in x.names if isinstance(x, ast.Import | ast.ImportFrom) else ():
                parts = [*base, *alias.name.split(".")]
                names += [".".join(parts[: i + 1]) for i in range(len(parts))]
    return names


def _located(parts: Sequence[str], root: Path) -> tuple[Path | None, str]:
    """Return a module's file, if below a folder, and its package."""
    path = root.joinpath(*parts)
    if (file := path / "__init__.py").is_file():
        return file, ".".join(parts)
    return (file, ".".join(parts[:-1])) if (file := path.with_name(f"{path.name}.py")).is_file() else (None, "")
