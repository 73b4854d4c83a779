"""The public names of the package."""

from __future__ import annotations

import pytest
import rekindle.studies
from rekindle.studies import Keep, Objective, Store
from rekindle.studies.objective import Objective as ObjectiveAtHome
from rekindle.studies.storage.store import Store as StoreAtHome
from rekindle.tasks.checkpoint.retention import Keep as KeepAtHome


def test_every_public_name_is_its_class() -> None:
    assert (Keep, Objective, Store) == (KeepAtHome, ObjectiveAtHome, StoreAtHome)
    assert dir(rekindle.studies) == ["Keep", "Objective", "Store", "Study", "tune"]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'rekindle\.studies' has no attribute 'Stor'"):
        rekindle.studies.Stor  # noqa: B018
