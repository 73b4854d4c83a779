"""Archives of arrays: errors for other files, and no code from a file is run."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from rekindle.tasks.checkpoint.array_files import open_npz


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.arange(3), b=np.ones(2))
    with open_npz(tmp_path / "x.npz") as file:
        assert (file.files, file["a"].tolist()) == (["a", "b"], [0, 1, 2])


@pytest.mark.parametrize("content", [b"", b"study,trial\n", b"SQLite format 3\x00" + bytes(200), pickle.dumps([1])])
def test_another_file_is_no_archive_and_nobody_is_told_to_run_it(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"^it is no \.npz file$"), open_npz(tmp_path / "x.npz"):
        pass


def test_objects_in_an_archive_are_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> object:
            return Path.touch, (tmp_path / "ran",)

    np.savez(tmp_path / "x.npz", a=np.array([Evil()], object))
    with open_npz(tmp_path / "x.npz") as file, pytest.raises(ValueError, match="Object arrays cannot be loaded"):
        file["a"]
    assert not (tmp_path / "ran").exists()
