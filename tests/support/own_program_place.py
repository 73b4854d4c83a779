"""Place of the program of `own_program`, which nothing should import."""

from __future__ import annotations

from pathlib import Path

PROGRAM = str(Path(__file__).with_name("own_program.py"))
