"""Hooks of MkDocs: pages from elsewhere in the repository, and tables made from the code.

A page says where a table belongs: ``<!-- hyperparameters: ppo -->``.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import re
from pathlib import Path, PurePosixPath
from typing import Any, get_type_hints, is_typeddict

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
INCLUDED = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/trainings/README.md": "trainings.md",
}
INCLUDED_AS = {page: source for source, page in INCLUDED.items()}
LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)((?:#[^)\s]*)?\))")
TABLE = re.compile(r"^<!-- hyperparameters: ([\w-]+)(?: ([\w.:/-]+))? -->$", re.MULTILINE)
WIDTH = 100  # characters of a line of code
FENCED = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: Any) -> Files:
    """Add the repository's own pages, and the reference."""
    for source, page in INCLUDED.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "reference.md", content=reference()))
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Fill in tables, and lead links to where pages stand on the site."""
    page_path = page.file.src_uri
    source = PurePosixPath(INCLUDED_AS.get(page_path, f"docs/{page_path}"))
    parts = FENCED.split(markdown)
    return "".join(part if part.startswith("```") else prose(part, page_path, source) for part in parts)


def prose(text: str, page_path: str, source: PurePosixPath) -> str:
    """Return what stands between code blocks, as the site shows it."""
    text = TABLE.sub(lambda match: hyperparameters(match[1], match[2]), text)
    return LINK.sub(lambda match: f"{match[1]}{site_link(match[2], page_path, source)}{match[3]}", text)


def site_link(link: str, page_path: str, source: PurePosixPath) -> str:
    """Return a link of the repository as a link between pages of the site."""
    target = os.path.normpath(source.parent / link)
    if target == "README.md":
        target = "docs/index.md"
    wanted = INCLUDED.get(target, target.removeprefix("docs/"))
    return os.path.relpath(wanted, PurePosixPath(page_path).parent)


def hyperparameters(task: str, env: str | None = None) -> str:
    """Return the table of a task's hyperparameters, from the code."""
    from rekindle.studies.cli import main

    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main(["space", task, *([env] if env else []), "--json"]) == 0
    lines = ["| hyperparameter | default | searched over | only if | what it does |", "|---|---|---|---|---|"]
    for row in json.loads(printed.getvalue())["hyperparameters"]:
        searched = f"`{shortened(row['searched'])}`" if row["searched"] else ""
        default = "none" if row["default"] is None else f"`{row['default']}`"
        lines.append(f"| `{row['name']}` | {default} | {searched} | {', '.join(row['when'])} | {row['help']} |")
    return "\n".join(lines)


def shortened(prior: str) -> str:
    """Return a prior without what it accepts and its default, which has a column."""
    return re.sub(r", (accept=\([^)]*\)|default_value=('[^']*'|[^,)]*)|structural=True)", "", prior)


def reference() -> str:
    """Return the page of all public names, from their docstrings."""
    import rekindle
    from rekindle.tasks import testing

    names = {f"rekindle.{name}": getattr(rekindle, name) for name in rekindle.__all__ if not name.startswith("_")}
    names["rekindle.tasks.testing.ExactnessSuite"] = testing.ExactnessSuite
    text = "# Reference\n\nMade from the docstrings; the same text is what `python -m pydoc rekindle.Task` shows.\n"
    for name, value in names.items():
        if inspect.ismodule(value):
            continue
        text += f"\n## {name}\n\n{described(value, name.rpartition('.')[2])}"
        for method, _ in inspect.getmembers_static(value) if inspect.isclass(value) else ():
            if not method.startswith("_") and inspect.getdoc(getattr(value, method)) and method in own_names(value):
                text += f"\n### {name.rpartition('.')[2]}.{method}\n\n{described(getattr(value, method), method)}"
    return text


def own_names(cls: type) -> set[str]:
    """Return the names that a class, or a base of the same package that is not shown itself, defines."""
    import rekindle

    shown = {getattr(rekindle, name) for name in rekindle.__all__ if name != "__version__"} - {cls}
    bases = [base for base in cls.__mro__ if base.__module__.startswith("rekindle") and base not in shown]
    members = {name: member for base in bases for name, member in vars(base).items()}
    return {name for name, member in members.items() if isinstance(member, property) or callable(getattr(cls, name))}


def described(value: Any, name: str) -> str:
    """Return a signature and a docstring as Markdown."""
    text = ""
    if callable(value):
        with contextlib.suppress(ValueError, TypeError):
            text = f"```text\n{name}{signature(value)}\n```\n\n"
    doc = inspect.getdoc(value) or ""
    sections = re.split(r"^(Args|Returns|Raises|Yields|Attributes|Example|Examples):\n", doc, flags=re.MULTILINE)
    text += escaped(sections[0])
    if is_typeddict(value):
        text += f"\n\n{options(value)}\n"
    for title, body in zip(sections[1::2], sections[2::2], strict=True):
        text += f"\n**{title}**\n\n{listed(body)}\n"
    return text + "\n"


def options(table: type) -> str:
    """Return the table of declared options."""
    from rekindle.studies.options.option import declared

    types, lines = get_type_hints(table), ["| keyword | type | default | |", "|---|---|---|---|"]
    for name, option in declared(table).items():
        named = str(getattr(types[name], "__name__", types[name])).replace("collections.abc.", "").replace("|", "or")
        help_text = option.help.replace("%%", "%").replace("|", "\\|")
        lines.append(f"| `{name}` | {named} | `{option.default!r}` | {help_text} |")
    return "\n".join(lines)


class Bare(str):
    """A text that is shown without quotes."""

    __repr__ = str.__str__


def bare(annotation: Any) -> Any:
    """Return an annotation; one that is a text is shown without quotes."""
    return Bare(annotation) if isinstance(annotation, str) else annotation


def signature(value: Any) -> str:
    """Return a signature, with a line for each parameter if it is long."""
    result = inspect.signature(value)
    parameters = [parameter.replace(annotation=bare(parameter.annotation)) for parameter in result.parameters.values()]
    result = result.replace(parameters=parameters, return_annotation=bare(result.return_annotation))
    if len(str(result)) <= WIDTH:
        return str(result)
    lines, kinds = [], [parameter.kind for parameter in parameters]
    for parameter in parameters:
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.VAR_POSITIONAL not in kinds and "*" not in lines:
            lines.append("*")
        lines.append(str(parameter))
    end = str(result.replace(parameters=[]))
    return "(\n    " + ",\n    ".join(lines) + f",\n{end[1:]}"


def escaped(text: str) -> str:
    """Return prose with single backticks, and nothing that Markdown would take as HTML or a link."""
    return text.replace("``", "`").replace("<", "&lt;").replace("[", "\\[")


def listed(body: str) -> str:
    """Return the entries of a section as a list."""
    body = inspect.cleandoc(body)
    entries = re.split(r"^(?=\S)", body, flags=re.MULTILINE)
    return "\n".join("- " + escaped(" ".join(entry.split())) for entry in entries if entry.strip())


def commands() -> str:
    """Return the page of all commands, from the parser."""
    from rekindle.studies.cli.dispatch import make_parser

    os.environ["COLUMNS"] = str(WIDTH)
    text = "# Commands\n\nWhat `rekindle COMMAND --help` shows.\n"
    choices = make_parser().commands
    for name, command in choices.items():
        text += f"\n## {name}\n\n```text\n{command.format_help()}```\n"
    return text
