"""All kernels; importing this module compiles them, or loads their machine code."""

from __future__ import annotations

from .control import step
from .descent import adam, clip, rmsprop
from .layers import activate, slope
from .numpy_loops import cosine_and_sine
from .policies import act, differentiate, log_probs, values
from .rollouts import play

__all__ = [
    "act",
    "activate",
    "adam",
    "clip",
    "cosine_and_sine",
    "differentiate",
    "log_probs",
    "play",
    "rmsprop",
    "slope",
    "step",
    "values",
]
