"""Functions that write observations into arrays of numbers."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from .envs import Array
from .images import MixedShape, Writer, is_image
from .joined import Path, Space, leaves
from .space_rules import broken_rule, is_text

TEXT = 64  # numbers of a text


def size_of(space: Space) -> int:
    """Return how many numbers represent an observation of a space without parts."""
    return TEXT if is_text(space) else spaces.flatdim(space)


def vector_writer(space: Space) -> Writer:
    """Return a function (observation, out) that fills a vector of zeros.

    It raises ValueError if the observation has another size, or a choice lies out of range.
    """
    if is_text(space):
        return _write_text
    if isinstance(space, spaces.Discrete):
        return _one_hot_writer(space)
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hots_writer(space)
    return _flat_writer(space)


def _one_hot_writer(space: spaces.Discrete) -> Writer:
    start, number = int(space.start), int(space.n)

    def write(value: Any, out: Array) -> None:
        try:
            index = operator.index(value) - start
        except TypeError:  # an array of one number, or a float
            index = operator.index(_whole(np.asarray(value).item())) - start
        if not 0 <= index < number:
            raise ValueError(f"{index + start} is out of range")
        out[index] = 1

    return write


def _one_hots_writer(space: spaces.MultiDiscrete) -> Writer:
    sizes, first = space.nvec.reshape(-1), space.start.reshape(-1)
    offset = np.concatenate(([0], np.cumsum(sizes)[:-1]))

    def write(value: Any, out: Array) -> None:
        numbers = np.asarray(value).reshape(-1)
        if len(numbers) != len(sizes):
            raise ValueError(f"there are {len(numbers)} choices instead of {len(sizes)}")
        indices = numbers.astype(np.int64) - first
        if numbers.dtype.kind == "f" and (indices + first != numbers).any():
            raise ValueError(f"{value} is not whole")
        if (indices < 0).any() or (indices >= sizes).any():
            raise ValueError(f"{value} is out of range")
        out[indices + offset] = 1

    return write


def _flat_writer(space: Space) -> Writer:
    def write(value: Any, out: Array) -> None:
        array = np.asarray(value)
        if array.shape != space.shape and (broken := broken_rule(space, array)) is not None:
            raise ValueError(f"it must {broken[0]}")
        if array.itemsize > out.itemsize:
            _narrow(array, out)
        else:
            out[:] = array.reshape(-1)

    return write


@np.errstate(over="ignore")  # above 3e38 they become infinite, which is an error of its own
def _narrow(array: Array, out: Array) -> None:
    """Copy numbers that have more bytes."""
    out[:] = array.reshape(-1)


@np.errstate(over="ignore")
def _join(arrays: list[Array], out: Array) -> None:
    """Copy the numbers of all arrays, as `_narrow` does."""
    np.concatenate(arrays, axis=None, out=out, casting="unsafe")


def _write_text(value: Any, out: Array) -> None:
    if not isinstance(value, str):
        raise ValueError("it must be a text")
    words = value.lower().split()
    for part in (*words, *(" ".join(pair) for pair in pairwise(words))):
        out[zlib.crc32(part.encode()) % TEXT] += 1


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, bool | float) and number == int(number) else number


def parts_writer(parts: list[tuple[Path, Writer, slice]], space: Space) -> Writer:
    """Return a function that fills a vector with parts of an observation."""

    def write(value: Any, out: Array) -> None:
        for path, writer, columns in parts:
            writer(part_of(value, path), out[columns])

    leaf_spaces = [leaf for _, leaf in leaves(space)]
    if not all(isinstance(leaf, spaces.Box) and not is_image(leaf) for leaf in leaf_spaces):
        return write
    shapes, gather = [leaf.shape for leaf in leaf_spaces], _gatherer(space)

    def write_arrays(value: Any, out: Array) -> None:
        """Copy arrays of the usual shapes all at once."""
        arrays: list[Any] = []
        gather(value, arrays)
        if {*map(type, arrays)} == {np.ndarray} and [array.shape for array in arrays] == shapes:
            _join(arrays, out)
        else:
            write(value, out)

    return write_arrays


def _gatherer(space: Space) -> Callable[[Any, list[Any]], None]:
    """Return a function that appends the parts of an observation.

    The observation may have another form than the space says.
    """
    if isinstance(space, spaces.Dict):
        parts = [(name, _gatherer(part)) for name, part in space.spaces.items()]

        def gather(value: Any, arrays: list[Any]) -> None:
            for name, gather_part in parts:
                gather_part(value[name], arrays)

        return gather
    if isinstance(space, spaces.Tuple):
        return lambda value, arrays: arrays.extend(value) if isinstance(value, tuple) else arrays.append(value)
    return lambda value, arrays: arrays.append(value)


def mixed_writer(numbers: Writer, images: list[tuple[Path, Writer]], shape: MixedShape) -> Writer:
    places = list(zip(images, shape.images, strict=True))

    def write(value: Any, out: Array) -> None:
        row = out[0]
        numbers(value, row[: 4 * shape.numbers].view(np.float32))
        for (path, writer), (form, columns) in places:
            writer(part_of(value, path), row[columns].reshape(form))

    return write


def part_of(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value
