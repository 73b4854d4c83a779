"""Learner whose members are models of sbx, which JAX computes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import numpy as np
import torch
from torch import Tensor

from ..errors import UnsupportedSpace
from ..runtime.fingerprint import InexactWarning
from .jax_trees import leaves_of, start
from .model_learner import SB3Learner

KEYS = ("key", "noise_key")  # of a policy, from which it draws actions


class SBXLearner(SB3Learner):
    """State of a model of sbx."""

    functions = True  # activations and optimizers are functions there

    def build(self) -> None:
        if self.device.type != "cpu":
            raise UnsupportedSpace(
                f"{self.place} trains on the CPU, but its device is {self.device}; take --device cpu"
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
        states = {name: x.params for name, x in vars(self.model.policy).items() if hasattr(x, "opt_state")}
        arrays = {f"{name}.{path}": x for name, tree in states.items() for path, x in leaves_of(tree).items()}
        return {path: torch.from_numpy(np.array(x)) for path, x in arrays.items()}
