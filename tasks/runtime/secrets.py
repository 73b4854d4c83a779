"""Removal of secrets in environment variables from texts."""

from __future__ import annotations

import os
import re

VARIABLE = "REKINDLE_SECRETS"  # environment variable with names of further variables that hold secrets, by commas
SHORTEST = 6  # characters of a value that is removed: shorter ones occur by accident
_NAME = re.compile(
    r"(?i)(?:^|_)(?:token|secret|password|passwd|passphrase|credential|auth|(?:api|access|private)?key)s?\d*(?:_|$)"
)


def without_secrets(text: str) -> str:
    """Replace values of environment variables with a secret's name by ***.

    Such names have a part TOKEN, SECRET, PASSWORD, KEY or the like, as HF_TOKEN and WANDB_API_KEY do.
    """
    further = os.environ.get(VARIABLE, "").replace(" ", "").split(",")
    values = {value for name, value in os.environ.items() if _NAME.search(name) or name in further}
    lines = {line.strip() for value in values for line in (value, *value.splitlines())}
    for secret in sorted(lines, key=len, reverse=True):
        if len(secret) >= SHORTEST:
            text = text.replace(secret, "***")
    return text
