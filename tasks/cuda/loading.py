"""Activation of the batch-invariant operators."""

from __future__ import annotations

import functools
import importlib.util
import warnings

import torch

from ..errors import TaskError

_libraries: list[torch.library.Library] = []  # kept alive; deleting one would restore torch's own operators


@functools.cache
def use_batch_invariant_operators() -> None:
    """Replace the CUDA operators whose rounding depends on the batch.

    The replacement applies to the whole process, beneath autograd, so algorithms need no changes. A second call does
    nothing.

    Raises:
        TaskError: Triton is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise TaskError(
            "on CUDA, sums and batched products are computed by Triton, which is not installed; PyTorch for CUDA "
            "brings it along on Linux, elsewhere take device='cpu'"
        )
    from .operators import REPLACEMENTS

    torch.backends.cudnn.deterministic = True
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*verriding a previously registered kernel", UserWarning)
        for name, operator in REPLACEMENTS.items():
            library.impl(name, operator, "CUDA")
    _libraries.append(library)


def version() -> str:
    """Return the compiler's version, on which last bits on CUDA depend."""
    use_batch_invariant_operators()
    import triton

    return f"triton {triton.__version__}"
