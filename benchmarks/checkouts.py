"""Run code of these benchmarks on another checkout of Rekindle."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def importable(checkout: Path, script: str) -> Iterator[dict[str, str]]:
    """The environment of a process that imports `rekindle` from a checkout, and a script of this folder by its name.

    The checkout always has the same path there, since machine code of kernels is kept by the path of their sources.

    Raises SystemExit if the folder is no checkout.
    """
    if not (checkout / "__init__.py").is_file():
        raise SystemExit(f"{checkout} must be the root of a checkout, but has no __init__.py")
    target = checkout.resolve()
    package = Path(tempfile.gettempdir()) / f"rekindle-{hashlib.sha256(str(target).encode()).hexdigest()[:16]}"
    package.mkdir(exist_ok=True)
    with suppress(FileExistsError):
        (package / "rekindle").symlink_to(target, target_is_directory=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / Path(script).name).symlink_to(Path(script).resolve())
        path = os.pathsep.join([folder, str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
        yield {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
