"""What the last bits may depend on besides a task's identity: recorded at every start, compared at every resume."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy
import torch

from .. import __version__

Fingerprint = dict[str, Any]


def fingerprint(device: torch.device) -> Fingerprint:
    """Versions, processor and device, as JSON. Training always uses one thread, so threads are no part of it."""
    return {
        "rekindle": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "gymnasium": gymnasium.__version__,
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What differs, e.g. "torch 2.12.0 -> 2.13.0"; only names that both have are compared."""
    return [f"{name} {before[name]} -> {now[name]}" for name in now if name in before and before[name] != now[name]]
