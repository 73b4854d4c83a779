"""Secrets in environment variables."""

from __future__ import annotations

import pytest
from rekindle.tasks.runtime.secrets import without_secrets

SECRET = ["HF_TOKEN", "WANDB_API_KEY", "DB_PASSWORD_2", "client_secret", "APIKEY", "S3_AUTH", "KEY"]
PLAIN = ["KEYBOARD", "TOKENIZERS_PARALLELISM", "MONKEY", "PWD", "AUTHOR", "HOME"]


@pytest.mark.parametrize(("names", "left"), [(SECRET, "login(***) failed"), (PLAIN, "login(abc.def/123) failed")])
def test_a_variable_with_the_name_of_a_secret_is_removed(names: list[str], left: str) -> None:
    for name in names:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(name, "abc.def/123")
            assert without_secrets("login(abc.def/123) failed") == left, name


def test_short_values_stay_and_lines_of_longer_ones_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", "12345")
    monkeypatch.setenv("A_KEY", "BEGIN KEY\nMIIEvQIBADANB\nEND KEY\n")
    assert without_secrets("12345 MIIEvQIBADANB") == "12345 ***"


def test_further_variables_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHRASE", "correct horse")
    monkeypatch.setenv("REKINDLE_SECRETS", "OTHER, PHRASE")
    assert without_secrets("said correct horse") == "said ***"
