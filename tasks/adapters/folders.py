"""A folder as part of a state.

Only what has changed is copied, hashed and stored.

A program writes into `work`. At points where its checkpoint is whole, the folder is copied into `kept`, chunk by chunk
where they differ; states are taken from there. So a program that was killed while it wrote starts again from `kept`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from ..checkpoint.chunks import CHUNK, Chunked
from ..checkpoint.state import Tree
from ..errors import NotData, StateMismatch

PREFIX = "rekindle-program-"  # of temporary folders, before the process that uses one
RACY = 1.0  # seconds after a change in which a further one may leave the file's time as it is
Signature = tuple[int, ...]


class Folder:
    """A folder as a part of a learner.

    Attributes:
        root: temporary folder of both copies; removed with this object.
        work: folder of the program.
        kept: the folder as it was when `keep` was called last, or as it was loaded.
    """

    checks_form = True  # its files change during training
    scratch = ("_digests", "_signatures")

    def __init__(self) -> None:
        _remove_left()
        self.root = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        weakref.finalize(self, shutil.rmtree, self.root, ignore_errors=True)
        self.work, self.kept = self.root / "checkpoint", self.root / "kept"
        self.work.mkdir()
        self.kept.mkdir()
        self._digests: dict[str, list[str | None]] = {}  # of the chunks of each large file in kept
        self._signatures: dict[str, Signature] = {}  # of the files in work that kept has

    def keep(self) -> None:
        """Copy what has changed in `work` into `kept`.

        Raises:
            NotData: the program removed the folder, or a name is not UTF-8.
        """
        if not self.work.is_dir():
            raise NotData(f"a program keeps its checkpoint folder, but removed {self.work}; remove only what is in it")
        entries = _entries(self.work)
        for path in [*_entries(self.kept)]:
            if path not in entries or entries[path] != _kind(self.kept / path):
                _remove(self.kept / path)
                self._forget(path)
        for path, entry in entries.items():
            source, target = self.work / path, self.kept / path
            if entry == "folder":
                target.mkdir(exist_ok=True)
            elif entry == "link":
                if not target.is_symlink() or os.readlink(target) != os.readlink(source):
                    _remove(target)
                    target.symlink_to(os.readlink(source))
            elif self._signatures.get(path) != (signature := _signature(source)):
                self._copy(path)
                recent = time.time_ns() - signature[1] < RACY * 1e9
                self._signatures[path] = () if recent else signature

    def restore(self) -> None:
        """Make `work` equal to `kept`.

        Programs may look for the newest checkpoint. The times of files are not stored, so those whose names have larger
        numbers become newer, a second each.
        """
        _remove(self.work)
        shutil.copytree(self.kept, self.work, symlinks=True)
        paths = sorted(_entries(self.work), key=_by_numbers)
        began = time.time() - len(paths)
        for place, path in enumerate(paths):
            os.utime(self.work / path, (began + place, began + place), follow_symlinks=False)
        self._signatures = {}

    def member_state(self, member: int) -> Tree:
        form, files = [], dict[str, Tensor | Chunked]()
        for path, entry in _entries(self.kept).items():
            target = self.kept / path
            about = os.readlink(target) if entry == "link" else target.stat().st_mode & 0o777 if entry == "file" else ""
            form.append([path, entry, about])
            if entry == "file":
                data = _mapped(target)
                large = len(data) > CHUNK
                chunked = Chunked(data, self._digests.setdefault(path, []), len(data)) if large else data
                files[str(len(form) - 1)] = chunked
        return {"form": json.dumps(form, ensure_ascii=False), "files": files}

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        _remove(self.kept)
        self.kept.mkdir()
        self._digests = {}
        try:
            for index, (path, entry, about) in enumerate(json.loads(tree["form"])):
                target = self.kept / path
                if (
                    ".." in Path(path).parts
                    or Path(path).is_absolute()
                    or not target.parent.resolve().is_relative_to(self.kept.resolve())
                ):
                    raise ValueError(f"{path} leads out of the folder")
                if entry == "folder":
                    target.mkdir()
                elif entry == "link":
                    target.symlink_to(about)
                else:
                    leaf = tree["files"][str(index)]
                    tensor = leaf.tensor if isinstance(leaf, Chunked) else leaf
                    target.write_bytes(tensor.numpy().data)
                    target.chmod(about)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise StateMismatch(f"a stored folder must have files by path, but: {error}") from None
        self.restore()

    def _copy(self, path: str) -> None:
        """Copy a file into `kept`, and forget digests that change."""
        source, target = self.work / path, self.kept / path
        mode, before = source.stat().st_mode & 0o777, target.stat().st_size if target.exists() else 0
        digests = self._digests.get(path, [])
        target.touch()
        target.chmod(0o600)
        with source.open("rb") as new, target.open("r+b") as old:
            index = 0
            while chunk := new.read(CHUNK):
                if old.read(len(chunk)) != chunk:
                    old.seek(index * CHUNK)
                    old.write(chunk)
                    if index < len(digests):
                        digests[index] = None
                index += 1
            size = new.tell()
            old.truncate(size)
        target.chmod(mode | 0o400)
        if size != before:
            whole = min(size, before) // CHUNK  # chunks that neither end has cut
            self._digests[path] = [*digests[:whole], *[None] * (-(-size // CHUNK) - min(whole, len(digests)))]

    def _forget(self, path: str) -> None:
        self._digests.pop(path, None)
        self._signatures.pop(path, None)


def _remove_left() -> None:
    """Remove the temporary folders of processes that were killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = path.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _entries(folder: Path) -> dict[str, str]:
    """Return the kinds of files, links and folders by path.

    A folder comes before its content. Sockets and pipes are left out.
    """
    entries: dict[str, str] = {}
    for path in _walk(folder, ""):
        try:
            path.encode()
        except UnicodeEncodeError:
            raise NotData(f"names of stored files are UTF-8, but a program wrote {path!r}; rename it") from None
        if entry := _kind(folder / path):
            entries[path] = entry
    return entries


def _walk(folder: Path, below: str) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = f"{below}{entry.name}"
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder / entry.name, f"{path}/")


def _by_numbers(path: str) -> list[tuple[int, str]]:
    """Return a key that sorts step-9 before step-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", path)]


def _kind(path: Path) -> str:
    if path.is_symlink():
        return "link"
    return "folder" if path.is_dir() else "file" if path.is_file() else ""


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _signature(path: Path) -> Signature:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino


def _mapped(path: Path) -> Tensor:
    """Return a file's bytes, which are read when they are used."""
    size = path.stat().st_size
    return torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8) if size else torch.empty(0).byte()
