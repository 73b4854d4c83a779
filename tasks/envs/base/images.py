"""Images among observations: their spaces, shapes and writers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from .envs import Array
from .joined import Space, leaves
from .space_rules import broken_rule
from .spec import EnvSpecError

PIXEL = 255  # largest value of a pixel
Writer = Callable[[Any, Array], None]


class MixedShape(tuple[int, ...]):
    """The shape of a row of bytes: numbers as float32, then images.

    It has two axes, so that nothing takes it for a vector. Rows are padded to whole float32 numbers.

    Attributes:
        numbers: how many numbers a row has.
        images: shape of each image, and the slice of its bytes in a row.
    """

    numbers: int
    images: list[tuple[tuple[int, ...], slice]]

    def __new__(cls, numbers: int, shapes: Sequence[tuple[int, ...]]) -> MixedShape:
        ends = list(accumulate((math.prod(shape) for shape in shapes), initial=4 * numbers))
        self = super().__new__(cls, (1, -(-ends[-1] // 4) * 4))
        self.numbers = numbers
        self.images = [(shape, slice(*span)) for shape, span in zip(shapes, pairwise(ends), strict=True)]
        return self

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.numbers, [shape for shape, _ in self.images]


def is_image(space: Space) -> bool:
    """Return whether observations of this space are images."""
    if not (isinstance(space, spaces.Box) and space.dtype in (np.uint8, np.bool_)):
        return False
    return 2 <= len(space.shape) <= 4 and 0 not in space.shape


def is_scaled(space: Space) -> bool:
    """Return whether an image has other bounds than 0 and 255."""
    images = (leaf for _, leaf in leaves(space) if is_image(leaf))
    return any(image.dtype == np.bool_ or image.low.any() or (image.high < PIXEL).any() for image in images)  # type: ignore[attr-defined]


def with_scale(space: Space, scale: int | None, env: str) -> Space:
    """Return a space whose images have values up to `scale`.

    Raises:
        EnvSpecError: it has no images.
    """
    if scale is None:
        return space
    if not any(is_image(leaf) for _, leaf in leaves(space)):
        raise EnvSpecError(f"{env}: scale is the largest value of images (uint8), but {space} has none; leave it out")
    return _rescaled(space, scale)


def _rescaled(space: Space, scale: int) -> Space:
    if isinstance(space, spaces.Dict):
        return spaces.Dict({name: _rescaled(part, scale) for name, part in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([_rescaled(part, scale) for part in space.spaces])
    return spaces.Box(0, scale, space.shape, np.uint8) if is_image(space) else space


def image_shape(space: Space) -> tuple[int, ...]:
    return _image(np.empty(space.shape or (), np.uint8)).shape


def _image(value: Array) -> Array:
    """Return an image with its channels last.

    The channels are the shorter of the first and the last axis.
    """
    if value.ndim == 2:
        return value[:, :, None]
    if value.ndim == 4:  # frames x height x width x channels
        return np.moveaxis(value, 0, 2).reshape(*value.shape[1:3], -1)
    return np.moveaxis(value, 0, 2) if value.shape[0] < value.shape[2] else value


def image_writer(space: Space) -> Writer:
    """Return a function (observation, out) that writes an image.

    It raises ValueError if the observation has another shape, or is not uint8 and contradicts the space.
    """
    assert isinstance(space, spaces.Box)
    shape, low, high = space.shape, space.low.astype(np.float32), space.high.astype(np.float32)
    scaled, span = is_scaled(space), np.maximum(high - low, 1)

    def write(value: Any, out: Array) -> None:
        array = np.asarray(value)
        if array.shape != shape or array.dtype != space.dtype:
            if (broken := broken_rule(space, array)) is not None:
                raise ValueError(f"it must {broken[0]}")
            array = array.reshape(shape).astype(space.dtype)
        elif scaled and ((array < low).any() or (array > high).any()):
            raise ValueError("it must lie between its bounds")
        out[:] = _image(np.rint((array - low) * PIXEL / span) if scaled else array)

    return write


def largest_pixel(obs: Array, shape: tuple[int, ...]) -> int:
    """Return the largest byte of images in an encoded observation."""
    parts = [obs[0, columns] for _, columns in shape.images] if isinstance(shape, MixedShape) else [obs]
    return max(int(part.max()) for part in parts)
