"""All kernels; importing this module compiles them, or loads their machine code."""

from __future__ import annotations

from .control import cartpole
from .descent import adam, clip, rmsprop
from .layers import activate, slope
from .policies import act, differentiate, log_probs, values

__all__ = ["act", "activate", "adam", "cartpole", "clip", "differentiate", "log_probs", "rmsprop", "slope", "values"]
