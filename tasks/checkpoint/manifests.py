"""The manifest of a packed state: plain values and names of blobs."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NamedTuple

from ..errors import DamagedState, StateMismatch
from .strict_json import DEPTH, parse

FORMAT = 1
DIGEST = re.compile("[0-9a-f]{64}")
SPECIAL = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_LAW = "a checkpoint's manifest must be JSON with format, values, segments and tensors"


class Manifest(NamedTuple):
    """The contents of a manifest.

    Attributes:
        values: leaves that are not tensors, by path.
        chunks: digests of the chunks of each large tensor, by path.
        tensors: digest of the blob with all other tensors; None if there are none.
    """

    values: dict[str, Any]
    chunks: dict[str, list[str]]
    tensors: str | None

    def blobs(self) -> set[str]:
        """Return the digests of all blobs."""
        parts = {name for names in self.chunks.values() for name in names}
        return parts if self.tensors is None else parts | {self.tensors}


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces.

    Equal values give equal bytes. NaN and infinity raise ValueError.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode()


def read_manifest(manifest: bytes) -> Manifest:
    """Parse and check a manifest.

    Raises:
        DamagedState: it is not a manifest.
        StateMismatch: it has another format.
    """
    try:
        content = parse(manifest)
        version, values, chunks, tensors = (content[k] for k in ("format", "values", "segments", "tensors"))
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedState(f"{_LAW}: {error}") from None
    if version != FORMAT or isinstance(version, bool):
        raise StateMismatch(
            f"a checkpoint must have format {FORMAT}, but got {str(version)[:40]!r}; use the Rekindle that wrote it"
        )
    if not (
        isinstance(values, dict)
        and isinstance(chunks, dict)
        and (tensors is None or _are_digests([tensors]))
        and all(_are_digests(names) for names in chunks.values())
    ):
        raise DamagedState(f"{_LAW}, each of its own type, but one of them is of another")
    check_paths([*values, *chunks])
    try:
        return Manifest({path: _special(leaf) for path, leaf in values.items()}, chunks, tensors)
    except ValueError as error:
        raise DamagedState(f"{_LAW}: {error}") from None


def is_within_epoch(manifest: bytes) -> bool:
    """Return whether a manifest's state lies within an epoch.

    Signals cause such states. The result is False for anything that is not a manifest, since other checks report that.
    """
    try:
        values = json.loads(manifest)["values"]
        return any(values.get(name) for name in ("learner/tally/count", "learner/particles/0/tally/count"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return False


def check_paths(paths: list[str]) -> None:
    """Raise DamagedState if a path is deeper than any state's."""
    for path in paths:
        if path.count("/") >= DEPTH:
            raise DamagedState(f"a path in a state has fewer than {DEPTH} steps, but one begins with {path[:40]!r}")


def _are_digests(names: Any) -> bool:
    return (
        isinstance(names, list)
        and bool(names)
        and all(isinstance(name, str) and DIGEST.fullmatch(name) for name in names)
    )


def _special(leaf: Any) -> Any:
    if isinstance(leaf, list):
        return [_special(item) for item in leaf]
    if isinstance(leaf, dict) and leaf:
        name, text = leaf.get("float"), leaf.get("json")
        if len(leaf) == 1 and isinstance(text, str):
            return parse(text.encode())
        if len(leaf) > 1 or not isinstance(name, str) or name not in SPECIAL:
            raise ValueError(f"a value must be a number, a string, null or {{'float': 'nan'}}, not {str(leaf)[:80]}")
        return SPECIAL[name]
    return leaf
