"""All kernels, which importing this module compiles or loads."""

from __future__ import annotations

from .control import step
from .descent import adam, clip, rmsprop
from .heads import head, head_slope, infer, join, to_inputs
from .layers import activate, slope
from .numpy_loops import cosine_and_sine
from .off_policy import follow, huber, n_step_batch, soft_value, soft_value_slope, squash, squash_slope, store, twins
from .policies import act, differentiate, log_probs, values
from .rollouts import play

__all__ = [
    "act",
    "activate",
    "adam",
    "clip",
    "cosine_and_sine",
    "differentiate",
    "follow",
    "head",
    "head_slope",
    "huber",
    "infer",
    "join",
    "log_probs",
    "n_step_batch",
    "play",
    "rmsprop",
    "slope",
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
