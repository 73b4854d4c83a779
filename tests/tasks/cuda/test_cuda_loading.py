"""The CUDA operators without Triton."""

from __future__ import annotations

import sys

import pytest
from rekindle.tasks.cuda.loading import use_batch_invariant_operators
from rekindle.tasks.errors import TaskError


def test_without_triton_an_error_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(TaskError, match=r"computed by Triton, which is not installed; .* elsewhere take device='cpu'"):
        use_batch_invariant_operators.__wrapped__()  # as if for the first time in this process
