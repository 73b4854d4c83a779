"""Types of environments' data, and their conversion to tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Tree = dict[str, Any]
Array = NDArray[Any]


def to_tensor(array: Array) -> torch.Tensor:
    """Return a tensor with a copy of the array."""
    import torch  # imported late: environment processes do not need it, and it takes a second and 200 MB

    return torch.from_numpy(np.array(array, order="C"))


NUMBERS = {float, int, bool, np.float64, np.float32}  # usual types of rewards
ENDS = {bool, np.bool_}  # and of terminated and truncated


def is_number(value: Any, types: str = "buif") -> bool:
    """Return whether a value is one number of such types (`numpy.dtype.kind`)."""
    try:
        float(value)
        return not other_type(value, types)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def other_type(value: Any, types: str) -> str:
    """Return the type in words, or "" for one number of these."""
    array = np.asarray(value)
    if array.dtype.kind in types and array.size == 1:
        return ""
    return f"{value!r} is of type {array.dtype}" + f", {array.shape}" * (array.size != 1)
