"""Dimensions as text, in both directions: loguniform(1e-5, 0.01, default_value=0.001).

The words are Orion's wherever it has one. A text without the last five keywords is a valid Orion prior:

    uniform(0.0, 1.0)                       real            uniform(0, 9, discrete=True)      integer
    loguniform(1e-5, 0.01)                  log_real        loguniform(1, 9, discrete=True)   integer, log
    choices(['a', 'b'])                     categorical     choices({'a': 0.2, 'b': 0.8})     the same, weighted
    normal(0.0, 1.0), lognormal(0.0, 1.0)   normal          fidelity(1, 27, 3)                fidelity

Further words are ordinal([32, 64]), near_one(0.9, 0.999), fixed(3), maybe(uniform(0.0, 1.0)), curve(0.0, 1.0), sizes(1,
512) and entry(['a'], group='b'). The keywords are default_value=, step=, accept=, structural=, search=, silent= and
when=. Texts are parsed as literals and never evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

from . import dimensions as words
from .choices import Argument, Categorical, Choice, Entry, Fixed, Ordinal
from .dimension import Dimension, Maybe
from .errors import SpaceError
from .ranges import Curve, Fidelity, Integer, NearOne, Normal, Range, Real, Sizes
from .values import REQUIRED, display

MAX_LENGTH = 20_000


def render(dimension: Dimension) -> str:
    """Return the text that `parse` turns into an equal dimension."""
    word, arguments, keywords = _spell(dimension)
    if isinstance(dimension, (Range, Ordinal)) and dimension.accept is not None:
        keywords["accept"] = dimension.accept
    implied = dimension.high if isinstance(dimension, Fidelity) else REQUIRED
    if dimension.default is not implied and not isinstance(dimension, Fixed) and dimension.default != implied:
        keywords["default_value"] = dimension.default
    if not dimension.search and not isinstance(dimension, Curve):
        keywords["search"] = False
    if dimension.structural and not isinstance(dimension, Curve):
        keywords["structural"] = True
    if dimension.silent:
        keywords["silent"] = True
    if dimension.when:
        keywords["when"] = {name: values if len(values) > 1 else values[0] for name, values in dimension.when.items()}
    return f"{word}({', '.join([*arguments, *(f'{name}={value!r}' for name, value in keywords.items())])})"


def parse(text: str, name: str = "prior") -> Dimension:
    """Return the dimension that a text describes.

    Args:
        text: text of at most MAX_LENGTH characters.
        name: name of the hyperparameter, with which error messages begin.

    Raises:
        SpaceError: the text describes no dimension.
    """
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        cure = "" if isinstance(text, str) else "; a program gets a value that is not searched in its command line"
        raise SpaceError(f"{name}: a prior is a text of at most {MAX_LENGTH} characters, not {display(text)}{cure}")
    try:
        return _build(ast.parse(text.strip(), mode="eval").body)
    except SpaceError as error:
        raise type(error)(f"{name}: {text}: {error}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error  # its text names a file and a line, too
        raise SpaceError(f"{name}: {text}: a prior is a word with literals, such as uniform(0, 1): {why}") from error


def _spell(dimension: Dimension) -> tuple[str, list[str], dict[str, Any]]:
    match dimension:
        case Real(low=low, high=high, log=log, step=step):
            return ("loguniform" if log else "uniform"), [repr(low), repr(high)], {"step": step} if step else {}
        case Integer(low=low, high=high, log=log, step=step):
            keywords = {"discrete": True} | ({"step": step} if step != 1 else {})
            return ("loguniform" if log else "uniform"), [repr(low), repr(high)], keywords
        case NearOne(low=low, high=high):
            return "near_one", [repr(low), repr(high)], {}
        case Normal(mean=mean, std=std, log=log):
            return ("lognormal" if log else "normal"), [repr(mean), repr(std)], {}
        case Fidelity(low=low, high=high, base=base):
            return "fidelity", [repr(low), repr(high), repr(base)], {}
        case Curve(low=low, high=high):
            return "curve", [repr(low), repr(high)], {}
        case Sizes(low=low, high=high):
            return "sizes", [repr(low), repr(high)], {}
        case Argument():
            return "argument", [], {}
        case Entry(values=values, group=group):
            return "entry", [repr(list(values))], {"group": group}
        case Fixed(value=value):
            return "fixed", [repr(value)], {}
        case Maybe(dimension=inner):
            return "maybe", [render(inner)], {}
        case Choice(values=values):
            weights = dimension.weights if isinstance(dimension, Categorical) else None
            word = "ordinal" if isinstance(dimension, Ordinal) else "choices"
            return word, [repr(list(values))], {"weights": list(weights)} if weights else {}
    raise SpaceError(f"{type(dimension).__name__} has no prior text")


def _build(node: ast.expr) -> Dimension:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        raise SpaceError("a prior is written word(arguments)")
    word = node.func.id
    if word not in _WORDS:
        near = get_close_matches(word, _WORDS, n=1)
        cure = f"did you mean {near[0]}?" if near else f"write {', '.join(_SEARCHED[:-1])} or {_SEARCHED[-1]}"
        raise SpaceError(f"there is no prior {word!r}; {cure}")
    keywords = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise SpaceError("a prior takes no **")
        keywords[{"default_value": "default"}.get(keyword.arg, keyword.arg)] = _literal(keyword.value)
    arguments = [_build(argument) if word == "maybe" else _literal(argument) for argument in node.args]
    try:
        return _WORDS[word](*arguments, **keywords)
    except TypeError:  # whose text names functions of this module
        example = next((prior for prior in _SEARCHED if prior.startswith(f"{word}(")), f"{word}(...)")
        raise SpaceError(
            f"{word} does not take these arguments; write {example}, perhaps with {', '.join(_KEYWORDS)}"
        ) from None


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        raise SpaceError(f"{ast.unparse(node)} is no literal, such as 1e-3, 'a', True or [1, 2]") from None


# Bounds and keywords come from a text and can be any literals, so types are ignored: the dimensions refuse wrong ones.
def _uniform(low: float, high: float, *, discrete: bool = False, **keywords: Any) -> Dimension:
    return words.integer(low, high, **keywords) if discrete else words.real(low, high, **keywords)  # type: ignore[arg-type]


def _loguniform(low: float, high: float, *, discrete: bool = False, **keywords: Any) -> Dimension:
    return words.integer(low, high, log=True, **keywords) if discrete else words.log_real(low, high, **keywords)  # type: ignore[arg-type]


def _choices(*values: Any, **keywords: Any) -> Dimension:
    if len(values) == 1 and isinstance(values[0], dict):
        return words.categorical(*values[0], weights=list(values[0].values()), **keywords)
    return words.categorical(*_listed(values), **keywords)


def _ordinal(*values: Any, **keywords: Any) -> Dimension:
    return words.ordinal(*_listed(values), **keywords)


def _entry(*values: Any, **keywords: Any) -> Dimension:
    return words.entry(*_listed(values), **keywords)


def _listed(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 and isinstance(values[0], (list, tuple)) else values


_SEARCHED = (  # an example of each word that a user may give as a prior
    "uniform(0, 1)",
    "loguniform(1e-5, 1e-2)",
    "near_one(0.9, 0.999)",
    "ordinal([16, 32])",
    "choices(['a', 'b'])",
    "maybe(uniform(0, 1))",
)
_KEYWORDS = ("discrete=True", "step=", "default_value=", "accept=")
_WORDS: dict[str, Callable[..., Dimension]] = {
    "uniform": _uniform,
    "loguniform": _loguniform,
    "normal": words.normal,
    "gaussian": words.normal,
    "lognormal": words.lognormal,
    "near_one": words.near_one,
    "ordinal": _ordinal,
    "choices": _choices,
    "fidelity": words.fidelity,
    "fixed": words.fixed,
    "curve": words.curve,
    "sizes": words.sizes,
    "entry": _entry,
    "argument": words.argument,
    "maybe": words.maybe,
}
