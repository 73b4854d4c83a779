"""The repository's layout: imports run one way, modules have one name, and no package is missing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Collection, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import rekindle

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("spaces", "tasks", "studies")
MAY_IMPORT = {"spaces": {"spaces"}, "tasks": {"tasks", "spaces"}, "studies": {"studies", "tasks", "spaces"}}
FACE = {"rekindle._version", "rekindle.plugins"}  # all that the folders may take from the root
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = [
    ROOT / "__init__.py",
    ROOT / "plugins.py",
    *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))),
]
# Every package, and each file directly in tasks and studies: a room imports only rooms that stand before it.
ORDER = (
    *("spaces", "spaces.drivers"),
    *(
        "tasks.catalog",
        "tasks.errors",
        "tasks.rng",
        "tasks.checkpoint",
        "tasks.compiled",
        "tasks.cuda",
        "tasks.runtime",
    ),
    *("tasks.envs.base", "tasks.envs.agents", "tasks.envs.classic", "tasks.envs.gym", "tasks.envs.selftest"),
    *("tasks.envs.pools", "tasks.envs.processes", "tasks.envs"),
    *("tasks.networks", "tasks.experience"),
    *(
        "tasks.explanations",
        "tasks.hyperparameters",
        "tasks.learner_state",
        "tasks.base_learner",
        "tasks.learner",
        "tasks.signals",
        "tasks.evaluation",
        "tasks.deployment",
        "tasks.identity",
        "tasks.probing",
        "tasks.registry",
        "tasks.warm_start",
    ),
    *("tasks.record", "tasks.cohort", "tasks.resumable", "tasks.task"),
    *(
        "tasks.algorithms",
        "tasks.algorithms.continuous",
        "tasks.algorithms.dqn",
        "tasks.adapters",
        "tasks.examples",
        "tasks.testing",
        "tasks",
    ),
    *("studies.redact", "studies.shell", "studies.garbage", "studies.errors", "studies.failures", "studies.statistics"),
    "studies.methods",
    "studies.options",
    *("studies.storage.sql", "studies.storage.locks", "studies.storage"),
    *("studies.study", "studies.samplers", "studies.schedulers", "studies.engine", "studies.steering"),
    *("studies.analysis", "studies.report", "studies.live"),
    *("studies.workers", "studies.curves", "studies.upkeep", "studies.orion"),
    *("studies.objective", "studies.starts", "studies.creation", "studies.tuning", "studies"),
    *("studies.cli.run_files", "studies.cli.output", "studies.cli.commands", "studies.cli.parsers", "studies.cli"),
)


def name_of(path: Path) -> str:
    """The full name of the module in this file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("rekindle", *parts)).removesuffix(".__init__")


MODULES = {name_of(path): path for path in SOURCES}


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path, *, for_types: bool = True) -> list[tuple[int, str]]:
    """(line, full name) of all that a file imports, wherever in it; without for_types, only what is ever executed."""
    package, result = name_of(path).split("."), []
    if path.name != "__init__.py":
        package.pop()
    body: list[ast.stmt] = parsed(path).body
    if not for_types:
        body = [node for node in body if not (isinstance(node, ast.If) and names_type_checking(node.test))]
    for node in ast.walk(ast.Module(body, [])):
        if isinstance(node, ast.Import):
            result += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            origin = ".".join(filter(None, (base, node.module)))
            result += [(node.lineno, f"{origin}.{alias.name}") for alias in node.names]
    return result


def names_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def run(code: str) -> str:
    """What a new Python prints that runs this code outside the repository."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT.anchor, check=True, capture_output=True, text=True).stdout


def under(name: str, packages: Collection[str]) -> bool:
    """Whether a full name is one of these packages or in one of them."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_run_one_way(folder: str) -> None:
    lines = [(path, *name_at) for path in sorted((ROOT / folder).rglob("*.py")) for name_at in imports(path)]
    forbidden = tuple(f"rekindle.{other}" for other in FOLDERS if other not in MAY_IMPORT[folder])
    wrong = [f"{path.relative_to(ROOT)}:{line} imports {name}" for path, line, name in lines if under(name, forbidden)]
    assert lines, f"{folder} imports nothing"
    assert not wrong


def imported_modules(path: Path) -> set[str]:
    """Names of the package's other modules that a file imports anywhere, for types too."""
    names = {name if name in MODULES else name.rpartition(".")[0] for _, name in imports(path)}
    return names & MODULES.keys() - {name_of(path)}


def circle(graph: Mapping[str, Collection[str]]) -> list[str]:
    """Return one circle of a graph, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def room_of(name: str) -> str:
    """The package of a module; the files directly in tasks and studies are rooms of their own."""
    path = MODULES[name]
    folder = ".".join(path.parent.relative_to(ROOT).parts)
    return name.removeprefix("rekindle.") if folder in ("tasks", "studies") else folder


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle({name: imported_modules(path) for name, path in MODULES.items()}) == []


def test_a_package_imports_only_packages_before_it_in_the_order() -> None:
    place = {room: index for index, room in enumerate(ORDER)}
    rooms = {name: room_of(name) for name, path in MODULES.items() if path.parent != ROOT}
    assert set(rooms.values()) == set(ORDER)
    wrong = [
        f"{name} imports {target}"
        for name, room in rooms.items()
        for target in sorted(imported_modules(MODULES[name]) & rooms.keys())
        if place[rooms[target]] > place[room]
    ]
    assert wrong == []


def test_every_package_says_what_belongs_in_it() -> None:
    texts = {name: ast.get_docstring(parsed(path)) for name, path in MODULES.items() if path.stem == "__init__"}
    assert [name for name, text in texts.items() if not text or len(text.split()) < 12 or "TODO" in text] == []


def test_the_folders_take_nothing_from_the_lazy_root() -> None:
    roots = {"rekindle"} | {f"rekindle.{name}" for name in rekindle.__all__ if name not in FOLDERS}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in SOURCES[1:]
        for line, name in imports(path)
        if name in roots - FACE
    ]
    assert not wrong


def test_the_package_imports_itself_relatively() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""])
        if under(name, ("rekindle", *FOLDERS)) and not getattr(node, "level", 0)
    ]
    assert not wrong


def test_only_the_converters_of_spaces_know_torch_or_a_driver() -> None:
    allowed = {"to_optuna.py": {"optuna"}, "to_orion.py": {"orion"}}
    wrong = [
        f"{path.name}:{line} imports {name}"
        for path in sorted((ROOT / "spaces").rglob("*.py"))
        for line, name in imports(path, for_types=False)
        if name.split(".")[0] not in {*sys.stdlib_module_names, "rekindle", "numpy", *allowed.get(path.name, ())}
    ]
    assert not wrong


def test_tasks_know_no_database_and_no_driver() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in sorted((ROOT / "tasks").rglob("*.py"))
        for line, name in imports(path)
        if name.split(".")[0] in {"sqlalchemy", "sqlite3", "psycopg", "optuna", "orion"}
    ]
    assert not wrong


def test_one_file_knows_ray() -> None:
    assert {path.name for path in SOURCES for _, name in imports(path) if under(name, {"ray"})} == {"ray_workers.py"}


def test_every_import_is_a_declared_dependency() -> None:
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"].values()
    names = {normalized(line) for lines in (project["dependencies"], *extras) for line in lines}
    owners = packages_distributions()
    unknown = {
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in SOURCES
        for line, name in imports(path)
        if (top := name.split(".")[0]) not in {*sys.stdlib_module_names, "rekindle"}
        and names.isdisjoint(normalized(owner) for owner in owners.get(top, [top]))
        # what a Gymnasium extra brings: its own package is declared
        and top not in {"mujoco", "ale_py", "Box2D"}
    }
    assert not unknown


def normalized(requirement: str) -> str:
    """The name in a requirement, in the one form that packages are compared in."""
    name = "".join(c if c.isalnum() or c in "-_." else " " for c in requirement).split()[0]
    return name.lower().replace("_", "-").replace(".", "-")


def test_every_package_is_listed_in_pyproject() -> None:
    folders = {path.parent for path in SOURCES}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []
    assert set(PYPROJECT["tool"]["setuptools"]["packages"]) == {name_of(folder / "__init__.py") for folder in folders}


def test_importing_rekindle_imports_nothing_heavy() -> None:
    loaded = json.loads(run("import sys, json, rekindle; dir(rekindle); print(json.dumps(sorted(sys.modules)))"))
    assert {"torch", "numpy", "numba", "optuna", "sqlalchemy", "gymnasium"}.isdisjoint(loaded)
    light = ["rekindle._version", "rekindle.tasks", "rekindle.tasks.catalog"]
    assert [name for name in loaded if name.startswith("rekindle.")] == light


def test_importing_spaces_imports_no_torch_and_no_driver() -> None:
    loaded = json.loads(run("import sys, json, rekindle.spaces; print(json.dumps(sorted(sys.modules)))"))
    # Orion's namespace is there from the start, through a .pth file of its own
    assert {"torch", "optuna", "orion.core", "sqlalchemy", "gymnasium"}.isdisjoint(loaded)


def test_every_module_is_loaded_under_one_name() -> None:
    files = Counter(
        str(Path(file).resolve())
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str)
        if Path(file).resolve() in SOURCES
    )
    assert str(ROOT / "__init__.py") in files
    assert [file for file, count in files.items() if count > 1] == []
    assert {"spaces", "tasks", "studies"}.isdisjoint(sys.modules)


def test_the_tests_run_the_code_beside_them() -> None:
    assert Path(rekindle.__file__).resolve() == ROOT / "__init__.py"


@pytest.mark.parametrize("name", rekindle.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(rekindle, name) is getattr(rekindle, name)
    assert name in dir(rekindle)


def test_the_lazy_names_are_those_that_type_checkers_see() -> None:
    blocks = [node for node in ast.parse((ROOT / "__init__.py").read_text()).body if isinstance(node, ast.If)]
    seen = {alias.name for node in ast.walk(blocks[0]) if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen | {"__version__"} == set(rekindle.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rekindle' has no attribute 'PPPO'"):
        rekindle.PPPO  # noqa: B018


def test_kernels_are_imported_where_their_machine_code_is_kept() -> None:
    folder = ROOT / "tasks" / "compiled"
    texts = {name_of(path): path.read_text() for path in folder.glob("*.py")}
    compiling = {name for name, text in texts.items() if "@kernel(" in text or "@numba.cfunc(" in text}
    assert {f"{name_of(folder)}.{name}" for name in ("renorm", "products")} <= compiling
    free = {folder / "kernels.py", *(MODULES[name] for name in compiling)}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")]
        if path not in free and "compiled" in path.read_text()
        for line, name in at_import(path)
        if under(name, compiling)
    ]
    assert wrong == [], "without loading.kernels() before, each process compiles them, for half a minute"


def test_no_parameter_hides_what_its_module_defines_or_imports() -> None:
    """A reader would take the function of this name for the parameter, or call the parameter."""
    hiding = []
    for path in SOURCES:
        names = set[str]()
        for node in parsed(path).body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                names.add(node.name)
        hiding += [
            f"{path.relative_to(ROOT)}:{argument.lineno}: {argument.arg}"
            for argument in ast.walk(parsed(path))
            if isinstance(argument, ast.arg) and argument.arg in names
        ]
    assert hiding == []


def at_import(path: Path) -> list[tuple[int, str]]:
    """What `imports` gives, without the imports of functions."""
    lines = {node.lineno for node in parsed(path).body if isinstance(node, ast.Import | ast.ImportFrom)}
    return [(line, name) for line, name in imports(path) if line in lines]


def test_test_files_have_different_names() -> None:
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == [], "pytest imports tests by their file names alone"


def test_a_message_that_names_an_extra_names_one_that_exists() -> None:
    texts = {path: path.read_text() for path in [*SOURCES, *ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]}
    extras = PYPROJECT["project"]["optional-dependencies"].keys()
    commands = {
        (str(path.relative_to(ROOT)), name, extra)
        for path, text in texts.items()
        for name, names in re.findall(r"pip install [^\n]*?(rekindle[\w-]*)\[([^\]]*)\]", text)
        for extra in names.split(",")
    }
    computed = {"{kind}", "{extra}", "{name}"}  # an f-string's
    assert commands
    assert [row for row in commands if row[1] != PYPROJECT["project"]["name"]] == []
    assert [row for row in commands if row[2] not in extras | computed] == []


def test_pins_cover_every_package_that_make_installs() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    project = PYPROJECT["project"]
    needed = [*project["dependencies"]]
    for extra in ("orion", "postgres", "box2d", "mujoco", "ray", "test"):
        needed += [line for line in project["optional-dependencies"][extra] if not line.startswith("rekindle-rl[")]
    assert {normalized(line) for line in needed} <= {normalized(name) for name in pins}
    assert not any(name.lower().startswith(("nvidia", "cuda", "triton")) for name in pins)
