"""Results as text: at least three digits, and more where two results would look equal."""

from __future__ import annotations

import pytest
from rekindle.studies.study.number_text import in_digits, in_digits_alone, share


@pytest.mark.parametrize(
    ("results", "texts"),
    [
        ([0.15, 0.0, 0.25], ["0.150", "0.000", "0.250"]),  # FrozenLake: returns are success rates
        ([500.0, 148.8, None], ["500.0", "148.8", ""]),
        ([500.0, 148.8, 148.85], ["500.00", "148.80", "148.85"]),
        ([0.15, 0.05], ["0.1500", "0.0500"]),
        ([0.97312, 0.97313], ["0.97312", "0.97313"]),
        ([12345.0, 9155.0], ["12,345", "9,155"]),
        ([-1234.56, -1234.57], ["-1,234.56", "-1,234.57"]),
        ([-1234.56, -1500.0], ["-1,235", "-1,500"]),
        ([1.0000001, 1.0000002], ["1.00000", "1.00000"]),  # nobody reads more than six digits
        ([0.0001], ["0.000100"]),
        ([0.5, -0.5, 1e-17, -1e-17], ["0.500", "-0.500", "0.000", "0.000"]),  # sums of floats are rarely 0
        ([500.0, 7e-14], ["500.0", "0.0"]),
        ([0.0, 0.0], ["0.0", "0.0"]),
        ([0.1 + 0.2, 0.3, 0.7], ["0.300", "0.300", "0.700"]),  # nor are equal sums of them the same number
        ([float("inf"), 1.5], ["inf", "1.50"]),
        ([], []),
    ],
)
def test_results_have_as_many_digits_as_tell_them_apart(results: list[float | None], texts: list[str]) -> None:
    assert in_digits(results) == texts


def test_a_single_result_has_three_digits() -> None:
    assert [in_digits_alone(result) for result in (0.15, 148.8, 21.25, 1234.4)] == ["0.150", "148.8", "21.2", "1,234"]


def test_a_share_is_all_or_nothing_only_if_it_is() -> None:
    shares = [share(value) for value in (0.0, 0.001, 0.5, 0.999, 1.0)]
    assert shares == ["0%", "less than 1%", "50%", "more than 99%", "100%"]
