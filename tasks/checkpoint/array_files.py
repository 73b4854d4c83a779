"""Archives of arrays (.npz), read without running any code of theirs."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.lib.npyio import NpzFile


@contextmanager
def open_npz(path: str | os.PathLike[str]) -> Iterator[NpzFile]:
    """Open an archive of arrays.

    Raises:
        ValueError: the file is none. NumPy would take it for a pickle, and say how to run it.
    """
    with open(path, "rb") as data:  # np.load alone leaves bad ones open
        if not zipfile.is_zipfile(data):
            raise ValueError("it is no .npz file")
        data.seek(0)
        with np.load(data, allow_pickle=False) as file:
            yield file
