"""Versions and hardware that the last bits of results may depend on.

They are recorded at every start and compared at every resume.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy
import torch

from ..._version import __version__
from ..compiled.loading import version as kernels_version
from ..cuda.loading import version as operators_version

Fingerprint = dict[str, Any]
KNOWN = {"rekindle", "gymnasium", "__main__"}  # packages whose versions are recorded; a script holds other things too


class InexactWarning(UserWarning):
    """Training continues, but its last bits may depend on the machine."""


def fingerprint(device: torch.device, compiled: bool = True) -> Fingerprint:
    """Return versions, processor and device, as JSON.

    Training always uses one thread, so the number of threads is not included.

    Args:
        device: device of the task.
        compiled: whether kernels compute something of it; else theirs is left out.
    """
    named = {"device": device.type}
    if device.type == "cuda":
        named = {"device": torch.cuda.get_device_name(device), "operators": operators_version()}
    return {
        "rekindle": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "gymnasium": gymnasium.__version__,
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        **({"kernels": kernels_version()} if compiled else {}),
        "products": "exact" if products_are_exact() else "by place in memory",
        **named,
    }


def code_of(modules: Iterable[str]) -> dict[str, str]:
    """Return digests of the files of a user's own modules, as JSON."""
    names = sorted({name for name in modules if name.partition(".")[0] not in KNOWN})
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {f"code of {name}": digest for name, file in files.items() if file and (digest := _digest(file))}


@functools.cache
def _digest(file: str) -> str:
    """Return the first digits of a file's sha256.

    It is computed once, as a process imports a file once.
    """
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    except OSError:  # in an archive
        return ""


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences, e.g. "torch 2.12.0 -> 2.13.0".

    Only names that both fingerprints have are compared.
    """
    return [f"{name} {before[name]} -> {now[name]}" for name in now if name in before and before[name] != now[name]]


@functools.cache
def products_are_exact() -> bool:
    """Return whether matrix products are independent of their factors' addresses.

    If they are not, warn once. The package asks MKL for such products with MKL_CBWR, which MKL reads before the first
    product of the process.
    """
    x, weight = (torch.linspace(-1, 1, 8 * n * m).view(8, n, m) for n, m in ((3, 17), (17, 33)))
    together = torch.bmm(x, weight)
    exact = all(
        torch.equal(torch.bmm(x[i : i + 1].clone(), weight[i : i + 1].clone())[0], together[i]) for i in range(8)
    )
    if not exact:
        warnings.warn(
            "matrix products must not depend on where in memory their factors lie, but here they do, so a task trained "
            "in a cohort may differ in its last bits from the same task alone: import rekindle before torch computes "
            "anything, or start Python with MKL_CBWR=AUTO",
            InexactWarning,
            stacklevel=2,
        )
    return exact
