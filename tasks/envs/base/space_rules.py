"""Spaces of environments, and the rules that a value may break."""

from __future__ import annotations

import math
import reprlib
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from .joined import Space

FLAT_SPACES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


class Spaces(NamedTuple):
    """The spaces of one environment."""

    observation: Space
    action: Space


def is_text(space: Space) -> bool:
    """Return whether observations of this space are strings."""
    return isinstance(space, spaces.Text) or (space.dtype is not None and space.dtype.kind == "U")


def broken_rule(space: Space, value: Any) -> tuple[str, str] | None:
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
