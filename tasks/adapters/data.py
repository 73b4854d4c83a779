"""Values of Python as data: a text of their form, and tensors.

``encode`` takes None, booleans, numbers, text, bytes, lists, tuples, dicts, and arrays of NumPy, PyTorch and JAX,
nested in any way. ``decode`` returns equal values of the same types, except that a subclass of dict becomes a dict and
a torch parameter a tensor on the CPU. Nothing is pickled, so reading data runs no code.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint.state import Tree, copy
from ..checkpoint.strict_json import DEPTH
from ..errors import NotData, StateMismatch

LARGEST = 10**4000  # Python writes no number of more than 4300 digits
LONG = 1024  # characters of a text that is stored as an array
AS_TENSORS = ("|b1", "|i1", "|u1", "<i2", "<i4", "<i8", "<f2", "<f4", "<f8")  # types of NumPy that torch has, too
KINDS = "None, booleans, numbers, text, bytes, lists, tuples, dicts, and arrays of NumPy, PyTorch and JAX"


def encode(value: Any, name: str) -> Tree:
    """Return a value as a tree: its form as text, and tensors.

    Args:
        value: the value; it is not changed, and shares no memory with the tree.
        name: name of the value in error messages.

    Raises:
        NotData: a part of the value is not data; the message names its place.
    """
    arrays: dict[str, Tensor] = {}
    form = _encoded(value, name, "", arrays, 0)
    return {"form": json.dumps(form, separators=(",", ":")), "arrays": arrays}


def decode(tree: Mapping[str, Any]) -> Any:
    """Return the value of a tree, without sharing memory.

    Raises:
        StateMismatch: the tree is not one that `encode` returns.
    """
    try:
        return _decoded(json.loads(tree["form"]), tree["arrays"])
    except (ArithmeticError, AttributeError, LookupError, RecursionError, RuntimeError, TypeError, ValueError) as error:
        raise StateMismatch(f"data must have a form and its arrays, but: {type(error).__name__}: {error}") from None


def sizes(tree: Mapping[str, Any]) -> dict[str, int]:
    """Return the bytes of each array by path, and of the rest.

    The rest is called "lists and numbers".
    """
    return {"lists and numbers": len(tree["form"])} | {path: x.nbytes for path, x in tree["arrays"].items()}


class Data:
    """A part of a learner that holds one value as data.

    Attributes:
        tree: the value as `encode` returns it; never changed in place.
    """

    checks_form = True  # its form changes during training

    def __init__(self, value: Any = None):
        self.tree = encode(value, "value")

    def member_state(self, member: int) -> Tree:
        return copy(self.tree)

    def load_member(self, member: int, tree: Mapping[str, Any]) -> None:
        decode(tree)
        self.tree = copy(tree)


def _encoded(value: Any, location: str, path: str, arrays: dict[str, Tensor], depth: int) -> Any:
    """Return the form of a value, and add its arrays."""
    if depth > DEPTH:
        raise NotData(f"data is nested at most {DEPTH} deep, but {location} is deeper; it may contain itself")
    if type(value) is int and abs(value) >= LARGEST:
        raise NotData(f"whole numbers have at most 4000 digits, but {location} has more; store its bytes (to_bytes)")
    if value is None or type(value) in (bool, int) or (type(value) is float and math.isfinite(value)):
        return value
    if type(value) is str and len(value) <= LONG:
        return value
    if isinstance(value, dict):
        for key in value:
            if type(key) not in (str, int):
                raise NotData(
                    f"the keys of data are text or integers, but {location} has {key!r} ({type(key).__name__})"
                )
        items = [
            [key, _encoded(item, f"{location}[{key!r}]", f"{path}.{key}" if path else str(key), arrays, depth + 1)]
            for key, item in value.items()
        ]
        return {"dict": items}
    if type(value) in (list, tuple):
        items = [
            _encoded(item, f"{location}[{index}]", f"{path}.{index}" if path else str(index), arrays, depth + 1)
            for index, item in enumerate(value)
        ]
        return items if type(value) is list else {"tuple": items}
    if type(value) is float:
        return {"float": str(value)}
    encoded = _array(value, location)
    if encoded is None:
        raise NotData(
            f"data is {KINDS}, but {location} is a {type(value).__name__}; put its numbers there, such as its "
            "state_dict() or coef_"
        )
    form, tensor, about = encoded
    name = path.replace("/", "|") or "value"
    while name in arrays:
        name += "'"
    arrays[name] = tensor
    return {form: [name, *about]}


def _array(value: Any, location: str) -> tuple[str, Tensor, list[Any]] | None:
    """Return kind, tensor and further properties of an array.

    Long text and bytes are arrays, too. Return None for anything else.
    """
    if type(value) is str:
        return "text", _bytes(value.encode("utf-8", "surrogatepass")), []
    if type(value) in (bytes, bytearray):
        return type(value).__name__, _bytes(bytes(value)), []
    if isinstance(value, Tensor):
        if value.layout != torch.strided or value.is_quantized or value.is_nested:
            raise NotData(f"arrays are dense, but {location} is a tensor with layout {value.layout}; store its parts")
        return "torch", value.detach().to("cpu", copy=True).contiguous(), []
    if isinstance(value, np.ndarray | np.generic):
        return "numpy", *_numpy(np.asarray(value), location, scalar=isinstance(value, np.generic))
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(value, jax.Array):
        if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
            data, about = _numpy(np.asarray(jax.random.key_data(value)), location)
            return "jax_key", data, [*about, str(jax.random.key_impl(value))]
        return "jax", *_numpy(np.asarray(value), location)
    return None


def _numpy(array: np.ndarray, location: str, scalar: bool = False) -> tuple[Tensor, list[Any]]:
    """Return an array as a tensor, with its properties.

    These are its data type, its shape and whether it is a scalar.

    Of types that torch lacks, such as times, the tensor has the bytes.
    """
    if array.dtype.hasobject or array.dtype.fields is not None:
        raise NotData(f"arrays hold numbers, texts or times, but {location} has dtype {array.dtype}; store its parts")
    name = array.dtype.name if array.dtype.kind == "V" else array.dtype.str  # JAX's own types have names only
    about = [name, [*array.shape], scalar]
    if name in AS_TENSORS:
        return torch.from_numpy(np.array(array, order="C")), about
    return _bytes(array.tobytes()), about


def _bytes(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)


def _decoded(form: Any, arrays: Mapping[str, Tensor]) -> Any:
    if isinstance(form, list):
        return [_decoded(item, arrays) for item in form]
    if not isinstance(form, dict):
        return form
    [(tag, content)] = form.items()
    if tag == "dict":
        return {key: _decoded(item, arrays) for key, item in content}
    if tag == "tuple":
        return tuple(_decoded(item, arrays) for item in content)
    if tag == "float":
        return float(content)
    name, *about = content
    tensor = arrays[name]
    if tag == "torch":
        return tensor.clone()
    data = tensor.numpy().tobytes()
    if tag == "text":
        return data.decode("utf-8", "surrogatepass")
    if tag in ("bytes", "bytearray"):
        return data if tag == "bytes" else bytearray(data)
    array = np.frombuffer(data, dtype=np.dtype(about[0])).reshape(about[1]).copy()
    if tag == "numpy":
        return array[()] if about[2] else array
    jax = importlib.import_module("jax")  # whoever stored its arrays had it
    return jax.random.wrap_key_data(array, impl=about[3]) if tag == "jax_key" else jax.numpy.asarray(array)
