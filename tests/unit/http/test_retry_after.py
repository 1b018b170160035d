"""``retry_after``: both forms of the header."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from aioparallel.http import retry_after

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Sat, 21 Nov 2026 12:01:30 GMT", 90.0),
        ("Saturday, 21-Nov-26 12:01:30 GMT", 90.0),
        ("Sat Nov 21 12:01:30 2026", 90.0),
        ("Sat, 21 Nov 2026 11:00:00 GMT", 0.0),
        ("-1", None),
        ("1.5", 1.5),
        ("1.", None),
        ("nan", None),
        ("soon", None),
        ("", None),
        ("²", None),
        ("99999999999999999999", 1e6),
    ],
)
def test_seconds_and_dates(text: str, seconds: float | None) -> None:
    """A number of seconds, or any date of HTTP; what is past is no wait, what is neither says nothing."""
    assert retry_after({"Retry-After": text}, NOW) == seconds


def test_without_the_header() -> None:
    """It says nothing."""
    assert retry_after({}) is None
    assert retry_after({"retry-AFTER": "3"}) == 3
    assert (
        retry_after({"Retry-After": "9" * 20}) == retry_after({"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}) == 1e6
    )


@pytest.mark.parametrize("name", ["Date", "date"])
def test_a_date_counts_from_the_answers_own(name: str) -> None:
    """Both are of the server's clock, which may be hours away from ours."""
    date = "Sat, 21 Nov 2026 15:30:00 GMT"
    headers = {"Retry-After": "Sat, 21 Nov 2026 15:30:30 GMT", name: date}
    assert retry_after(headers, NOW) == retry_after(headers) == 30.0
    assert retry_after({**headers, "Retry-After": "Sat, 21 Nov 2026 15:29:00 GMT"}) == 0.0
    assert retry_after({**headers, "Retry-After": "7"}) == 7.0


@pytest.mark.parametrize("date", ["", "today", "Sat, 99 Nov 2026 15:30:00 GMT"])
def test_where_the_answer_has_no_date_our_clock_counts(date: str) -> None:
    """Or one that is none."""
    assert retry_after({"Retry-After": "Sat, 21 Nov 2026 12:00:30 GMT", "Date": date}, NOW) == 30.0
