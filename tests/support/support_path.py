"""Path of the tests' environments and helpers, for child processes that import them."""

from __future__ import annotations

from pathlib import Path

SUPPORT = str(Path(__file__).parent)
