"""Documentation and JSON schema of what commands print with ``--json``, from the views of their results.

python docs/tools/json_output.py    writes docs/json.md and studies/cli/schema.json
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from rekindle.studies.analysis.comparing import ComparisonView
from rekindle.studies.analysis.health import DiagnosisView
from rekindle.studies.analysis.schedules import ScheduleView
from rekindle.studies.cli.commands import (
    curves,
    lineage,
    match,
    plugins,
    policy,
    programs,
    report,
    serve,
    spaces,
    steer,
    upkeep,
)
from rekindle.studies.cli.commands.train import TrainView
from rekindle.studies.cli.commands.worker import WorkedView
from rekindle.studies.engine.branching import ReplayView
from rekindle.studies.engine.views import (
    REQUIRED,
    ConfirmationView,
    ConfirmedStudyView,
    StatusView,
    StudyView,
    SummaryView,
    TaskView,
    TrainingsView,
    View,
    default_of,
    key_of,
)
from rekindle.studies.live.views import WatchView

ROOT = Path(__file__).resolve().parents[2]
PAGE, SCHEMA = ROOT / "docs/json.md", ROOT / "studies/cli/schema.json"
RESULTS: Mapping[str, Any] = {
    **{"tune": ConfirmedStudyView, "trials": ConfirmedStudyView, "create": StudyView, "confirm": ConfirmationView},
    **{"status": StatusView, "show": TaskView, "tasks": TrainingsView, "watch": WatchView},
    **{"compare": ComparisonView, "diagnose": DiagnosisView, "report": report.ReportsView, "plot": report.PlotView},
    **{"train": TrainView, "fork": lineage.ForkView, "replay": ReplayView, "schedule": ScheduleView},
    **{"evaluate": policy.EvaluationView, "export-policy": policy.ExportedView, "import-policy": policy.ImportedView},
    "match": match.MatchView,
    **{"space": spaces.SpaceView, "probe": spaces.ProbedView, "import-config": spaces.ImportedConfigView},
    **{"worker": SummaryView | WorkedView, "serve": serve.AddressView, "check-resume": programs.ResumeCheckView},
    **dict.fromkeys(("stop", "pause", "resume", "cancel", "exclude", "enqueue", "extend"), steer.SteeringView),
    **{"fsck": upkeep.FsckView, "gc": upkeep.GcView, "delete": upkeep.DeleteView},
    **dict.fromkeys(("export", "import"), upkeep.TransferView),
    **{"export-curves": curves.CopiesView, "plugins": plugins.PluginsView},
}
BASIC = {int: "integer", float: "number", str: "string", bool: "boolean", types.NoneType: "null"}
INTRODUCTION = """# JSON output

With `--json`, a command prints one JSON object, whose `format` is 1. Names are stable within a format; new ones may be
added. A field marked "if any" may be missing. Times are seconds since 1970. `return` is the mean undiscounted return of
greedy evaluation episodes, on seeds that no training uses. `digest` is the sha256 of the canonical form of the whole
training state. `live.json` of `rekindle serve` is what `watch` prints.

The package contains a JSON schema, in which `$defs` has an entry for each command and each object:

```python
import json
from importlib.resources import files

schema = json.loads(files("rekindle.studies.cli").joinpath("schema.json").read_text())
print(schema["$defs"]["trials"])
```

This page and the schema are made from the code, by `docs/tools/json_output.py`.
"""


def is_object(annotation: Any) -> bool:
    """Return whether a type's values are JSON objects with declared fields."""
    return isinstance(annotation, type) and (
        issubclass(annotation, View) or is_dataclass(annotation) or hasattr(annotation, "_fields")
    )


def name_of(object_type: type) -> str:
    return object_type.__name__.removesuffix("View")


def fields_of(object_type: type) -> dict[str, Any]:
    """Return the annotations of an object's fields, by attribute."""
    hints = get_type_hints(object_type, include_extras=True)
    names = object_type.fields if issubclass(object_type, View) else getattr(object_type, "_fields", list(hints))
    return {name: hints[name] for name in names}


def described(object_type: type, name: str, annotation: Any) -> tuple[Any, str]:
    """Return a field's type and description: of the annotation, or of the class's docstring."""
    if get_origin(annotation) is Annotated:
        inner, *texts = get_args(annotation)
        return inner, str(texts[-1])
    entry = re.search(
        rf"^    +{name}: (.+?)(?=\n    +\w+: |\n*\Z)", object_type.__doc__ or "", re.DOTALL | re.MULTILINE
    )
    return annotation, " ".join(entry[1].split()).removesuffix(".") if entry else ""


def parts_of(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin of a type and its arguments, without descriptions."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_origin(annotation) or annotation, get_args(annotation)


def schema_of(annotation: Any) -> dict[str, Any]:
    """Return the schema of a type."""
    origin, arguments = parts_of(annotation)
    if is_object(origin):
        return {"$ref": f"#/$defs/{name_of(origin)}"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [schema_of(argument) for argument in arguments]}
    if origin is tuple:
        return {"type": "array", "prefixItems": [*map(schema_of, arguments)], "items": False}
    if origin is Sequence or origin is list:
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin is Mapping or origin is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    return {"type": BASIC[origin]} if origin in BASIC else {}


def type_of(annotation: Any) -> str:
    """Return a type in words, with links to objects."""
    origin, arguments = parts_of(annotation)
    if is_object(origin):
        return f"[{name_of(origin)}](#{name_of(origin).lower()})"
    if origin in (Union, types.UnionType):
        return " or ".join(map(type_of, arguments))
    if origin is tuple:
        return f"list of {', '.join(map(type_of, arguments))}"
    if origin is Sequence or origin is list:
        return f"list of {type_of(arguments[0])}"
    if origin is Mapping or origin is dict:
        return f"object of {type_of(arguments[1])}"
    return BASIC.get(origin, "any")


def objects_in(annotation: Any, objects: dict[str, type]) -> dict[str, type]:
    """Add the objects that a type contains, each after the one that contains it."""
    origin, arguments = parts_of(annotation)
    if is_object(origin) and objects.get(name_of(origin)) is not origin:
        assert name_of(origin) not in objects, f"two objects are named {name_of(origin)}"
        objects[name_of(origin)] = origin
        arguments = (*fields_of(origin).values(),)
    for argument in arguments:
        objects_in(argument, objects)
    return objects


def is_optional(object_type: type, name: str) -> bool:
    return issubclass(object_type, View) and default_of(object_type, name) is not REQUIRED


def object_schema(object_type: type) -> dict[str, Any]:
    """Return the schema of an object; those that it merges are parts of it."""
    properties, required, merged = {}, [], []
    for name, annotation in fields_of(object_type).items():
        inner, text = described(object_type, name, annotation)
        if name in getattr(object_type, "merged", ()):
            merged += [schema_of(inner)] if is_object(inner) else []
            continue
        properties[key_of(name)] = schema_of(inner) | ({"description": text} if text else {})
        required += [] if is_optional(object_type, name) else [key_of(name)]
    more = {"allOf": merged} if merged else {}
    title = (object_type.__doc__ or "").splitlines()[0]
    return {"description": title, "type": "object", **more, "properties": properties, "required": required}


def schema() -> str:
    """Return the schema of all commands."""
    objects: dict[str, type] = {}
    for result in RESULTS.values():
        objects_in(result, objects)
    marked = {"properties": {"format": {"const": 1}}, "required": ["format"]}
    commands = {command: {"allOf": [schema_of(result)], **marked} for command, result in RESULTS.items()}
    definitions = commands | {name: object_schema(object_type) for name, object_type in objects.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(definition)}" for name, definition in definitions.items())
    head = '"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "JSON output of rekindle"'
    return f'{{{head}, "$defs": {{\n{lines}\n}}}}\n'


def page() -> str:
    """Return the page of all commands and objects."""
    objects: dict[str, type] = {}
    lines = [INTRODUCTION, "| command | result |", "|---|---|"]
    for command, result in RESULTS.items():
        lines.append(f"| `{command}` | {type_of(result)} |")
        objects_in(result, objects)
    for name, object_type in objects.items():
        lines += [
            "",
            f"## {name}",
            "",
            (object_type.__doc__ or "").splitlines()[0],
            "",
            "| field | type | |",
            "|---|---|---|",
        ]
        for field, annotation in fields_of(object_type).items():
            inner, text = described(object_type, field, annotation)
            optional = " (if any)" if is_optional(object_type, field) else ""
            key = "by name" if field in getattr(object_type, "merged", ()) else f"`{key_of(field)}`"
            lines.append(f"| {key} | {type_of(inner)}{optional} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    SCHEMA.write_text(schema())
