"""All kernels, which importing this module compiles or loads."""

from __future__ import annotations

from .control import cosine_and_sine, play, step
from .descent import clip, descend, descend_q, descend_sac, optimize
from .off_policy import (
    find_children,
    follow,
    huber,
    n_step_batch,
    set_children,
    soft_value,
    soft_value_slope,
    squash,
    squash_slope,
    store,
    twins,
)
from .perceptrons import backward, forward, infer, join, to_inputs
from .policies import act, differentiate, log_probs, values

__all__ = [
    "act",
    "backward",
    "clip",
    "cosine_and_sine",
    "descend",
    "descend_q",
    "descend_sac",
    "differentiate",
    "find_children",
    "follow",
    "forward",
    "huber",
    "infer",
    "join",
    "log_probs",
    "n_step_batch",
    "optimize",
    "play",
    "set_children",
    "soft_value",
    "soft_value_slope",
    "squash",
    "squash_slope",
    "step",
    "store",
    "to_inputs",
    "twins",
    "values",
]
