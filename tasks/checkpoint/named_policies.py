"""Policies that are named by their digest.

A name is ``policy/`` and the beginning of the digest, so whichever storage holds the policy gives the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from torch import Tensor

from .manifests import canonical_json
from .state import Packed, pack, unpack
from .storage import OPEN, POLICY_PREFIX

FORMAT = 1
_SOURCES: dict[str, str] = {}  # what people called policies in this process, by their names; for messages only


class NamedPolicy(NamedTuple):
    """A policy, and how it was made.

    Attributes:
        identity: identity of its task.
        epochs: epochs that the task had trained.
        policy: its tensors, by name.
    """

    identity: Mapping[str, Any]
    epochs: int
    policy: Mapping[str, Tensor]

    def packed(self) -> Packed:
        """Return the policy as it is stored."""
        identity = canonical_json(self.identity).decode()
        return pack({"format": FORMAT, "identity": identity, "epochs": self.epochs, "policy": dict(self.policy)})


def is_named(text: str) -> bool:
    """Return whether a text is the name of a policy."""
    return text.startswith(POLICY_PREFIX)


def remember(name: str, source: str) -> None:
    """Note which task or file a policy came from."""
    _SOURCES[name] = source


def called(name: str) -> str:
    """Return what a person called a policy, and its name."""
    return f"{_SOURCES[name]} ({name})" if name in _SOURCES else name


@lru_cache(maxsize=64)
def named_policy(name: str) -> NamedPolicy:
    """Return the policy with this name.

    Raises:
        ValueError: no open storage holds it with its task, in this format.
    """
    for storage in [*OPEN]:
        if (saved := storage.load(name)) is not None and saved.digest.startswith(name.removeprefix(POLICY_PREFIX)):
            tree = unpack(saved.manifest, saved.fetch)
            if tree.get("format") == FORMAT and "identity" in tree:
                return NamedPolicy(json.loads(tree["identity"]), tree["epochs"], tree["policy"])
    raise ValueError(
        f"a policy that plays is in the storage of its task, but no open storage holds {name}; name the task or the "
        "file that it came from again"
    )
