"""``python -m rekindle``, the same as the command ``rekindle``."""

import sys

from .studies.cli import main

if __name__ == "__main__":
    sys.exit(main())
