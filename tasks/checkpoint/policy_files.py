"""Policies in files: weights only, so training cannot resume from them.

Safetensors is written; .npz, .npy, .safetensors and .zip of Stable-Baselines3 are read.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file
from safetensors.torch import save as save_safetensors
from torch import Tensor

from ..errors import StateMismatch
from .array_files import open_npz
from .sb3_files import import_policy

LABEL = "weights only, not resumable: optimizers, counters, random streams and environments are not in it"
_DAMAGE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, SafetensorError)


def write_policy(path: str | os.PathLike[str], policy: Mapping[str, Tensor], about: Mapping[str, Any]) -> Path:
    """Write a policy and its metadata as safetensors, atomically.

    Raises:
        ValueError: the file's name does not end in .safetensors.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(
            f"a policy is written in safetensors form, but got the name {path.name!r}; call it "
            f"{path.with_suffix('.safetensors').name}"
        )
    metadata = {"rekindle": "policy", "contents": LABEL, **{name: str(value) for name, value in about.items()}}
    data = save_safetensors({name: tensor.contiguous() for name, tensor in policy.items()}, metadata)
    return write_whole(path, _in_order(data))


def _in_order(data: bytes) -> bytes:
    """Return a safetensors file with its metadata in order.

    The library writes them in another order each time, but equal policies are equal files.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # so that tensors stay aligned
    return len(text).to_bytes(8, "little") + text + data[end:]


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file atomically, and create its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_whole(path, data)
    return path


def replace_whole(path: Path, data: bytes) -> None:
    """Write a file atomically, or to a device such as /dev/stdout."""
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def read_policy(path: Any, subject: str) -> Any:
    """Return the arrays in a file by name, or its only array.

    No code from the file is run.

    Raises:
        StateMismatch: the file is missing, damaged or of another form; the message begins with `where`.
    """
    if not isinstance(path, str | os.PathLike):
        raise StateMismatch(
            f"{subject}: a warm start is taken from a task, a state, a policy, a vector or a file, but "
            f"got a {type(path).__name__}"
        )
    path = Path(path)
    readers: dict[str, Callable[[Path], Any]] = {".npz": _npz, ".npy": _npy, ".safetensors": load_file, ".zip": _sb3}
    if path.suffix not in readers:
        raise StateMismatch(f"{subject}: a policy is read from a file of the form {', '.join(readers)}, but got {path}")
    if not path.is_file():
        raise StateMismatch(
            f"{subject}: a warm start needs its source, but there is no file {path}; a task that has "
            "begun resumes without: init(start=...) with the digest in its identity"
        )
    try:
        return readers[path.suffix](path)
    except _DAMAGE as error:
        raise StateMismatch(f"{subject}: {path} must be a whole {path.suffix} file of arrays, but: {error}") from None


def metadata_of(path: Path) -> Mapping[str, str]:
    """Return the metadata of a policy's file; {} without any."""
    if path.suffix != ".safetensors" or not path.is_file():
        return {}
    try:
        with safe_open(path, "numpy") as file:
            return file.metadata() or {}
    except _DAMAGE:
        return {}  # `read_policy` says what is wrong


def _sb3(path: Path) -> Any:
    return import_policy(path).policy


def _npy(path: Path) -> Any:
    with open(path, "rb") as data:
        return np.lib.format.read_array(data, allow_pickle=False)


def _npz(path: Path) -> Any:
    """Return all arrays by name; a single vector is returned by itself."""
    with open_npz(path) as file:
        arrays = {name: file[name] for name in file.files}
    only = next(iter(arrays.values())) if len(arrays) == 1 else None
    return only if only is not None and only.ndim == 1 else arrays
