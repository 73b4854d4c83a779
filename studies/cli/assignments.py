"""``--set @FILE``: hyperparameters from a JSON file, as ``rekindle show --json`` and ``train --json`` print them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...spaces import SpaceError, flatten


def spelled_out(assignments: Sequence[str]) -> list[str]:
    """``NAME=VALUE`` for each hyperparameter of each ``@FILE``, but for those that are named beside it.

    A file holds hyperparameters, nested or by dotted name, or an object that has them under "hyperparameters".
    ValueError names a file that holds none.
    """
    plain = [text for text in assignments if not text.startswith("@")]
    said = {text.partition("=")[0].strip() for text in plain}
    found: dict[str, Any] = {}
    for text in assignments:
        if text.startswith("@"):
            found |= _of_file(Path(text[1:]))  # a later file comes on top of those before
    return [*(f"{name}={json.dumps(value)}" for name, value in found.items() if name not in said), *plain]


def _of_file(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"--set @{path} must be a file of JSON, but: {error}") from None
    if isinstance(content, Mapping) and isinstance(content.get("hyperparameters"), Mapping):
        content = content["hyperparameters"]
    try:
        return flatten(content)
    except SpaceError as error:
        raise ValueError(f"--set @{path} must hold hyperparameters by name, but: {error}") from None
