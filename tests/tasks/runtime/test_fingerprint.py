"""What the last bits may depend on: the place of a matrix in memory must not be part of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from rekindle.tasks.runtime.fingerprint import InexactWarning, products_are_exact

PLACES = """
import rekindle
import torch
torch.set_num_threads(1)
for batch in (2, 3, 8, 33, 64):
    for inputs in (2, 5, 10, 17, 33, 64):
        for outputs in (2, 5, 7, 17, 33, 64):
            x, weight = torch.randn(6, batch, inputs), torch.randn(6, inputs, outputs)
            together = torch.bmm(x, weight)
            for i in range(6):
                alone = torch.bmm(x[i : i + 1].clone(), weight[i : i + 1].clone())
                assert torch.equal(alone[0], together[i]), (batch, inputs, outputs, i)
"""


def test_products_do_not_depend_on_the_place_in_memory_once_the_package_is_imported() -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MKL")}
    subprocess.run([sys.executable, "-c", PLACES], env=clean, check=True)


def test_products_that_depend_on_the_place_in_memory_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    product = torch.bmm
    monkeypatch.setattr(torch, "bmm", lambda x, y: product(x, y) * (1 + 1e-6 * (len(x) > 1)))
    products_are_exact.cache_clear()
    with pytest.warns(InexactWarning, match="import rekindle before torch computes anything"):
        assert not products_are_exact()
    products_are_exact.cache_clear()
