"""Search spaces: named, nested, possibly conditional dimensions."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from inspect import isroutine
from numbers import Integral
from typing import Any, NoReturn

from .choices import CLASS, Argument, Categorical, Choice, Fixed
from .conditions import Row, Unresolved, rows
from .dimension import Dimension, Maybe
from .errors import SYNONYMS, MissingParameter, SpaceError, UnknownParameter, WrongType, near, spelled
from .priors import parse, render
from .ranges import Curve, Fidelity, Sizes
from .values import REQUIRED, Nested, Value, display, flatten, identity, read, unflatten

VERSION = 1
ENABLED = ".enabled"  # after a maybe()'s name: whether it is not None


class Space(Mapping[str, "Dimension | Space"]):
    """A mapping from nested or dotted names to dimensions and spaces.

    The order matters. Values for a space are nested dicts. Methods that return values return them complete, checked and
    as canonical JSON (see `values.canonical`).

    Raises:
        SpaceError: a name is not an identifier, or a condition cannot hold.
    """

    def __init__(self, /, **entries: Dimension | Space) -> None:
        for name, entry in entries.items():
            if not name.isidentifier():
                raise SpaceError(
                    f"a hyperparameter's name must be an identifier, such as {spelled(name)}, not {name!r}"
                )
            if not isinstance(entry, (Dimension, Space)):
                raise SpaceError(f"{name} must be a dimension such as real(0, 1) or a Space, not {display(entry)}")
        self._entries = entries
        self._flat: dict[str, Dimension] = {}
        self._absent: dict[str, str] = {}  # reasons by dotted name
        for name, entry in entries.items():
            below = entry._flat.items() if isinstance(entry, Space) else [("", entry)]
            self._flat |= {f"{name}.{path}".rstrip("."): dimension for path, dimension in below}
            if isinstance(entry, Space):
                self._absent |= {f"{name}.{path}": reason for path, reason in entry._absent.items()}
        with suppress(Unresolved):  # a name that is not found here may be in an enclosing space
            _ = self.rows

    # mapping

    def __getitem__(self, name: str) -> Dimension | Space:
        first, _, rest = name.partition(".")
        entry = self._entries[first]
        if not rest:
            return entry
        if isinstance(entry, Dimension):
            raise KeyError(name)
        return entry[rest]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        # by their texts, which distinguish 1, 1.0 and True
        return isinstance(other, Space) and list(self.priors().items()) == list(other.priors().items())

    __hash__ = None  # type: ignore[assignment]  # objects compared by content are not hashable

    def __repr__(self) -> str:
        return f"Space({', '.join(f'{path}={render(dimension)}' for path, dimension in self._flat.items())})"

    def flat(self) -> dict[str, Dimension]:
        """Return the dimensions by dotted name, in order."""
        return dict(self._flat)

    def unfixed(self) -> dict[str, Dimension]:
        """Return the dimensions that can have several values, by dotted name."""
        return {path: dimension for path, dimension in self._flat.items() if not isinstance(dimension, Fixed)}

    def without(self, **reasons: str) -> Space:
        """Return this space, which says why it lacks names, in errors.

        Args:
            reasons: by name of a dimension or a group; each with what to do.
        """
        space = Space(**self._entries)
        space._absent |= reasons
        return space

    # values

    def defaults(self) -> Nested:
        """Return the default values.

        Raises:
            MissingParameter: a dimension has no default.
        """
        return self.validate({})

    def sample(self, seed: int) -> Nested:
        """Return values drawn from the priors.

        Each value depends only on the seed, its name and its dimension, so adding a dimension does not change the
        others.

        Args:
            seed: integer of 0 or more.
        """
        number: object = seed  # maybe one of NumPy's
        if isinstance(number, bool) or not isinstance(number, Integral) or seed < 0:
            raise SpaceError(f"a seed must be an integer of 0 or more, not {display(seed)}")
        import numpy as np  # slow to import, for callers that only read values

        def draw(path: str, dimension: Dimension) -> Value:
            if not dimension.search and dimension.default is not REQUIRED:
                return dimension.default
            entropy = [int(seed), zlib.crc32(path.encode())]
            return dimension.at(np.random.default_rng(entropy).random())

        return self.decide(draw)

    def decide(self, choose: Callable[[str, Dimension], Value]) -> Nested:
        """Return the values that a function chooses.

        Args:
            choose: function of a dotted name and its dimension; it is called in order, and only for dimensions that
                apply.
        """
        flat: dict[str, Value] = {}
        for row in self.rows:
            if row.applies(flat):
                flat[row.path] = row.dimension.check(choose(row.path, row.dimension), row.path)
        return unflatten(flat)

    def validate(self, values: Mapping[str, Any], *, fixed: Mapping[str, Any] | None = None) -> Nested:
        """Check values, fill in defaults, and return them in canonical form.

        The result has every value that applies and no other.

        Args:
            values: values, nested or dotted; None for a group means its defaults.
            fixed: values that replace missing ones; those that do not apply are ignored.

        Raises:
            UnknownParameter: the space lacks a name, or its dimension does not apply.
            MissingParameter: a dimension without a default has no value.
            WrongType: a value has another type.
            OutOfRange: a value is not allowed.
            SpaceError: a value contradicts a fixed one.
        """
        named = self._named(values)
        instead = self._named(fixed or {})
        flat: dict[str, Value] = {}
        missing = []
        for row in self.rows:
            path, dimension = row.path, row.dimension
            if not row.applies(flat):
                if path in named:
                    raise row.refusal()
            elif path in named:
                flat[path] = dimension.check(named[path], path)
                if path in instead and identity(flat[path]) != identity(dimension.check(instead[path], path)):
                    raise SpaceError(f"{path} is fixed to {display(instead[path])} and cannot be {display(flat[path])}")
            elif path in instead:
                flat[path] = dimension.check(instead[path], path)
            elif dimension.default is not REQUIRED:
                flat[path] = dimension.check(dimension.default, path)
            else:
                missing.append(path)
        if missing:
            wanted = (f"{path} has no default: give {self._flat[path].expects}" for path in missing)
            raise MissingParameter("; ".join(wanted))
        return unflatten(flat)

    def parse(self, *assignments: str) -> Nested:
        """Return the checked values of `name=value` texts, as on the command line.

        'model.size=8' gives {'model': {'size': 8}}. None may be spelled as in Python, JSON or Rekindle's tables.

        Raises:
            SpaceError: a text is malformed, a name unknown or given twice, or a value not allowed.
        """
        flat: dict[str, Value] = {}
        for assignment in assignments:
            path, equals, text = (part.strip() for part in assignment.partition("="))
            if not equals:
                raise SpaceError(
                    f"a hyperparameter must be written name=value, such as gamma=0.98, but got {assignment!r}"
                )
            if path not in self._flat:
                self._refuse(path, text)
            if path in flat:
                raise SpaceError(f"{path} is given twice")
            dimension = self._flat[path]
            try:
                flat[path] = dimension.check(read_for(dimension, text), path)
            except SpaceError as error:
                raise type(error)(f"{error} ({dimension.help})" if dimension.help else str(error)) from None
        return unflatten(flat)

    def identifying(self, values: Mapping[str, Any]) -> dict[str, Value]:
        """Return those values that identify a result, by dotted name.

        The values must be complete. Silent dimensions at their defaults are left out, so results from before they
        existed keep their identity.
        """
        return {path: value for path, value in flatten(values).items() if not self._flat[path].leaves_out(value)}

    def structure(self, values: Mapping[str, Any]) -> dict[str, Value]:
        """Return the values that determine shapes and loop counts, by dotted name.

        The members of a cohort share them. For a maybe() that is not structural itself, the result has
        `<name>.enabled`. Silent dimensions at their defaults are left out, as in `identifying`.
        """
        structure: dict[str, Value] = {}
        for path, value in self.identifying(self.validate(values)).items():
            dimension = self._flat[path]
            if dimension.structural and not isinstance(dimension, Fidelity):
                structure[path] = value
            elif isinstance(dimension, Maybe):
                structure[path + ENABLED] = value is not None
        return structure

    def dynamic(self, values: Mapping[str, Any]) -> dict[str, Value]:
        """Return the values that may differ within a cohort, by dotted name.

        Fidelities and None are left out.
        """
        dynamic: dict[str, Value] = {}
        for path, value in flatten(self.validate(values)).items():
            dimension = self._flat[path]
            nothing = isinstance(dimension, Maybe) and value is None
            if not (dimension.structural or isinstance(dimension, Fidelity) or nothing):
                dynamic[path] = value
        return dynamic

    def split(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, bool]]:
        """Split values into those by dotted name and those of `<name>.enabled`.

        The latter say which maybe() is not None. Values are not checked.
        """
        flat = flatten(values)
        enabled = {
            path.removesuffix(ENABLED): flat.pop(path)
            for path in list(flat)
            if path.endswith(ENABLED) and isinstance(self._flat.get(path.removesuffix(ENABLED)), Maybe)
        }
        return self._named(flat), enabled

    # other spaces

    def fix(self, values: Mapping[str, Any]) -> Space:
        """Return the space that is left when these values are fixed.

        Fixed dimensions are removed, and conditions that depend on them are resolved. A value whose own condition is
        still open stays in the space, as fixed(). `<name>.enabled` only decides whether a maybe() is None, so the
        result of `structure` can be fixed as it is. The maybe() then disappears, for drivers too; `suggest` with
        `fixed` values keeps the drivers' names.

        Args:
            values: values, nested or dotted, or `<name>.enabled`.

        Raises:
            SpaceError: a value is unknown or not allowed.
        """
        named, enabled = self.split(values)
        values_before: dict[str, Value] = {}
        left: dict[str, Dimension] = {}
        for row in self.rows:
            path = row.path
            decided = [c for c in row.conditions if c.path in values_before or not c.is_open(left)]
            if not all(condition.holds(values_before) for condition in decided):
                if path in named or path in enabled:
                    raise row.refusal()
                continue
            dimension = row.dimension
            if decided:
                dimension = replace(dimension, when={c.key: c.values for c in row.conditions if c not in decided})
            if path in named:
                dimension = _fixed(dimension, named[path], path)
            elif path in enabled:
                dimension = _enable(dimension, enabled[path], path)
            if isinstance(dimension, Fixed) and not dimension.when:
                values_before[path] = dimension.value
                if path in named or path in enabled:
                    continue
            left[path] = dimension
        return self._derived(left)

    def searched(self) -> Space:
        """Return the space that a study searches.

        Dimensions that are not searched are fixed to their defaults, and conditions that depend on them are resolved.
        """
        flat = {path: d if d.search else _fixed(d, d.default, path) for path, d in self._flat.items()}
        silent = {path: d.default for path, d in self._flat.items() if d.silent and not d.when}
        return self._derived(flat).fix(silent)

    def unsearched(self, names: Collection[str]) -> Space:
        """Return this space with search=False for the named dimensions."""
        return self._derived({path: replace(d, search=False) if path in names else d for path, d in self._flat.items()})

    def unweighted(self) -> Space:
        """Return this space with equally likely choices."""
        flat = {path: replace(d, weights=None) if isinstance(d, Categorical) else d for path, d in self._flat.items()}
        return self._derived(flat)

    def explained(self, explanation: Callable[[str], str]) -> Space:
        """Return this space with explanations of dimensions that have none.

        Args:
            explanation: function of a dotted name that returns the text.
        """
        flat = {path: d if d.help else replace(d, help=explanation(path)) for path, d in self._flat.items()}
        return self._derived(flat)

    def extend(self, /, **entries: Dimension | Space) -> Space:
        """Return this space with further entries.

        Raises:
            SpaceError: a name already exists.
        """
        for name in entries:
            if name in self._entries:
                raise SpaceError(f"{name} is in the space already")
        space = Space(**self._entries, **entries)
        space._absent |= self._absent
        return space

    def of(self, *values: Mapping[str, Any]) -> Space:
        """Return the space that values select; this one, unless it has variants."""
        return self

    def fidelities(self) -> Space:
        """Return the space of the fidelities alone."""
        return self._derived({path: d for path, d in self._flat.items() if isinstance(d, Fidelity)})

    # other forms

    def priors(self) -> dict[str, str]:
        """Return every dimension as text, by dotted name; see `from_priors`."""
        return {path: render(dimension) for path, dimension in self._flat.items()}

    @classmethod
    def from_priors(cls, priors: Mapping[str, Any]) -> Space:
        """Return the space described by texts, nested or dotted.

        An example is {'optimizer.lr': 'loguniform(1e-5, 1e-2)'}.

        Raises:
            SpaceError: a text describes no dimension.
        """
        return cls._of({path: parse(text, path) for path, text in flatten(priors).items()})

    def to_json(self) -> dict[str, Any]:
        """Return this space as JSON.

        Dimensions are a list, since drivers depend on the order, which JSON objects may lose.
        """
        return {"version": VERSION, "dimensions": [[path, text] for path, text in self.priors().items()]}

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Space:
        """Return the space described by JSON.

        Raises:
            SpaceError: it has another version or form.
        """
        version = form.get("version")
        if version != VERSION:
            raise SpaceError(f"this Rekindle reads version {VERSION} of a space's JSON, not {version!r}")
        try:
            return cls._of({path: parse(text, path) for path, text in form["dimensions"]})
        except SpaceError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise SpaceError(f"a space's JSON holds 'dimensions', a list of [name, prior]: {error!r}") from error

    # internals

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """Dimensions with their dotted names and conditions, in order.

        A dimension that a condition names comes before the dimension that has the condition.
        """
        return tuple(rows(self._flat))

    @classmethod
    def _of(cls, flat: Mapping[str, Dimension]) -> Space:
        def build(nested: Mapping[str, Any]) -> Space:
            return cls(**{k: build(v) if isinstance(v, Mapping) else v for k, v in nested.items()})

        return build(unflatten(flat))

    def _derived(self, flat: Mapping[str, Dimension]) -> Space:
        """Return a space of some of this one's dimensions, changed or not."""
        space = Space._of(flat)
        space._absent = self._absent
        return space

    def _named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return `values` by dotted name.

        Raises:
            UnknownParameter: the space lacks a name.
            WrongType: a group is given for a value, a value for a group, or a function or object for data.
        """
        flat: dict[str, Any] = {}
        for path, value in flatten(values).items():
            named = isinstance(value, type) and isinstance(self._flat.get(path), Argument)
            if callable(value) and path in self and not named:
                noun, cure = "a function", self._instead_of_a_function(path)
                if not isroutine(value):
                    noun, cure = "an object", self._instead_of_an_object(path)
                raise WrongType(
                    f"{path} must be data, not {display(value)}: {noun} can be neither stored nor compared{cure}"
                )
            if path in self._flat:
                flat[path] = value
            elif value is not None or not isinstance(self.get(path), Space):
                self._refuse(path, value)
        return flat

    def _instead_of_a_function(self, path: str) -> str:
        """Return advice for a user who gave a function: use a curve.

        The suggested curve is the one of the same name, if the space has it.
        """
        curves = [row for row in self.rows if isinstance(row.dimension, Curve)]
        if not curves:
            return ""
        leaf = path.rpartition(".")[2]
        curve = next((row for row in curves if row.path.startswith((leaf + "_", path + "."))), curves[0])
        group, _, name = curve.path.rpartition(".")
        example = {key: values[0] for key, values in curve.dimension.when.items()} | {name: curve.dimension.default}
        return f"; what changes over time is given as points, such as {group}={example}"

    def _instead_of_an_object(self, path: str) -> str:
        """Return advice for a user who gave an object: name its class."""
        group = path.partition(".")[0] + "."
        paths = [row.path for row in self.rows if row.path.startswith(group) and CLASS in row.dimension.expects]
        return f"; name its class instead: {paths[0]}='{CLASS}(argument=1)'" if paths else ""

    def _refuse(self, path: str, value: object) -> NoReturn:
        for name in self._flat:
            if path.startswith(name + "."):
                raise WrongType(f"{name} must be {self._flat[name].expects}, not a group of values")
            if name.startswith(path + "."):
                raise WrongType(
                    f"{path} is a group of values and must be a dict, not {display(value)}; or give its entries, such "
                    f"as {name}"
                )
        similar, (outer, dot, leaf) = near(path, self._flat), path.rpartition(".")
        meant = [] if similar else [outer + dot + ours for group in SYNONYMS.get(leaf, ()) for ours in group]
        absent = (name for ours in (path, *meant) for name in self._absent if f"{ours}.".startswith(f"{name}."))
        if reason := next((self._absent[name] for name in absent), ""):
            raise UnknownParameter(f"there is no hyperparameter {path!r}: {reason}")
        cure = similar or f"; there are {', '.join(self._beside(path))}"
        raise UnknownParameter(f"there is no hyperparameter {path!r}{cure}")

    def _beside(self, path: str) -> list[str]:
        """Return the other names beside a path.

        Groups count once (model.*). If there are none, return those of the whole space.
        """
        start = path.rpartition(".")[0] + "."
        start = start if any(name.startswith(start) for name in self._flat) else ""
        inner = [name.removeprefix(start) for name in self._flat if name.startswith(start)]
        return list(dict.fromkeys(start + name.partition(".")[0] + ".*" * ("." in name) for name in inner))


def _enable(dimension: Dimension, enabled: bool, path: str) -> Dimension:
    """Return the dimension that replaces a maybe() once it is decided."""
    assert isinstance(dimension, Maybe)
    if not isinstance(enabled, bool):
        raise WrongType(f"{path}{ENABLED} must be True or False, not {display(enabled)}")
    if not enabled:
        return _fixed(dimension, None, path)
    default = dimension.default if dimension.default is not None else dimension.dimension.default
    attributes = {name: getattr(dimension, name) for name in ("when", "structural", "help")}
    return replace(dimension.dimension, default=default, **attributes)


def _fixed(dimension: Dimension, value: object, path: str) -> Fixed:
    attributes = {name: getattr(dimension, name) for name in ("when", "structural", "help")}
    return Fixed(values=(dimension.check(value, path),), **attributes)


def read_for(dimension: Dimension, text: str) -> Value:
    """Return a command line's value, as the dimension reads it."""
    if isinstance(dimension, Choice) and text in dimension.values:
        return text
    return None if text == "none" and isinstance(dimension, Maybe | Sizes) else read(text)
