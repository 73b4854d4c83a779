"""Functions that are tasks, for tests and for the processes that tests start."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import rekindle
import torch
from rekindle import Space, categorical, integer, log_real, maybe, real

SPACE = Space(lr=log_real(1e-3, 1.0, default=0.1), noise=Space(scale=real(0.0, 1.0, default=0.5)))


@rekindle.task(space=SPACE, objective="error:minimize", bounds=(0, None))
def descend(hp: Any, state: Any, seed: int, epoch: int) -> tuple[Any, dict[str, Any]]:
    """Descend to 3 with noise from every generator there is."""
    at = torch.full((2,), 3.0 + seed) if state is None else state["at"]
    drawn = torch.from_numpy(rekindle.rng(seed, "own", epoch).normal(size=2))
    noise = torch.randn(2) + np.random.randn() + random.gauss() + drawn
    at = at - hp.lr * (at - 3) + 0.1 * hp.noise.scale * noise
    return {"at": at, "epochs": (epoch,)}, {"error": (at - 3).abs().mean(), "epoch": epoch}


@rekindle.task(space=Space(rows=integer(1, 4, default=1), more=maybe(real(0, 1), default=None)), objective="rows")
def collect(hp: Any, state: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Collect rows without an end."""
    rows = [] if state is None else state["rows"]
    return {"rows": [*rows, np.zeros((1 << 10, hp.rows))], "more": hp.more}, {"rows": len(rows)}


@rekindle.task(space=SPACE, objective="return")
def climb(hp: Any, state: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return the same return at each epoch."""
    return {}, {"return": 1.0}


@rekindle.task(space=Space(speed=real(0.0, 1.0, default=0.9)), objective="reward")
def drive(hp: Any, state: Any, seed: int, epoch: int) -> tuple[Any, dict[str, Any]]:
    """Earn more the faster one drives, at a cost of 40 at full speed."""
    noise = 0.1 * rekindle.rng(seed, "noise", epoch).normal(size=2)
    return {}, {"reward": hp.speed + noise[0], "cost": 40 * hp.speed + noise[1]}


@rekindle.task(space=SPACE, objective="return")
def walk_a_set(hp: Any, state: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Go through a set of texts, whose order depends on their hashes."""
    return {"way": list({f"place {number}" for number in range(30)})}, {"return": 1.0}


@rekindle.task(space=Space(sizes=categorical([8, 8], [16], default=[8, 8])), objective="sizes")
def disturb(hp: Any, state: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Change a hyperparameter's list, and settings of the process."""
    hp.sizes.append(1)
    torch.set_default_dtype(torch.float64)
    os.environ["DISTURBED"] = "yes"
    os.chdir("/")
    return None, {"sizes": len(hp.sizes)}


@rekindle.task(space=SPACE, objective="digits")
def count_digits(hp: Any, state: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Return a whole number that Python does not write."""
    return {"number": 10**5000}, {"digits": 5001}


@rekindle.task(space=SPACE, objective="digits")
def measure_digits(hp: Any, state: Any, seed: int) -> tuple[Any, dict[str, Any]]:
    """Measure a number that no float holds."""
    return None, {"digits": 10**400}
