"""Kafka's error codes: which of them are retriable, for the real and the in-memory producer."""

from __future__ import annotations

import aiokafka.errors as kafka
import pytest

from aioparallel.clients.producing.produce_answers import Verdict, answer_of
from aioparallel.testing.memory import ErrorCode

PASSING = [2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 72, 74, 75, 78, 89, 100, 103, 122, 123, 133]
"""What the protocol guide calls retriable, of the codes that brokers answer to producers, members of groups or
anybody."""


@pytest.mark.parametrize("code", PASSING)
def test_what_passes_is_tried_again(code: int) -> None:
    """Whether aiokafka knows the code or not."""
    assert answer_of(code, -1, -1).verdict is Verdict.AGAIN


def test_nothing_that_aiokafka_tries_again_is_missing() -> None:
    """aiokafka's flags miss some codes; this package's table contains all of aiokafka's."""
    flagged = [code for code in range(-1, 130) if kafka.for_code(code).retriable]
    assert set(flagged) <= set(PASSING)


def test_unknown_codes_are_unclear() -> None:
    """After an unknown server error or a code of a later protocol, a batch may have been written."""
    for code in (-1, 8, 11, 999):
        assert answer_of(code, -1, -1).verdict is Verdict.UNCLEAR
    assert "error code 999" in answer_of(999, -1, -1).reason


def test_names_and_numbers_are_kafkas() -> None:
    """As far as aiokafka has the same names."""
    for code in ErrorCode:
        known = kafka.for_code(code.value)
        if known is not kafka.UnknownError and code.value >= 0:
            assert known.errno == code.value
    assert answer_of(2, -1, -1).reason == "the broker answered CORRUPT_MESSAGE (error code 2)"
