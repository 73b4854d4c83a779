"""Where the environments and helpers of the tests lie, for child processes that import them too."""

from __future__ import annotations

from pathlib import Path

SUPPORT = str(Path(__file__).parent)
