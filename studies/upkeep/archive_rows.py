"""The rows of an exported study as lines of JSON, and the check of lines that somebody else may have written."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...tasks.checkpoint.manifests import DIGEST, read_manifest
from ...tasks.errors import TaskError
from ..errors import DamagedCheckpoint
from ..storage.sql.columns import finite, parse_json
from .archive import INDEX, PARTS, Archive

FORMAT, VERSION = "rekindle study", 1
LONGEST_NAME = 1000  # characters
Row = dict[str, Any]


@dataclass(frozen=True)
class Transferred:
    """What a file holds; ``new`` are the checkpoints that the database did not have."""

    study: str
    trials: int
    tasks: int
    checkpoints: int
    blobs: int
    new: int = 0

    def to_json(self) -> Row:
        """The same, for programs."""
        return asdict(self)


def line(row: Mapping[str, Any]) -> bytes:
    """A row as JSON: equal rows are equal bytes. Names stay in their order, which means something in a space."""
    return json.dumps(finite(dict(row)), separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _is_time(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value  # PostgreSQL keeps no NUL


def _is_name(value: Any) -> bool:
    return _is_text(value) and 0 < len(value) <= LONGEST_NAME


def _is_digest(value: Any) -> bool:
    return isinstance(value, str) and DIGEST.fullmatch(value) is not None


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _are_numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(name) and _is_number(each) for name, each in value.items())


def _or_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _one_of(*names: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and value in names


FORMS: dict[str, dict[str, Callable[[Any], bool]]] = {
    "trials": {
        "number": _is_count,
        "uid": _is_name,
        "params": _is_dict,
        "attrs": _is_dict,
        "state": _one_of("running", "complete", "pruned", "failed"),
        "error": _or_none(_is_text),
        "created": _is_time,
        "finished": _or_none(_is_time),
    },
    "segments": {
        "number": _is_count,
        "rung": _is_count,
        "epochs": _is_count,
        "state": _one_of("ready", "done", "failed"),
        "score": _or_none(_is_number),
        "digest": _or_none(_is_text),
        "objectives": _or_none(_are_numbers),
    },
    "tasks": {"uid": _is_name, "identity": _or_none(_is_dict), "created": _is_time},
    "checkpoints": {"uid": _is_name, "epochs": _is_count, "digest": _is_digest, "created": _is_time},
    "metrics": {"uid": _is_name, "epoch": _is_count, "data": _is_dict},
    "events": {"uid": _is_name, "created": _is_time, "kind": _is_name, "data": _is_dict},
}
_STUDY: dict[str, Callable[[Any], bool]] = {"name": _is_name, "config": _is_dict, "created": _is_time}
# By these, the rows of a part rise.
_KEYS = {
    "trials": ("number",),
    "segments": ("number", "rung"),
    "tasks": ("uid",),
    "checkpoints": ("uid",),
    "metrics": ("uid", "epoch"),
    "events": ("uid",),
}
_STRICTLY = ("trials", "segments", "tasks", "metrics")


def rows(archive: Archive, part: str) -> Iterator[Row]:
    """The rows of a part, each of its form, in their order."""
    before: tuple[Any, ...] | None = None
    for number, text in enumerate(archive.lines(f"{part}.jsonl"), 1):
        row = _row(archive, f"line {number} of {part}", text, FORMS[part])
        key = tuple(row[name] for name in _KEYS[part])
        if before is not None and (key < before or (key == before and part in _STRICTLY)):
            raise archive.bad(f"line {number} of {part} is out of order")
        before = key
        yield row


def _row(archive: Archive, where: str, text: bytes, form: Mapping[str, Callable[[Any], bool]]) -> Row:
    try:
        row = parse_json(text.decode())
    except ValueError as error:
        raise archive.bad(f"{where} is no JSON: {error}") from None
    if isinstance(row, dict) and form is FORMS["segments"]:
        row.setdefault("objectives", None)  # only studies that seek more than the return have any
    if not isinstance(row, dict) or row.keys() != form.keys():
        raise archive.bad(f"{where} must have {', '.join(form)}")
    for name, check in form.items():
        if not check(row[name]):
            raise archive.bad(f"{where} has a {name} that is none: {str(row[name])[:80]!r}")
    return row


def index(archive: Archive) -> Row:
    """What the file says of itself, with the study's own row."""
    form = {"format": _is_text, "version": _is_count, "study": _is_dict, "parts": _is_dict}
    content = _row(archive, INDEX, archive.read(INDEX), form)
    if content["format"] != FORMAT:
        raise archive.bad(f"its format is {content['format'][:40]!r}")
    if content["version"] != VERSION:
        raise archive.bad(f"its version is {content['version']}, and this Rekindle reads version {VERSION}")
    study = content["study"]
    if study.keys() != _STUDY.keys() or not all(check(study[name]) for name, check in _STUDY.items()):
        raise archive.bad("its study must have a name, a config and the time when it was created")
    return content


def verify(archive: Archive, content: Row) -> None:
    """Reads everything once; BadArchive unless each part is as it was written, and all parts fit together."""
    for part in PARTS:
        hashed = hashlib.sha256()
        for text in archive.lines(f"{part}.jsonl"):
            hashed.update(text)
        if content["parts"].get(part) != hashed.hexdigest():
            raise archive.bad(f"its {part} do not have the sha256 that it gives")
    numbers, uids = set(), set()
    for row in rows(archive, "trials"):
        numbers.add(row["number"])
        uids.add(row["uid"])
    if any(row["number"] not in numbers for row in rows(archive, "segments")):
        raise archive.bad("it has a segment of no trial")
    tasks = {row["uid"] for row in rows(archive, "tasks")}
    if not tasks <= uids:
        raise archive.bad("it has a task of no trial")
    for part in ("checkpoints", "metrics", "events"):
        if any(row["uid"] not in tasks for row in rows(archive, part)):
            raise archive.bad(f"it has {part} of no task")
    _verify_states(archive)


def _verify_states(archive: Archive) -> None:
    named = {row["digest"] for row in rows(archive, "checkpoints")}
    if named != archive.names("manifests"):
        raise archive.bad("its checkpoints and its manifests are not the same")
    blobs: set[str] = set()
    for digest in sorted(named):
        blobs |= blobs_of(archive, digest)
    if blobs != archive.names("blobs"):
        raise archive.bad("its manifests and its blobs do not belong together")
    for digest in archive:
        archive.check_blob(digest)


def blobs_of(archive: Archive, digest: str) -> set[str]:
    """The digests that a manifest names."""
    try:
        return read_manifest(archive.checked("manifests", digest)).blobs()
    except TaskError as error:
        raise archive.bad(f"its manifest {digest[:12]} is none: {error}") from None


def checked_manifest(digest: str, manifest: bytes) -> set[str]:
    """The digests that a stored manifest names; DamagedCheckpoint if it is not the one that it is called."""
    check_digest(f"manifest {digest[:12]}", digest, manifest)
    return read_manifest(manifest).blobs()


def check_digest(what: str, digest: str, data: bytes | None) -> None:
    """DamagedCheckpoint unless these bytes have that sha256."""
    if data is None or hashlib.sha256(data).hexdigest() != digest:
        raise DamagedCheckpoint(
            f"what is exported is whole, but {what} is {'missing' if data is None else 'damaged'}; "
            "`rekindle fsck --repair` takes the task back to a sound state"
        )


def dump_index(study: Row, parts: Mapping[str, str]) -> bytes:
    """What the file says of itself."""
    content = {"format": FORMAT, "version": VERSION, "study": finite(study), "parts": dict(parts)}
    return json.dumps(content, indent=1, ensure_ascii=False).encode() + b"\n"
