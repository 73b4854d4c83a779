"""JSON from untrusted sources: plain data of limited depth, or an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

DEPTH = 64  # levels of nesting; deeper than anything that is ever written, and far from a stack overflow
HIGH = "\\ud"  # start of an escaped lone surrogate, which is not a character and cannot be written to a file


def parse(text: str | bytes, object_hook: Callable[[dict[str, Any]], Any] | None = None) -> Any:
    """Return the value of JSON text, or of its UTF-8 bytes.

    Raises:
        ValueError: it is not JSON, is too deep, or contains lone surrogates.
    """
    if isinstance(text, bytes | bytearray):
        text = text.decode()  # json.loads would guess at UTF-16 and UTF-32
    try:
        value = _decoder(object_hook).decode(text)
    except RecursionError:
        raise ValueError(f"JSON nested too deep: {DEPTH} levels are allowed") from None
    if text.count("[") + text.count("{") > DEPTH:
        check_depth(value)
    if HIGH in text.lower():
        json.dumps(value, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
    return value


def check_depth(value: Any) -> None:
    """Raise ValueError if lists and dicts are nested deeper than DEPTH.

    The check does not recurse.
    """
    level = [value]
    for _ in range(DEPTH):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        if not below:
            return
        level = below
    raise ValueError(f"JSON nested too deep: {DEPTH} levels are allowed")


@cache
def _decoder(object_hook: Callable[[dict[str, Any]], Any] | None) -> json.JSONDecoder:
    """Return the decoder, which `json.loads` would create for each text."""
    return json.JSONDecoder(object_hook=object_hook, parse_constant=_refuse)


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
