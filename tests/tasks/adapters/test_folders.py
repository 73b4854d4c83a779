"""Folders as state: what is stored, what comes back, and how little of a large file is written."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from rekindle.tasks.adapters.folders import PREFIX, Folder
from rekindle.tasks.checkpoint.chunks import CHUNK
from rekindle.tasks.checkpoint.state import Packed, pack, unpack
from rekindle.tasks.errors import NotData, StateMismatch


def packed(folder: Folder) -> Packed:
    return pack(folder.member_state(0))


def loaded(content: Packed, blobs: Mapping[str, bytes] | None = None) -> Folder:
    folder = Folder()
    folder.load_member(0, unpack(content.manifest, (blobs or content.blobs).__getitem__))
    return folder


def listing(place: Path) -> dict[str, object]:
    return {
        str(path.relative_to(place)): os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in sorted(place.rglob("*"))
    }


def test_files_links_and_folders_come_back() -> None:
    folder = Folder()
    (folder.work / "deep" / "empty").mkdir(parents=True)
    (folder.work / "deep" / "data").write_bytes(bytes(range(256)) * 10_000)
    (folder.work / "nothing").touch()
    (folder.work / "run.sh").write_text("x")
    (folder.work / "run.sh").chmod(0o755)
    (folder.work / "latest").symlink_to("deep/data")
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder.work / "socket"))
    server.close()
    folder.keep()
    (folder.work / "socket").unlink()
    again = loaded(packed(folder))
    assert listing(again.work) == listing(folder.work)
    assert (again.work / "run.sh").stat().st_mode & 0o777 == 0o755
    assert packed(again).digest == packed(folder).digest


def test_files_with_larger_numbers_are_newer_after_a_resume() -> None:
    """A program that takes the newest checkpoint takes the last one, on this machine and on another."""
    folder = Folder()
    for step in (2, 9, 10, 100):
        (folder.work / f"step-{step}").mkdir()
        (folder.work / f"step-{step}" / "model.pt").write_bytes(bytes(step))
        (folder.work / f"{step}.pt").write_bytes(bytes(step))
    folder.keep()
    folder.restore()
    for restored in (folder, loaded(packed(folder))):
        for pattern, last in (("*.pt", "100.pt"), ("step-*", "step-100"), ("*/model.pt", "step-100/model.pt")):
            newest = max(restored.work.glob(pattern), key=lambda path: int(path.stat().st_mtime))
            assert newest == restored.work / last


def test_changes_after_the_last_copy_are_undone() -> None:
    folder = Folder()
    (folder.work / "model").write_text("whole")
    (folder.work / "gone").write_text("x")
    folder.keep()
    before = listing(folder.work)
    (folder.work / "model").write_text("ha")
    (folder.work / "gone").unlink()
    (folder.work / "model.tmp").write_text("half")
    folder.restore()
    assert listing(folder.work) == before


def test_a_path_may_change_its_kind_and_files_disappear() -> None:
    folder = Folder()
    (folder.work / "a").write_text("file")
    (folder.work / "b").mkdir()
    (folder.work / "b" / "c").write_text("c")
    folder.keep()
    (folder.work / "a").unlink()
    (folder.work / "a").mkdir()
    (folder.work / "a" / "x").write_text("x")
    (folder.work / "b" / "c").unlink()
    (folder.work / "b").rmdir()
    (folder.work / "b").symlink_to("a")
    folder.keep()
    assert listing(folder.kept) == listing(folder.work)
    assert listing(loaded(packed(folder)).work) == listing(folder.work)


def test_only_changed_chunks_of_a_large_file_are_new() -> None:
    folder = Folder()
    data = torch.arange(64 * CHUNK // 8).numpy().tobytes()
    place = folder.work / "weights"
    place.write_bytes(data)
    folder.keep()
    first = packed(folder)
    stored = dict(first.blobs)
    with place.open("r+b") as file:  # less than 1% of it, at one place
        file.seek(10 * CHUNK + 5)
        file.write(b"changed")
    folder.keep()
    second = packed(folder)
    new = {name: data for name, data in second.blobs.items() if name not in stored}
    assert sum(map(len, new.values())) <= 0.03 * len(data)
    assert sum(name is None for name in folder._digests["weights"]) == 0
    assert loaded(second, {**stored, **new}).work.joinpath("weights").read_bytes() == place.read_bytes()
    fresh = Folder()
    (fresh.work / "weights").write_bytes(place.read_bytes())
    fresh.keep()
    assert packed(fresh).digest == second.digest


@pytest.mark.parametrize("size", [0, 1, CHUNK, 2 * CHUNK, 3 * CHUNK + 7, 5 * CHUNK])
def test_a_file_that_grows_or_shrinks_is_stored_as_a_new_one(size: int) -> None:
    folder = Folder()
    for length in (3 * CHUNK + 5, size, size + CHUNK):
        (folder.work / "log").write_bytes(b"ab" * (length // 2) + b"c" * (length % 2))
        folder.keep()
        fresh = Folder()
        (fresh.work / "log").write_bytes((folder.work / "log").read_bytes())
        fresh.keep()
        assert packed(folder).digest == packed(fresh).digest


def test_a_folder_that_its_program_removed_is_named() -> None:
    folder = Folder()
    folder.work.rmdir()
    with pytest.raises(NotData, match=r"a program keeps its checkpoint folder, but removed .*; remove only what is in"):
        folder.keep()


def test_a_name_that_is_no_text_is_refused() -> None:
    folder = Folder()
    Path(os.fsdecode(os.fsencode(folder.work) + b"/\xff")).touch()
    with pytest.raises(NotData, match="names of stored files are UTF-8, but a program wrote"):
        folder.keep()


@pytest.mark.parametrize(
    "tree",
    [
        {"form": '[["../x","file",420]]', "files": {"0": torch.zeros(1, dtype=torch.uint8)}},
        {"form": '[["/tmp/x","file",420]]', "files": {"0": torch.zeros(1, dtype=torch.uint8)}},
        {"form": '[["a","link","/tmp"],["a/x","file",420]]', "files": {"1": torch.zeros(1, dtype=torch.uint8)}},
        {"form": '[["x","file",420]]', "files": {}},
        {"form": "1"},
    ],
)
def test_a_stored_folder_stays_in_its_place(tree: dict[str, object]) -> None:
    with pytest.raises(StateMismatch, match="a stored folder must have files by path, but"):
        Folder().load_member(0, tree)
    assert not Path("/tmp/x").exists()


def test_folders_of_killed_processes_are_removed() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    stale = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{child.pid}-"))
    folder = Folder()
    assert not stale.exists()
    Folder()
    assert folder.root.exists()
