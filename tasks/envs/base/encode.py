"""Encoding of observations for networks, and decoding of a learner's actions."""

from __future__ import annotations

import math
import operator
import reprlib
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from ...errors import UnsupportedSpace, text_of
from .envs import Array
from .joined import Joined, Path, Space, leaves
from .masks import MASK, MaskedShape
from .spec import EnvSpecError

TEXT = 64  # numbers of a text
PIXEL = 255  # largest value of a pixel
TOLERANCE = 1e-5  # of bounds, relative to the size of numbers
MOST_NUMBERS, MOST_VALUES = 4_000_000, 100_000  # of an observation, and of all choices of an action
FLAT_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class BadObservation(EnvSpecError):
    """An observation contradicts the environment's observation_space."""


class Spaces(NamedTuple):
    """The spaces of one environment."""

    observation: Space
    action: Space


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


class Observations:
    """Encoder of the observations of a space.

    - A Box of uint8 or bool with two to four axes is an image: uint8, height x width x channels. Stacked frames become
      channels. Values are scaled from their bounds to 0 .. 255, so a board of 0 and 1 becomes one of 0 and 255.
    - Everything else is a float32 vector: Box flattened, Discrete one-hot, MultiDiscrete one-hot each, MultiBinary
      unchanged, Dict and Tuple concatenated in order. A text, such as MiniGrid's mission, is TEXT counts of its words
      and pairs of neighbouring words, in columns that a hash of them chooses.
    - A Dict or Tuple with images is a row of bytes, see `MixedShape`.

    Attributes:
        kind: "image", "vector" or "mixed".
        dtype, shape: type and shape of an encoded observation.
        mask: columns of an action mask in a vector; None without one.
    """

    def __init__(self, space: Space, env: str) -> None:
        """Describe a space.

        Args:
            space: observation space.
            env: name of the environment in error messages.

        Raises:
            UnsupportedSpace: a part of the space is of another kind; the message names it.
        """
        self.space, self.env = space, env
        self.dtype: np.dtype[Any] = np.dtype(np.uint8)
        self.shape: tuple[int, ...]
        self._write: Writer
        self.mask: slice | None = None
        self._columns: list[tuple[Path, slice]] = []
        if is_image(space):
            self.kind, self.shape, self._write = "image", _image_shape(space), _image_writer(space)
            return
        images = [(path, leaf) for path, leaf in leaves(space) if is_image(leaf)]
        flat = [(path, leaf) for path, leaf in leaves(space) if not is_image(leaf)]
        self._check_kinds(flat)
        spans = pairwise(accumulate((size_of(leaf) for _, leaf in flat), initial=0))
        self._columns = [(path, slice(*span)) for (path, _), span in zip(flat, spans, strict=True)]
        self.mask = next((columns for path, columns in self._columns if path == (MASK,)), None)
        count = self._columns[-1][1].stop if flat else 0
        self._check_numbers(count, bool(images))
        parts = [(path, _writer(leaf), columns) for (path, leaf), (_, columns) in zip(flat, self._columns, strict=True)]
        numbers = parts[0][1] if len(parts) == 1 and not parts[0][0] else _write_parts(parts, space)
        if images:
            self.kind, self.shape = "mixed", MixedShape(count, [_image_shape(image) for _, image in images])
            self._write = _write_mixed(numbers, [(path, _image_writer(image)) for path, image in images], self.shape)
        else:
            self.kind, self.dtype, self.shape, self._write = "vector", np.dtype(np.float32), (count,), numbers
        if self.mask is not None:
            self.shape = MaskedShape(count, self.mask)

    def _check_kinds(self, parts: Sequence[tuple[Path, Space]]) -> None:
        """Raise UnsupportedSpace for a part that nothing encodes."""
        for path, part in parts:
            if not isinstance(part, FLAT_SPACES) and not is_text(part):
                raise UnsupportedSpace(
                    f"{self.env}: observations must be made of Box, Discrete, MultiDiscrete, MultiBinary, Text, Dict "
                    f"and Tuple, but observation_space{_entry(path)} is {part}; add a wrapper that turns it into one "
                    "of these"
                )

    def _check_numbers(self, count: int, beside_images: bool) -> None:
        """Raise UnsupportedSpace for too many numbers, none, or a mask beside images."""
        if count > MOST_NUMBERS:
            raise UnsupportedSpace(
                f"{self.env}: an observation has at most {MOST_NUMBERS:,} numbers, since a network has weights for "
                f"each and a rollout keeps them, but observation_space has {count:,}: {reprlib.repr(self.space)}; a "
                "whole number is one-hot, so write a large one as digits or as a Box of one number, in a wrapper; "
                "images are Boxes of uint8"
            )
        if not count and not beside_images:
            raise UnsupportedSpace(
                f"{self.env}: observations have at least one number, but observation_space is {self.space}"
            )
        if beside_images and self.mask is not None:
            raise UnsupportedSpace(
                f"{self.env}: an {MASK} stands beside numbers, but here beside images; encode them as numbers in a "
                "wrapper"
            )

    def write(self, value: Any, out: Array, method: str = "step") -> None:
        """Encode an observation into an array of zeros.

        Args:
            value: the observation.
            out: array of `shape`.
            method: function of the environment that returned it.

        Raises:
            BadObservation: it contradicts the space.
        """
        try:
            self._write(value, out)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            self.check(value, method)
            raise BadObservation(
                f"{self.env}: {method} gave an observation that cannot be read: {text_of(error)}"
            ) from error

    def check(self, value: Any, method: str) -> None:
        """Raise BadObservation if an observation contradicts the space.

        Floats may lie outside of their bounds. The arguments are those of `write`.
        """
        for path, leaf in leaves(self.space):
            part = value
            for at, step in enumerate(path):
                try:
                    part = part[step]
                except (LookupError, TypeError, IndexError):
                    raise self._contradiction(method, path[:at], f"have {step!r}", reprlib.repr(part)) from None
            if broken := _broken_rule(leaf, part):
                raise self._contradiction(method, path, *broken)

    def outside(self, value: Any) -> str | None:
        """Describe the first float outside of its bounds, or return None."""
        for path, leaf in leaves(self.space):
            if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f":
                part = np.asarray(_part(value, path), np.float64).reshape(-1)
                low, high = (x.reshape(-1).astype(np.float64) for x in (leaf.low, leaf.high))
                with np.errstate(invalid="ignore"):  # of infinite numbers
                    excess = np.maximum(low - part, part - high) - TOLERANCE * np.maximum(1, np.abs(part))
                if (excess > 0).any():
                    k = int(np.argmax(excess))
                    bounds = f"{low[k]:g} to {high[k]:g}"
                    return f"observation{_entry(path)} was {part[k]:g}, outside of its bounds {bounds}"
        return None

    def _contradiction(self, method: str, path: Path, rule: str, got: str) -> BadObservation:
        return BadObservation(
            f"{self.env}: observation{_entry(path)} must {rule}, as observation_space says, but {method} gave {got}; "
            "fix one of them, or add a wrapper that does"
        )

    def columns(self, name: str) -> slice:
        """Return the columns of an entry's numbers in a vector."""
        spans = [span for path, span in self._columns if path[:1] == (name,)]
        return slice(spans[0].start, spans[-1].stop)

    def numbers(self, obs: Array) -> Array | None:
        """Return the numbers (M, D) in M encoded observations; None for images."""
        if isinstance(self.shape, MixedShape):
            return np.ascontiguousarray(obs[:, 0, : 4 * self.shape.numbers]).view(np.float32)
        return obs.reshape(len(obs), -1) if self.kind == "vector" else None


def _entry(path: Path) -> str:
    """Return the indices that lead to a part of an observation."""
    return "".join(f"[{step!r}]" for step in path)


Writer = Callable[[Any, Array], None]


def _writer(space: Space) -> Writer:
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
        if array.shape != space.shape and (broken := _broken_rule(space, array)) is not None:
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


def is_text(space: Space) -> bool:
    """Return whether observations of this space are strings."""
    return isinstance(space, spaces.Text) or (space.dtype is not None and space.dtype.kind == "U")


def size_of(space: Space) -> int:
    """Return how many numbers represent an observation of a space without parts."""
    return TEXT if is_text(space) else spaces.flatdim(space)


def _write_text(value: Any, out: Array) -> None:
    if not isinstance(value, str):
        raise ValueError("it must be a text")
    words = value.lower().split()
    for part in (*words, *(" ".join(pair) for pair in pairwise(words))):
        out[zlib.crc32(part.encode()) % TEXT] += 1


def _whole(number: Any) -> Any:
    return int(number) if isinstance(number, bool | float) and number == int(number) else number


def _broken_rule(space: Space, value: Any) -> tuple[str, str] | None:
    """Return the rule that a value breaks, and what breaks it."""
    if is_text(space):
        return None if isinstance(value, str) else ("be a text", reprlib.repr(value))
    try:
        array = np.asarray(value)
    except ValueError:  # of lists of several lengths
        return f"have the shape {space.shape}", reprlib.repr(value)
    except RuntimeError:  # of a tensor with a gradient
        return "consist of numbers without gradients", reprlib.repr(value)
    if array.dtype.kind not in "biuf":
        return "consist of numbers", reprlib.repr(value)
    shape_here, other = ([n for n in shape if n != 1] for shape in (array.shape, space.shape or ()))
    if shape_here != other and (
        len(shape_here) > 1 or math.prod(shape_here) != math.prod(other)
    ):  # flat ones are read, too
        return f"have the shape {space.shape}" if space.shape else "be one number", f"the shape {array.shape}"
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return None
    array = array.reshape(space.shape or ())
    low, high = _limits(space)
    if array.dtype.kind == "f" and (wrong := array[~(np.isfinite(array) & (array == np.rint(array)))]).size:
        return f"consist of whole numbers ({space.dtype})", f"{wrong[0]:g}"
    if (wrong := array[(array < low) | (array > high)]).size:
        return f"lie between {np.min(low)} and {np.max(high)}", f"{wrong[0]:g}"
    return None


def _limits(space: Space) -> tuple[Any, Any]:
    """Return least and greatest values of a space of whole numbers."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1


def _write_parts(parts: list[tuple[Path, Writer, slice]], space: Space) -> Writer:
    """Return a function that fills a vector with parts of an observation."""

    def write(value: Any, out: Array) -> None:
        for path, writer, columns in parts:
            writer(_part(value, path), out[columns])

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


def _write_mixed(numbers: Writer, images: list[tuple[Path, Writer]], shape: MixedShape) -> Writer:
    places = list(zip(images, shape.images, strict=True))

    def write(value: Any, out: Array) -> None:
        row = out[0]
        numbers(value, row[: 4 * shape.numbers].view(np.float32))
        for (path, writer), (form, columns) in places:
            writer(_part(value, path), row[columns].reshape(form))

    return write


def _part(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def is_image(space: Space) -> bool:
    """Return whether observations of this space are images."""
    return isinstance(space, spaces.Box) and space.dtype in (np.uint8, np.bool_) and 2 <= len(space.shape) <= 4


def largest_pixel(obs: Array, shape: tuple[int, ...]) -> int:
    """Return the largest byte of images in an encoded observation."""
    parts = [obs[0, columns] for _, columns in shape.images] if isinstance(shape, MixedShape) else [obs]
    return max(int(part.max()) for part in parts)


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


def _image_shape(space: Space) -> tuple[int, ...]:
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


def _image_writer(space: Space) -> Writer:
    """Return a function (observation, out) that writes an image.

    It raises ValueError if the observation has another shape, or is not uint8 and contradicts the space.
    """
    assert isinstance(space, spaces.Box)
    shape, low, high = space.shape, space.low.astype(np.float32), space.high.astype(np.float32)
    scaled, span = is_scaled(space), np.maximum(high - low, 1)

    def write(value: Any, out: Array) -> None:
        array = np.asarray(value)
        if array.shape != shape or array.dtype != space.dtype:
            if (broken := _broken_rule(space, array)) is not None:
                raise ValueError(f"it must {broken[0]}")
            array = array.reshape(shape).astype(space.dtype)
        elif scaled and ((array < low).any() or (array > high).any()):
            raise ValueError("it must lie between its bounds")
        out[:] = _image(np.rint((array - low) * PIXEL / span) if scaled else array)

    return write


class Actions:
    """Conversion between a learner's actions, see ``Envs.step``, and an environment's."""

    def __init__(self, space: Space, env: str) -> None:
        self.space, self.env = space, env
        self.shape = space.shape or ()
        if not isinstance(space, (*FLAT_SPACES, Joined)):
            raise UnsupportedSpace(
                f"{env}: actions must be Discrete, MultiDiscrete, MultiBinary, Box, or a Dict or Tuple of these "
                f"with bounded Boxes, but action_space is {space}; add a wrapper that turns it into one"
            )
        if isinstance(space, FLAT_SPACES) and (size := size_of(space)) > MOST_VALUES:
            raise UnsupportedSpace(
                f"{env}: an action has at most {MOST_VALUES:,} values of choices or numbers, since a policy gives a "
                f"number for each, but action_space has {size:,}: {reprlib.repr(space)}; split it into several choices "
                "(MultiDiscrete), such as its digits, in a wrapper"
            )
        self.chosen = isinstance(space, Joined) and space.starts is not None  # nothing to clip
        self.whole = isinstance(space, spaces.Box) and space.dtype.kind != "f"
        # A learner sees a MultiDiscrete or MultiBinary as one row of choices; a Box keeps its shape.
        rows = isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary)
        self.learner_shape = (int(np.prod(self.shape)),) if rows else self.shape

    def check(self, actions: Array, batch: tuple[int, int]) -> None:
        """Raise ValueError unless these are actions for a batch of environments."""
        kinds = "f" if isinstance(self.space, spaces.Box | Joined) else "iu"
        if actions.shape != (*batch, *self.learner_shape) or actions.dtype.kind not in kinds:
            raise ValueError(
                f"{self.env}: actions for {self.space} must be {'float32' if kinds == 'f' else 'integers'} of shape "
                f"{(*batch, *self.learner_shape)}, but got {actions.dtype} of shape {actions.shape}"
            )

    def decode(self, actions: Array) -> Array:
        """Return actions as environments take them, (P * N, *shape)."""
        actions = actions.reshape(-1, *self.shape)
        space = self.space
        if self.chosen:
            return actions
        if isinstance(space, spaces.Box | Joined):
            # np.clip takes five times as long; NaN of a diverged policy becomes a bound, as it may crash a simulator
            actions = np.fmin(np.fmax(actions, space.low), space.high)
            return (np.rint(actions) if self.whole else actions).astype(space.dtype, copy=False)
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return (actions + space.start).astype(space.dtype, copy=False)
        return actions.astype(space.dtype)

    def encode(self, action: Any) -> Array:
        """Return an environment's action in the learner's form, (*learner_shape)."""
        row = np.asarray(action).reshape(self.learner_shape)
        if isinstance(self.space, spaces.Discrete | spaces.MultiDiscrete):
            return np.asarray(row - np.reshape(self.space.start, self.learner_shape))
        return row

    def pick(self, draws: NDArray[np.float64], beyond: float = 0.0) -> Array:
        """Return an action for each row of numbers in [0, 1).

        Unbounded sides of a Box are cut off. Numbers reach `beyond` their bounds, as a share of the distance between
        them.
        """
        space = self.space
        draws = draws.reshape(-1, *self.learner_shape)
        if isinstance(space, spaces.Box):
            draws = draws * (1 + 2 * beyond) - beyond
        if isinstance(space, Joined):
            return space.draw(draws)
        if isinstance(space, spaces.Box):
            low = np.where(np.isfinite(space.low), space.low, np.where(np.isfinite(space.high), space.high - 2, -1))
            high = np.where(np.isfinite(space.high), space.high, low + 2)
            with np.errstate(over="ignore"):  # beyond the bounds of all numbers
                return (low * (1 - draws) + high * draws).astype(np.float32)
        if isinstance(space, spaces.Discrete):
            return (draws * int(space.n)).astype(np.int64)
        if isinstance(space, spaces.MultiDiscrete):
            return (draws * space.nvec.reshape(-1)).astype(np.int64)
        return (draws * 2).astype(np.int8)
