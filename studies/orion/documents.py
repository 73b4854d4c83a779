"""Orion's documents as tagged JSON, with its queries, projections and updates.

Orion uses MongoDB's concepts. A document is stored in two columns, JSON and bytes. In the JSON, ``{"$bytes": [start,
end]}`` stands for a slice of the bytes. Tuples, datetimes and keys that are not text keep their types.

Orion's own matching (``EphemeralDocument``) is not used: it turns a dotted name, such as a hyperparameter's, into
nested dicts, takes only text keys, and copies a document once for each of its keys. A test compares the two on random
calls.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from operator import ge, gt, le, lt
from typing import Any

from ...spaces.errors import near

Document = dict[str, Any]


class DocumentError(ValueError):
    """Invalid or damaged document, query or projection."""


MISSING: Any = object()  # value of a key that a document lacks


def encode(document: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return a document's JSON text, in ASCII, and its bytes."""
    blob = bytearray()
    try:
        return json.dumps(_tag(document, "", blob), allow_nan=False, separators=(",", ":")), bytes(blob)
    except RecursionError:
        raise DocumentError(
            "a document must be a finite tree, but this one is nested too deeply, or in itself"
        ) from None


def decode(text: str, blob: bytes | None) -> Document:
    """Return the document that ``encode`` was given.

    If the blob is None, all bytes values are empty.
    """
    try:
        document = json.loads(text, object_hook=partial(_untag, blob=blob))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DocumentError(
            f"a stored document must be the JSON that was written, but it is damaged: {error}"
        ) from None
    if not isinstance(document, dict):
        raise DocumentError(f"a stored document must be a JSON object, but it is a {type(document).__name__}")
    return document


def _tag(value: Any, path: str, blob: bytearray) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, datetime):
        return {"$datetime": value.isoformat(timespec="microseconds")}
    if isinstance(value, bytes | bytearray | memoryview):
        blob += value
        return {"$bytes": [len(blob) - len(value), len(blob)]}
    if isinstance(value, list):
        return [_tag(item, f"{path}[{i}]", blob) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [_tag(item, f"{path}[{i}]", blob) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {str(key): _tag(item, f"{path}.{key}", blob) for key, item in value.items()}
        return {"$map": [[_tag(k, f"{path}<key>", blob), _tag(v, f"{path}.{k}", blob)] for k, v in value.items()]}
    if isinstance(value, os.PathLike):  # a working directory, which Orion itself turns into text elsewhere
        return os.fspath(value)
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a NumPy scalar
        return _tag(value.item(), path, blob)
    raise DocumentError(
        f"a document holds numbers, text, bytes, datetimes, lists, tuples and dicts, but "
        f"{path.lstrip('.') or 'it'} is a {type(value).__name__}; make it one of those"
    )


def _untag(value: Document, blob: bytes | None) -> Any:
    """Return the value of an object whose values are already untagged."""
    if len(value) != 1:
        return value
    [(tag, content)] = value.items()
    if not tag.startswith("$"):
        return value
    if tag == "$datetime":
        return datetime.fromisoformat(content)
    if tag == "$float":
        if content not in ("nan", "inf", "-inf"):
            raise DocumentError(f"a $float must be nan, inf or -inf, but is {content!r}")
        return float(content)
    if tag == "$tuple":
        return tuple(content)
    if tag == "$map":
        return dict(content)
    if tag == "$bytes":
        start, end = content
        if blob is None:
            return b""
        if not 0 <= start <= end <= len(blob):
            raise DocumentError(f"bytes {start} to {end} are not in {len(blob)} bytes")
        return blob[start:end]
    raise DocumentError(f"{tag} is not a tag")


def index_text(value: Any) -> str | None:
    """Return a scalar's text for an index; None for other values.

    Only equal values have equal texts. The texts of naive datetimes sort in order of time.
    """
    if value is None:
        return "null"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return "t" + value.isoformat(timespec="microseconds")
        return "u" + value.astimezone(UTC).isoformat(timespec="microseconds")
    if isinstance(value, int | float):  # 1, 1.0 and True are equal in Orion's queries
        whole = isinstance(value, int) or (math.isfinite(value) and value.is_integer())
        return None if value != value else "n" + repr(int(value) if whole else float(value))
    if isinstance(value, str):
        text = "s" + json.dumps(str(value))
        return text if len(text) <= 200 else "h" + hashlib.sha256(text.encode()).hexdigest()
    return None


def key_text(document: Document, fields: Iterable[str]) -> str:
    """Return a fixed-length text of the values of a unique index.

    A missing field counts as None.
    """
    values = [lookup(document, field) for field in fields]
    texts = [index_text(v) if v is not MISSING else "null" for v in values]
    parts = [t if t is not None else encode({"": v})[0] for t, v in zip(texts, values, strict=True)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def lookup(document: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key, or MISSING.

    A key that itself contains dots is found, too.
    """
    if key in document:
        return document[key]
    at = key.find(".")
    while at >= 0:
        inner = document.get(key[:at])
        if isinstance(inner, Mapping) and (value := lookup(inner, key[at + 1 :])) is not MISSING:
            return value
        at = key.find(".", at + 1)
    return MISSING


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def test(stored: Any, value: Any) -> bool:
        try:
            return stored is not None and bool(compare(stored, value))
        except TypeError:  # e.g. a number and a datetime, which have no order
            return False

    return test


OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda stored, value: bool(stored == value),
    "$ne": lambda stored, value: bool(stored != value),
    "$in": lambda stored, value: stored in value,
    "$gte": _ordered(ge),
    "$gt": _ordered(gt),
    "$lte": _ordered(le),
    "$lt": _ordered(lt),
}


class Query:
    """A query: conditions that must all hold.

    ``{"a.b": 1, "c": {"$lte": 2}}`` has two conditions. None matches all documents.
    """

    def __init__(self, query: Mapping[str, Any] | None):
        self.conditions = list(_conditions(query or {}, ""))

    def matches(self, document: Document) -> bool:
        """Return whether all conditions hold.

        No condition, not even $ne, holds for a missing key, as in Orion's own database.
        """
        comparisons = ((lookup(document, key), operator, value) for key, operator, value in self.conditions)
        return all(
            stored is not MISSING and OPERATORS[operator](stored, value) for stored, operator, value in comparisons
        )


def _conditions(query: Mapping[str, Any], path: str) -> Iterator[tuple[str, str, Any]]:
    """Yield the dotted key, operator and value of each condition."""
    for key, value in query.items():
        *parents, last = key.split(".")
        name = ".".join(filter(None, [path, *parents]))
        if last.startswith("$"):
            if last not in OPERATORS:
                raise DocumentError(
                    f"a query knows the operators {', '.join(OPERATORS)}, but got {last!r} at {name!r}"
                    f"{near(last, OPERATORS)}"
                )
            yield name, last, value
        elif isinstance(value, Mapping) and value:
            yield from _conditions(value, f"{path}.{key}" if path else key)
        else:
            yield f"{path}.{key}" if path else key, "$eq", value


def select(document: Document, selection: Mapping[str, Any] | None) -> Document:
    """Return a projection: ``{key: 1}`` keeps keys, ``{key: 0}`` drops them.

    ``_id`` stays unless it is dropped.
    """
    flat = {key: bool(value) for key, _, value in _conditions(selection or {}, "")}
    with_id = flat.pop("_id", None)
    if len(set(flat.values())) > 1:
        raise DocumentError(f"a projection keeps keys or drops them, but this one does both: {dict(selection or {})}")
    keep = any(flat.values()) if flat else bool(with_id)
    if not keep:
        chosen = document
        for key in flat:
            chosen = _without(chosen, key)
    else:
        chosen = {}
        for key in flat:
            if (value := lookup(document, key)) is not MISSING:
                put(chosen, key, value)
    chosen = {key: value for key, value in chosen.items() if key != "_id"}
    return chosen if with_id is False else {**chosen, "_id": document["_id"]}


def _without(document: Document, key: str) -> Document:
    if key in document:
        return {k: v for k, v in document.items() if k != key}
    head, _, rest = key.partition(".")
    inner = document.get(head)
    return {**document, head: _without(inner, rest)} if rest and isinstance(inner, dict) else document


def put(document: Document, key: str, value: Any) -> None:
    """Set the value at a dotted key, creating dicts where needed."""
    if key in document or "." not in key:
        document[key] = value
        return
    head, _, rest = key.partition(".")
    if not isinstance(document.get(head), dict):
        document[head] = {}
    put(document[head], rest, value)


def assign(document: Document, data: Mapping[str, Any]) -> None:
    """Set the keys of ``data`` (MongoDB's ``$set``); ``_id`` never changes."""
    for key, value in data.items():
        if key == "_id" and value != document["_id"]:
            raise DocumentError(f"the _id of a document never changes, but {document['_id']!r} was to become {value!r}")
        put(document, key, value)
