"""Seeds that confirmations of a study have used, for later ones.

Their results may have been seen, and may be why the study was changed. Where confirmations are not beside their study,
as after their deletion or in another database, its configuration remembers the seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import StoreError
from ..schedulers.confirming import USED, first_unused
from ..storage.rows import Study
from ..study.config import Config

Form = Mapping[str, Any]  # a stored configuration, which any program may have written


def confirmed_study(form: Form) -> str | None:
    """Return the study that a stored configuration confirms, or None."""
    confirms = _options(form).get("confirms")
    return confirms.get("study") if isinstance(confirms, Mapping) else None


def used_seeds(confirmations: Iterable[Study]) -> int:
    """Return the number of seeds that confirmations of one study have used."""
    used = 0
    for row in confirmations:
        try:
            used = max(used, first_unused(Config.from_json(row.config, row.name)))
        except (StoreError, KeyError, TypeError, ValueError):  # damaged, so that it has trained nothing
            continue
    return used


def with_used(form: Form, used: int) -> Form:
    """Return a study's configuration that remembers the number of used seeds."""
    used = max(used, _options(form).get(USED, 0))
    return {**form, "options": {**_options(form), USED: used}} if used else form


def without_used(form: Form) -> tuple[Form, int]:
    """Return a study's configuration without the number, and the number."""
    options = _options(form)
    used = options.get(USED, 0)
    return ({**form, "options": {name: x for name, x in options.items() if name != USED}} if used else form), used


def _options(form: Form) -> Form:
    options = form.get("options")
    return options if isinstance(options, Mapping) else {}
