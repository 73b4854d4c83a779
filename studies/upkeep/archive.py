"""A file of named parts: a zip whose parts are stored as they are, the same bytes for the same content.

Nothing is compressed, so that nothing can unfold to more than the file holds; nothing is unpacked, so that no name
leads anywhere. A file from elsewhere is looked over before a byte of it is used.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Self

from ..errors import StoreError

INDEX = "study.json"
PARTS = ("trials", "segments", "tasks", "checkpoints", "metrics", "events")
_NAME = re.compile(rf"{re.escape(INDEX)}|({'|'.join(PARTS)})\.jsonl|(manifests|blobs)/[0-9a-f]{{64}}")
_EPOCH = (1980, 1, 1, 0, 0, 0)
LARGEST = 1 << 30  # bytes of a blob: what SQLite takes
LONGEST_LINE = 64 << 20
PIECE = 1 << 20
_DAMAGE = (zipfile.BadZipFile, NotImplementedError, RuntimeError, struct.error, EOFError, ValueError, OverflowError)


class BadArchive(StoreError, ValueError):
    """A file is not an exported study, or not whole."""


class Writer:
    """Writes a file under another name, which it takes when all is written."""

    def __init__(self, path: Path):
        self.path, self._part = path, path.with_name(f".{path.name}.{os.getpid()}.part")

    def __enter__(self) -> Self:
        try:
            self._zip = zipfile.ZipFile(self._part, "w", zipfile.ZIP_STORED)
        except OSError as error:
            raise StoreError(
                f"cannot write {self.path}: {error.strerror}; name a file in a directory that is there "
                "and may be written"
            ) from None
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self._zip.close()
            if kind is None:
                os.replace(self._part, self.path)
        finally:
            self._part.unlink(missing_ok=True)

    def lines(self, name: str, lines: Iterable[bytes]) -> tuple[str, int]:
        """Writes a part line by line; its sha256, and how many lines."""
        hashed, count = hashlib.sha256(), 0
        with self._zip.open(_info(name), "w", force_zip64=True) as file:
            for line in lines:
                file.write(line + b"\n")
                hashed.update(line + b"\n")
                count += 1
        return hashed.hexdigest(), count

    def data(self, name: str, data: bytes) -> None:
        """Writes a part at once."""
        self._zip.writestr(_info(name), data)


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr = 3, 0o600 << 16  # as on Unix, also elsewhere
    return info


class Archive(Mapping[str, bytes]):
    """A file of parts that is read; as a mapping, its blobs by their digests, each checked whenever it is read."""

    def __init__(self, path: Path):
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except OSError as error:
            raise BadArchive(f"cannot read {path}: {error.strerror or error}; check the path and the rights") from None
        except _DAMAGE as error:
            raise self.bad(f"it cannot be opened: {error}") from None
        try:
            self._sizes = self._looked_over()
        except BaseException:
            self._zip.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def bad(self, what: str) -> BadArchive:
        """The error that says so."""
        return BadArchive(
            f"{self.path} must be a whole file that `rekindle export` wrote, but {what[:300]}; "
            "export the study again, or copy the file again"
        )

    def _looked_over(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for info in self._zip.infolist():
            if not _NAME.fullmatch(info.filename):
                raise self.bad(f"it has a part {info.filename[:80]!r}")
            if info.filename in sizes:
                raise self.bad(f"it has two parts {info.filename}")
            if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size or info.flag_bits & 1:
                raise self.bad(f"its part {info.filename} is compressed or encrypted")
            if info.file_size > LARGEST and not info.filename.endswith(".jsonl"):
                raise self.bad(f"its part {info.filename} has {info.file_size:,} bytes")
            sizes[info.filename] = info.file_size
        if sum(sizes.values()) > self.path.stat().st_size:
            raise self.bad("its parts are larger than the file")
        missing = [name for name in (INDEX, *(f"{part}.jsonl" for part in PARTS)) if name not in sizes]
        if missing:
            raise self.bad(f"it lacks {', '.join(missing)}")
        return sizes

    def names(self, folder: str) -> set[str]:
        """The digests of the parts in ``manifests`` or ``blobs``."""
        return {name.partition("/")[2] for name in self._sizes if name.startswith(f"{folder}/")}

    def read(self, name: str) -> bytes:
        """A part, whole."""
        if self._sizes.get(name, LARGEST + 1) > LARGEST:
            raise self.bad(f"it has no part {name} of a sensible size")
        try:
            return self._zip.read(name)
        except (*_DAMAGE, OSError) as error:
            raise self.bad(f"its part {name} cannot be read: {error}") from None

    def checked(self, folder: str, digest: str) -> bytes:
        """The part that this digest names."""
        data = self.read(f"{folder}/{digest}")
        if hashlib.sha256(data).hexdigest() != digest:
            raise self.bad(f"its part {folder}/{digest[:12]} does not have the sha256 that names it")
        return data

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a part."""
        try:
            with self._zip.open(name) as file:
                while line := file.readline(LONGEST_LINE):
                    if not line.endswith(b"\n"):
                        raise self.bad(f"{name} has a line without an end")
                    yield line
        except BadArchive:
            raise
        except (*_DAMAGE, OSError) as error:
            raise self.bad(f"its part {name} cannot be read: {error}") from None

    def check_blob(self, digest: str) -> None:
        """Reads a blob in pieces; BadArchive if its bytes are not those that its name says."""
        hashed = hashlib.sha256()
        try:
            with self._zip.open(f"blobs/{digest}") as file:
                while piece := file.read(PIECE):
                    hashed.update(piece)
        except (*_DAMAGE, OSError) as error:
            raise self.bad(f"its blob {digest[:12]} cannot be read: {error}") from None
        if hashed.hexdigest() != digest:
            raise self.bad(f"its blob {digest[:12]} does not have the sha256 that names it")

    def __getitem__(self, digest: str) -> bytes:
        return self.checked("blobs", digest)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self.names("blobs")))

    def __len__(self) -> int:
        return len(self.names("blobs"))
