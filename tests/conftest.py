"""What all tests share: the folder of helpers, and random examples that are the same in every run."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))  # for `import fakes`, also by EnvSpec("fakes:...")

# A busy machine is no failure.
settings.register_profile("rekindle", deadline=None, derandomize=True, database=None, max_examples=50)
settings.load_profile("rekindle")
