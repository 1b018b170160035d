"""The groups of options: each wrong one is refused with its name, the value and what is allowed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from types import MappingProxyType
from typing import Any

import pydantic
import pytest

from aioparallel.config.policies import Deduplicate, FailurePolicy, Producing, RetryPolicy, Transactions
from aioparallel.records.errors import AioparallelError, ConfigurationError
from aioparallel.records.record import Record

NAN, INF = float("nan"), float("inf")
ENDS = RetryPolicy(max_attempts=3)
SECONDS = "must be seconds, from 0 to 10,000,000"


async def put_away(record: Record[Any, Any], error: Exception) -> None:
    """A dead-letter function."""


class PutAway:
    """An object that is one."""

    async def __call__(self, record: Record[Any, Any], error: Exception) -> None: ...


def plain(*args: object) -> float:
    """No coroutine."""
    return 1.0


def refused(make: type[object], option: str, given: dict[str, Any], value: object, allowed: str) -> None:
    """The refusal is ``<group> <option>=<value>: <what is allowed>``, ours and a ValueError."""
    with pytest.raises(ConfigurationError) as caught:
        make(**given)
    error = caught.value
    assert str(error) == f"{make.__name__} {option}={value!r}: {allowed}"
    assert (error.option, error.allowed) == (f"{make.__name__} {option}", allowed)
    assert isinstance(error, ValueError)
    assert isinstance(error, AioparallelError)


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        *[(name, value, SECONDS) for name in ("first_delay", "max_delay") for value in (-1, NAN, INF, 1e7, "1", True)],
        *[("max_elapsed", value, SECONDS) for value in (-0.1, NAN, 1e7, "1", False)],
        *[("max_wait", value, SECONDS) for value in (-0.1, NAN, INF, 1e7, "1", False)],
        *[("multiplier", value, "must be from 1 to 1,000") for value in (0.99, 0, -2, 1_001, NAN, "2", True, None)],
        *[("jitter", value, "must be from 0 to 1") for value in (-0.1, 1.1, NAN, "0", True, None)],
        *[("max_attempts", value, "must be a whole number of at least 1") for value in (0, -1, 2.0, "3", True)],
        *[
            ("retry_on", value, "must be an exception class, or a tuple of them")
            for value in (BaseException, 3, "OSError", OSError(), None)
        ],
        ("retry_on", (OSError, KeyboardInterrupt), "must be an exception class, or a tuple of them"),
        ("retry_on", (OSError, "KeyError"), "must be an exception class, or a tuple of them"),
        ("retry_on", [OSError], "must be an exception class, or a tuple of them"),
    ],
)
def test_a_wrong_retry_policy_is_refused(option: str, value: object, allowed: str) -> None:
    """Each of its options, at and beyond its limits and of other types."""
    refused(RetryPolicy, option, {option: value}, value, allowed)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"first_delay": 0, "max_delay": 0, "jitter": 0, "multiplier": 1},
        {"first_delay": 9_999_999, "jitter": 1, "multiplier": 1_000},
        {"max_attempts": 1, "max_elapsed": 0},
        {"retry_on": (OSError, KeyError)},
        {"retry_on": ()},
    ],
)
def test_retry_policies_at_the_limits(given: dict[str, Any]) -> None:
    """The limits themselves are allowed; ``retry_on=()`` tries nothing again."""
    RetryPolicy(**given)


@pytest.mark.parametrize(
    ("given", "endless"),
    [({}, True), ({"max_attempts": 1}, False), ({"max_elapsed": 0}, False), ({"retry_on": ()}, True)],
)
def test_endless(given: dict[str, Any], endless: bool) -> None:
    """Without a limit of attempts or time something may be tried for ever."""
    assert RetryPolicy(**given).is_endless is endless


@pytest.mark.parametrize(
    ("option", "given", "value", "allowed"),
    [
        ("retry", {"retry": 3}, 3, "must be a RetryPolicy or a function"),
        ("retry", {"retry": None}, None, "must be a RetryPolicy or a function"),
        ("give_up", {"give_up": "dead_letter"}, "dead_letter", "must be one of stop, skip"),
        ("give_up", {"give_up": None}, None, "must be one of stop, skip"),
        (
            "give_up",
            {"give_up": "skip", "dead_letter": "dead"},
            "skip",
            "cannot be combined with dead_letter: leave one of them out",
        ),
        ("dead_letter", {"dead_letter": " "}, " ", "must be the name of a topic"),
        *[
            (
                "dead_letter",
                {"dead_letter": value},
                value,
                "must be the name of a topic, or an async function of the record and the exception",
            )
            for value in (plain, 3, b"dead")
        ],
        (
            "dead_letter",
            {"retry": ENDS, "dead_letter": "r", "retry_topics": {"r": 1}},
            "r",
            "is one of the retry_topics",
        ),
        *[
            ("retry_topics", {"retry": ENDS, "retry_topics": value}, value, "must map names of topics to seconds")
            for value in (["r"], "r", {"": 1}, {3: 1}, {b"r": 1}, None, 0, [])
        ],
        *[
            ("retry_topics['r']", {"retry": ENDS, "retry_topics": {"r": value}}, value, SECONDS)
            for value in (-1, "5", None, NAN)
        ],
        (
            "retry_topics",
            {"retry": RetryPolicy(), "retry_topics": {"r": 5}},
            {"r": 5},
            "would never be used: retry has no end; give it max_attempts (1: straight to the first), max_elapsed "
            "or max_wait",
        ),
    ],
)
def test_a_wrong_failure_policy_is_refused(option: str, given: dict[str, Any], value: object, allowed: str) -> None:
    """Each of its options, and those that do not fit together."""
    refused(FailurePolicy, option, given, value, allowed)


def test_retries_end_where_a_record_has_somewhere_to_go() -> None:
    """Unless a policy is given, even one without an end."""
    assert FailurePolicy().retry == FailurePolicy(give_up="skip").retry == RetryPolicy()
    ten = RetryPolicy(max_attempts=10)
    assert FailurePolicy(dead_letter="dead").retry == FailurePolicy(retry_topics={"r": 5}).retry == ten
    assert replace(FailurePolicy(), dead_letter="dead").retry == ten
    assert replace(FailurePolicy(dead_letter="dead"), dead_letter=None).retry == RetryPolicy()
    assert FailurePolicy(retry=RetryPolicy(), dead_letter="dead").retry == RetryPolicy()


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({}, "stop"),
        ({"give_up": "skip"}, "skip"),
        ({"dead_letter": "dead"}, "dead_letter"),
        ({"dead_letter": put_away}, "dead_letter"),
        ({"dead_letter": PutAway()}, "dead_letter"),
        ({"retry": plain, "retry_topics": {"r": 0}}, "stop"),
        ({"retry": ENDS, "retry_topics": MappingProxyType({"r": 5}), "dead_letter": "dead"}, "dead_letter"),
    ],
)
def test_the_end_of_patience(given: dict[str, Any], end: str) -> None:
    """dead_letter where there is one, else give_up, which is "stop" unless said otherwise."""
    assert FailurePolicy(**given).retry_budget.end == end


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        *[
            ("max_unacknowledged_bytes", value, "must be a whole number of at least 1")
            for value in (0, -1, 1.5, "32M", True, None)
        ],
        *[("delivery_timeout", value, SECONDS) for value in (-1, NAN, 1e7, "120", True, None)],
        ("delivery_timeout", 0, "must be more than 0 seconds"),
        *[("on_produced", value, "must be a plain function") for value in (3, "f", put_away, PutAway())],
        *[("client_options", value, "must be a mapping of names") for value in (None, [("linger_ms", 5)], "linger_ms")],
    ],
)
def test_wrong_producing_is_refused(option: str, value: object, allowed: str) -> None:
    """Each of its options."""
    refused(Producing, option, {option: value}, value, allowed)


def test_producing_at_the_limits() -> None:
    """The smallest values, and a function."""
    made = Producing(max_unacknowledged_bytes=1, delivery_timeout=0.001, on_produced=lambda *_: None)
    assert made.max_unacknowledged_bytes == 1


@pytest.mark.parametrize("made", [RetryPolicy(), FailurePolicy(), Producing()])
def test_groups_are_frozen(made: object) -> None:
    """What was checked stays as it was checked."""
    name = next(iter(type(made).__dataclass_fields__))  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        setattr(made, name, 3)


def test_groups_take_keywords_only() -> None:
    """A number alone would say nothing."""
    with pytest.raises(TypeError):
        RetryPolicy(3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    "policy", [RetryPolicy(), FailurePolicy(), Deduplicate("handled"), Producing(), Transactions()]
)
def test_a_policy_is_a_field_of_pydantic_settings(policy: object) -> None:
    """Applications that read their settings with pydantic have policies among them; so does the command line as soon as
    something has imported pydantic."""
    assert pydantic.TypeAdapter[Any](type(policy)).validate_python(policy) == policy
