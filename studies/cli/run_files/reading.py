"""Run files as the words of a command line.

task = "ppo"                        # TASK, as on the command line
epochs = "1:27"                     # any option, by its name with _ in place of -
command = ["python", ...]           # with task "command", the program's words
env = "CartPole-v1"                 # or a table like EnvSpec's JSON, or a list of several with study.across
[hyperparameters]                   # --set
optimizer.lr = 1e-3
[ranges]                            # --prior
gamma = "near_one(0.9, 0.999)"
[study]                             # name, trials, sampler, scheduler, seeds, objective, ...
[population]                        # with scheduler = "pbt"
[ray]                               # with engine = "ray"
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from ....spaces.errors import near
from ...options.option import Group

SUFFIXES = (".toml", ".yaml", ".yml")
COMMANDS = ("train", "tune", "create")
SECTIONS = {group.title: group.section for group in Group}
NAMES = {"set": "hyperparameters", "prior": "ranges", "study.study": "study.name", "study.prior": "ranges"}
INSTEAD = {"--epochs": "--env-steps", "--env-steps": "--epochs"}  # typing one also overrides the other
TYPED_ONLY = ("help", "json", "debug", "save_config")


def places(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return a command's options by their paths in a file."""
    entries = {}
    for group in parser._action_groups:
        section = SECTIONS.get(group.title or "", "")
        for action in group._group_actions:
            if action.option_strings and action.dest not in TYPED_ONLY:
                path = f"{section}.{action.dest}" if section else action.dest
                entries[NAMES.get(path, path)] = action
    return entries


def expand(parsers: Mapping[str, argparse.ArgumentParser], argv: Sequence[str]) -> list[str]:
    """Replace the name of a run file with its words.

    Raises:
        ValueError: the file cannot be read, names no task, or has a key without an option.
    """
    if not argv or argv[0] not in COMMANDS:
        return list(argv)
    takers = {
        word for action in parsers[argv[0]]._actions if action.nargs not in (0, "?") for word in action.option_strings
    }
    places_of_files = (n for n, word in enumerate(argv) if not word.startswith(("-", "@")) and word.endswith(SUFFIXES))
    files = [n for n in places_of_files if n and argv[n - 1] not in takers]  # the others are values of options
    if not files:
        return list(argv)
    file, typed = Path(argv[files[0]]), [word for n, word in enumerate(argv) if n and n != files[0]]
    content = read(file)
    if not isinstance(content.get("task"), str):
        raise ValueError(f"a run file names a task, but {file} has no task; add task = 'ppo', or another")
    words, env = [argv[0], content.pop("task")], content.pop("env", None)
    program = content.pop("command", [])
    if not isinstance(program, list) or not all(isinstance(word, str) for word in program):
        raise ValueError(f"command must be the list of a program's words, but {file} has {program!r}")
    for section in ("hyperparameters", "ranges"):
        if not isinstance(table := content.get(section, {}), Mapping):
            raise ValueError(f"{section} must be a table, with a line for each name, but {file} has {table!r}")
    environments = env if isinstance(env, list) else [env] if env else []
    if len(environments) > 1 and argv[0] == "train":
        raise ValueError(f"a training has one environment, but {file} has {len(environments)}; tune it")
    words += [env if isinstance(env, str) else json.dumps(env) for env in environments]
    if "hyperparameters" in content:
        words += ["--set", f"@{file}"]  # typed assignments, and what is searched, override these
    allowed = places(parsers[argv[0]])
    elsewhere = {path: action for name in COMMANDS for path, action in places(parsers[name]).items()}
    options = {word.partition("=")[0] for word in typed}
    for path, value in _options(content):
        if path not in elsewhere:
            raise ValueError(f"{file}: there is no {path!r} in a run file{near(path, elsewhere)}")
        if path == "study.search" and isinstance(value, list):
            value = [name for name in value if name not in _typed(typed, "--set")] or value
        action = allowed.get(path)  # `train` takes a study's file, too, and ignores options that only studies have
        if action is not None and not options & {*action.option_strings, INSTEAD.get(action.option_strings[0])}:
            words += _words(action, value, f"{file}: {path}")
    for name, prior in _flat(content.get("ranges", {})):
        if "ranges" in allowed and name not in {*_typed(typed, "--prior"), *_typed(typed, "--set")}:
            words += ["--prior", f"{name}={prior}"]
    return [*words, *typed, *(["--", *program] if program else [])]


def _typed(words: Sequence[str], option: str) -> set[str]:
    """Return the names that follow an option, as in ``--set=NAME=VALUE``."""
    after = [word for before, word in pairwise(words) if before == option]
    joined = [word.removeprefix(f"{option}=") for word in words if word.startswith(f"{option}=")]
    return {word.partition("=")[0].strip() for word in (*after, *joined)}


def _options(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in content.items():
        if name in ("hyperparameters", "ranges"):
            continue
        if isinstance(value, Mapping):
            yield from ((f"{name}.{key}", entry) for key, entry in value.items())
        else:
            yield name, value


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _words(action: argparse.Action, value: Any, path: str) -> list[str]:
    """Return an option and its value as words."""
    option = action.option_strings[0]
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ValueError(f"{path} must be true or false, but is {value!r}")
        return [option] * value
    several = isinstance(action.default, list) or isinstance(action, argparse._AppendAction)
    if isinstance(value, bool | Mapping) or (isinstance(value, list) and not several):
        raise ValueError(f"{path} must be one value, as {option} takes it, but is {value!r}")
    return [f"{option}={item}" for item in (value if isinstance(value, list) else [value])]


def read(path: Path) -> dict[str, Any]:
    """Return the content of a TOML or YAML file.

    Raises:
        ValueError: the file cannot be read, or does not hold options by name.
    """
    import tomllib  # slow to import

    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else _yaml(text)
    except (OSError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise ValueError(f"{path} must be a file of {path.suffix[1:].upper()}, but: {problem}") from None
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ValueError(f"{path} must hold options by name, but holds {str(content)[:40]!r}")
    return content


def read_json(text: str) -> Any:
    """Return the value of JSON text.

    Raises:
        ValueError: the text is no JSON, or an object has a key twice, of which JSON would keep the last.
    """
    return _unique(json.loads(text, object_pairs_hook=_Pairs), "")


class _Pairs(tuple[tuple[str, Any], ...]):
    """Keys and values of a JSON object, with repeated keys."""


def _unique(value: Any, path: str) -> Any:
    """Return a value with dicts in place of pairs.

    Args:
        value: value as read.
        path: keys that lead to it, each followed by a dot.
    """
    if isinstance(value, _Pairs):
        content: dict[str, Any] = {}
        for key, entry in value:
            if key in content:
                raise ValueError(f"{path}{key} is there twice; leave one")
            content[key] = _unique(entry, f"{path}{key}.")
        return content
    return [_unique(item, f"{path}{n}.") for n, item in enumerate(value)] if isinstance(value, list) else value


def _yaml(text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise ValueError("YAML needs PyYAML: pip install 'rekindle-rl[yaml]', or write TOML") from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc] # PyYAML has no types
        """Loader with unique keys and the numbers of YAML 1.2."""

        def compose_mapping_node(self, anchor: str | None) -> Any:
            node, lines = super().compose_mapping_node(anchor), dict[str, int]()
            for key, _ in node.value:
                name, line = str(key.value), key.start_mark.line + 1
                if name in lines:
                    raise ValueError(f"{name} is there twice, in lines {lines[name]} and {line}; leave one")
                lines[name] = line
            return node

    def as_number(construct: Callable[[Loader, Any], Any], loader: Loader, node: Any) -> Any:
        return node.value if ":" in node.value else construct(loader, node)  # in YAML 1.1, 1:27 is 87

    number = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    for tag, construct in (("int", Loader.construct_yaml_int), ("float", Loader.construct_yaml_float)):
        Loader.add_constructor(f"tag:yaml.org,2002:{tag}", partial(as_number, construct))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
