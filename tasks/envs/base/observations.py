"""Encoding of observations for networks."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from gymnasium import spaces

from ...errors import UnsupportedSpace, text_of
from .envs import Array
from .images import MixedShape, Writer, image_shape, image_writer, is_image
from .joined import Path, Space, leaves
from .masks import MASK, MaskedShape
from .space_rules import FLAT_SPACES, broken_rule, is_text
from .spec import EnvSpecError
from .writers import mixed_writer, part_of, parts_writer, size_of, vector_writer

MOST_NUMBERS = 4_000_000  # of an observation
TOLERANCE = 1e-5  # of bounds, relative to the size of numbers


class BadObservation(EnvSpecError):
    """An observation contradicts the environment's observation_space."""


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
            self.kind, self.shape, self._write = "image", image_shape(space), image_writer(space)
            return
        images = [(path, leaf) for path, leaf in leaves(space) if is_image(leaf)]
        flat = [(path, leaf) for path, leaf in leaves(space) if not is_image(leaf)]
        self._check_kinds(flat)
        spans = pairwise(accumulate((size_of(leaf) for _, leaf in flat), initial=0))
        self._columns = [(path, slice(*span)) for (path, _), span in zip(flat, spans, strict=True)]
        masks = [columns for path, columns in self._columns if _is_of_mask(path)]  # one, or one for each choice
        self.mask = slice(masks[0].start, masks[-1].stop) if masks else None
        count = self._columns[-1][1].stop if flat else 0
        self._check_numbers(count, bool(images))
        writers = [vector_writer(leaf) for _, leaf in flat]
        parts = [(path, writer, columns) for (path, columns), writer in zip(self._columns, writers, strict=True)]
        numbers = parts[0][1] if len(parts) == 1 and not parts[0][0] else parts_writer(parts, space)
        if images:
            self.kind, self.shape = "mixed", MixedShape(count, [image_shape(image) for _, image in images])
            self._write = mixed_writer(numbers, [(path, image_writer(image)) for path, image in images], self.shape)
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
            if broken := broken_rule(leaf, part):
                raise self._contradiction(method, path, *broken)

    def outside(self, value: Any) -> str | None:
        """Describe the first float outside of its bounds, or return None."""
        for path, leaf in leaves(self.space):
            if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f":
                part = np.asarray(part_of(value, path), np.float64).reshape(-1)
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


def _is_of_mask(path: Path) -> bool:
    """Return whether a part belongs to an action mask."""
    return path[:1] == (MASK,) and all(isinstance(step, int) for step in path[1:])


def _entry(path: Path) -> str:
    """Return the indices that lead to a part of an observation."""
    return "".join(f"[{step!r}]" for step in path)
