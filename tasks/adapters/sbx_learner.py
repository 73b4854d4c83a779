"""Learner whose members are models of sbx, which JAX computes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedSpace
from ..runtime.fingerprint import InexactWarning
from .jax_trees import leaves_of, start, with_leaves
from .model_learner import SB3Learner

KEYS = ("key", "noise_key")  # of a policy, from which it draws actions
STATISTICS = "batch_stats"  # part of a network's state


class SBXLearner(SB3Learner):
    """State of a model of sbx."""

    functions = True  # activations and optimizers are functions there

    def build(self) -> None:
        if self.device.type != "cpu":
            raise UnsupportedSpace(
                f"{self.title} trains on the CPU, but its device is {self.device}; take --device cpu"
            )
        if (threads := start()) > 1:
            warnings.warn(
                f"JAX must have one thread, since last bits depend on their number, but it has {threads}: load the "
                "task before JAX computes anything, or start Python with NPROC=1",
                InexactWarning,
                stacklevel=2,
            )
        super().build()

    @contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        policy = self.model.policy
        before = {name: vars(policy)[name] for name in KEYS if name in vars(policy)}
        vars(policy).update(dict.fromkeys(before, jax.random.PRNGKey(seed)))
        try:
            with super().seeded(seed):
                yield
        finally:
            vars(policy).update(before)

    def network_views(self, member: int) -> dict[str, Tensor]:
        return self._arrays("params", "")

    def policy_views(self, member: int) -> dict[str, Tensor]:
        arrays = self._arrays(STATISTICS, f"{STATISTICS}.").items()
        # batch renormalization also keeps limits there, for which training alone has a use
        return super().policy_views(member) | {name: x for name, x in arrays if name.endswith((".mean", ".var"))}

    def _arrays(self, part: str, prefix: str) -> dict[str, Tensor]:
        """Return copies of arrays in the networks' states, by name."""
        trees = {name: getattr(state, part, {}) for name, state in self._states().items()}
        arrays = {f"{name}.{prefix}{path}": x for name, tree in trees.items() for path, x in leaves_of(tree).items()}
        return {path: torch.from_numpy(np.array(x)) for path, x in arrays.items()}

    def _states(self) -> dict[str, Any]:
        """Return the networks' states, by name."""
        return {name: x for name, x in vars(self.model.policy).items() if hasattr(x, "opt_state")}

    def adopt(self, member: int, policy: Mapping[str, Tensor]) -> None:
        super().adopt(member, policy)  # checks the names; arrays of JAX cannot be changed in place
        for name, state in self._states().items():
            parts = {"params": _replaced(state.params, f"{name}.", policy)}
            if hasattr(state, STATISTICS):
                parts[STATISTICS] = _replaced(state.batch_stats, f"{name}.{STATISTICS}.", policy)
            if hasattr(state, "target_params"):
                parts["target_params"] = parts["params"]
            setattr(self.model.policy, name, state.replace(**parts))


def _replaced(tree: Any, prefix: str, policy: Mapping[str, Tensor]) -> Any:
    """Return a tree with a policy's arrays, whose names have a prefix."""
    leaves = leaves_of(tree)
    arrays = {path: jax.numpy.asarray(policy[f"{prefix}{path}"].numpy()) for path in leaves if prefix + path in policy}
    return with_leaves(tree, leaves | arrays)
