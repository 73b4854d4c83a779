"""Run code of these benchmarks on another checkout of Rekindle."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def importable(checkout: Path, script: str) -> Iterator[dict[str, str]]:
    """The environment of a process that imports `rekindle` from a checkout, and a script of this folder by its name.

    Raises SystemExit if the folder is no checkout.
    """
    if not (checkout / "__init__.py").is_file():
        raise SystemExit(f"{checkout} must be the root of a checkout, but has no __init__.py")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "rekindle").symlink_to(checkout.resolve(), target_is_directory=True)
        (Path(folder) / Path(script).name).symlink_to(Path(script).resolve())
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        yield {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
