"""What becomes of a record that has failed: delays and their bounds, limits, wishes, rejections, retry topics."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioparallel.config.policies import EndOfRetries, FailurePolicy, RetryPolicy
from aioparallel.engine.outcomes.failure_log import FailureLog
from aioparallel.engine.outcomes.failures import Decision, Failures, NotDue
from aioparallel.engine.outcomes.gates import Gate, NoRoom
from aioparallel.records.errors import (
    ConfigurationError,
    DeserializationError,
    NotToBlame,
    OutOfResources,
    Reject,
    RetryLater,
)
from aioparallel.records.history import history_of
from aioparallel.records.record import Record

ERROR = ValueError("no")
EXACT = RetryPolicy(first_delay=1, multiplier=2, max_delay=10, jitter=0)


def failed(attempts: int = 1, topic: str = "t") -> Record:
    """A record that was started so many times, with an attempt that fails now."""
    record = Record(topic, 0, 7)
    record._parks = attempts - 1
    return record


def decisions(policy: FailurePolicy, count: int, seconds: float = 0.0, topic: str = "t") -> list[Decision]:
    """What is decided of one record that fails so many times, ``seconds`` apart."""
    failures, record, made = Failures(policy.retry_budget), failed(topic=topic), []
    for attempt in range(count):
        made.append(failures.decide(record, ERROR, 1_000.0 + attempt * seconds, 1_000.0 + attempt * seconds))
        record._parks += 1
    return made


def test_the_default_never_gives_up() -> None:
    """Whatever was tried, there is a next delay, at most a minute and its jitter."""
    made = decisions(FailurePolicy(), 2_000, seconds=3600)
    assert all(one.delay is not None and 0 < one.delay <= 66 for one in made)


def test_delays_grow_to_the_longest() -> None:
    """Without jitter: first_delay, times the multiplier each time, up to max_delay."""
    made = decisions(FailurePolicy(retry=EXACT), 6)
    assert [one.delay for one in made] == [1, 2, 4, 8, 10, 10]


@given(
    first=st.floats(0, 1e6),
    multiplier=st.floats(1, 1_000),
    longest=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
    attempts=st.integers(1, 1_000_000),
)
def test_delays_keep_their_bounds(
    first: float, multiplier: float, longest: float, jitter: float, attempts: int
) -> None:
    """For any options and any number of attempts: never negative, never beyond max_delay and its jitter, no
    overflow."""
    policy = RetryPolicy(first_delay=first, multiplier=multiplier, max_delay=longest, jitter=jitter)
    delay = policy.delay(ERROR, attempts, elapsed=0.0)
    assert delay is not None
    assert 0 <= delay <= longest * (1 + jitter) + 1e-6
    assert delay >= min(first, longest) * (1 - jitter) - 1e-6


def test_jitter_spreads_around_the_delay() -> None:
    """What failed together is not tried together: 0.5 gives from half to one and a half of it, and both sides of it."""
    policy = RetryPolicy(first_delay=10, jitter=0.5)
    delays = [policy.delay(ERROR, 1, 0.0) or 0.0 for _ in range(1_000)]
    assert 5 <= min(delays) < 10 < max(delays) <= 15
    assert len(set(delays)) > 100


@pytest.mark.parametrize(
    ("policy", "end"),
    [
        (FailurePolicy(retry=RetryPolicy(max_attempts=3)), "stop"),
        (FailurePolicy(retry=RetryPolicy(max_attempts=3), give_up="skip"), "skip"),
        (FailurePolicy(retry=RetryPolicy(max_attempts=3), dead_letter="dead"), "dead_letter"),
    ],
)
def test_max_attempts_counts_the_first(policy: FailurePolicy, end: EndOfRetries) -> None:
    """3 are three calls of the handler: two delays, then what the policy says of the end."""
    *before, last = decisions(policy, 3)
    assert [one.delay is not None for one in before] == [True, True]
    assert last == Decision(end=end)


def test_one_attempt_is_no_retry() -> None:
    """max_attempts=1 ends at the first failure."""
    assert decisions(FailurePolicy(retry=RetryPolicy(max_attempts=1)), 1) == [Decision(end="stop")]


def test_max_elapsed_ends_before_an_attempt_that_would_be_too_late() -> None:
    """No attempt starts more than 20 s after the first failure: the third, at 10 s, could be at 14 s; the next is
    not made at 22 s."""
    policy = FailurePolicy(retry=RetryPolicy(first_delay=1, multiplier=2, max_delay=60, jitter=0, max_elapsed=20))
    failures, record = Failures(policy.retry_budget), failed()
    made = []
    for now in (100.0, 105.0, 110.0, 114.0):
        made.append(failures.decide(record, ERROR, now, now))
        record._parks += 1
    assert made == [Decision(delay=1), Decision(delay=2), Decision(delay=4), Decision(end="stop")]


def test_the_limit_of_elapsed_itself_is_allowed() -> None:
    """An attempt exactly at max_elapsed is made."""
    policy = RetryPolicy(first_delay=5, jitter=0, max_elapsed=5)
    assert policy.delay(ERROR, 1, 0.0) == 5
    assert policy.delay(ERROR, 1, 0.1) is None


def test_a_clock_set_back_does_no_harm() -> None:
    """Elapsed time is never negative: the patience is not prolonged, and nothing raises."""
    policy = FailurePolicy(retry=RetryPolicy(first_delay=5, jitter=0, multiplier=1, max_elapsed=5))
    failures, record = Failures(policy.retry_budget), failed()
    assert failures.decide(record, ERROR, 1_000.0, 1_000.0) == Decision(delay=5)
    assert failures.decide(record, ERROR, 10.0, 10.0) == Decision(delay=5)


def test_what_is_not_retried_on_ends_at_once() -> None:
    """Exceptions outside retry_on are final; their subclasses inside it are not."""
    failures = Failures(FailurePolicy(retry=RetryPolicy(retry_on=(OSError, KeyError)), give_up="skip").retry_budget)
    assert failures.decide(failed(), ERROR, 0.0, 0.0) == Decision(end="skip")
    assert failures.decide(failed(), ConnectionResetError(), 0.0, 0.0).delay is not None


def test_retry_later_is_taken_at_its_word() -> None:
    """Its delay is neither jittered nor cut to max_delay, and retry_on does not matter. (Regression: a whole number
    was taken for an end, so the record went to the dead letters.)"""
    failures = Failures(FailurePolicy(retry=RetryPolicy(max_delay=1, retry_on=KeyError)).retry_budget)
    assert failures.decide(failed(), RetryLater(77), 0.0, 0.0) == Decision(delay=77, waits=True)
    assert failures.decide(failed(), RetryLater(0), 0.0, 0.0) == Decision(delay=0, waits=True)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e7, "5", None, True])
def test_retry_later_refuses_what_is_no_delay(delay: Any) -> None:
    """A mistake in a handler is named there."""
    says = f"RetryLater delay={delay!r}: must be seconds, from 0 to 10,000,000"
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        RetryLater(delay)


@pytest.mark.parametrize(
    ("policy", "end"),
    [
        (FailurePolicy(), "stop"),
        (FailurePolicy(give_up="skip"), "skip"),
        (FailurePolicy(dead_letter="dead"), "dead_letter"),
        (FailurePolicy(retry=RetryPolicy(max_attempts=9), retry_topics={"r": 5}, dead_letter="dead"), "dead_letter"),
        (FailurePolicy(retry=lambda record, error, attempts: 1.0, dead_letter="dead"), "dead_letter"),
    ],
)
def test_reject_ends_the_patience(policy: FailurePolicy, end: EndOfRetries) -> None:
    """No more tries, no retry topic, no question to a retry function."""
    assert Failures(policy.retry_budget).decide(failed(), Reject("bad"), 0.0, 0.0) == Decision(end=end)


def always(verdict: object) -> Callable[[Record[Any, Any], Exception, int], Any]:
    """A retry function that always says this."""
    return lambda record, error, attempts: verdict


@pytest.mark.parametrize(
    ("verdict", "decision"),
    [
        (0, Decision(delay=0.0)),
        (2.5, Decision(delay=2.5)),
        (9_999_999, Decision(delay=9_999_999.0)),
        ("dead_letter", Decision(end="dead_letter", by_function=True)),
        ("skip", Decision(end="skip", by_function=True)),
        ("stop", Decision(end="stop", by_function=True)),
    ],
)
def test_what_a_retry_function_may_say(verdict: object, decision: Decision) -> None:
    """Seconds, or an end."""
    assert (
        Failures(FailurePolicy(retry=always(verdict), dead_letter="dead").retry_budget).decide(
            failed(), ERROR, 0.0, 0.0
        )
        == decision
    )


@pytest.mark.parametrize("verdict", [None, True, -1, float("nan"), float("inf"), 1e7, "retry", "", [1], object])
def test_what_a_retry_function_may_not_say(verdict: object) -> None:
    """The error names the verdict, the record, and what is allowed."""
    failures = Failures(FailurePolicy(retry=always(verdict), dead_letter="dead").retry_budget)
    with pytest.raises(ConfigurationError) as caught:
        failures.decide(failed(), ERROR, 0.0, 0.0)
    text = str(caught.value)
    assert text.startswith(f"FailurePolicy retry={verdict!r}: ")
    assert "<Record t-0 offset 7 attempt 1>" in text
    assert 'must be seconds (0 or more), "dead_letter", "skip" or "stop"' in text


def test_a_retry_function_needs_somewhere_for_dead_letters() -> None:
    """ "dead_letter" without one is refused with the record's name, not taken for a skip."""
    with pytest.raises(ConfigurationError, match="there is no dead_letter"):
        Failures(FailurePolicy(retry=always("dead_letter")).retry_budget).decide(failed(), ERROR, 0.0, 0.0)


def test_a_retry_function_sees_record_error_and_attempts() -> None:
    """Attempts are those in this topic: what a retry topic's record had before does not count."""
    seen: list[tuple[Record[Any, Any], Exception, int]] = []

    def retry(record: Record[Any, Any], error: Exception, attempts: int) -> float:
        seen.append((record, error, attempts))
        return 1.0

    failures, record = Failures(FailurePolicy(retry=retry).retry_budget), failed(3)
    history_of(record).attempts_before = 5
    failures.decide(record, ERROR, 0.0, 0.0)
    assert seen == [(record, ERROR, 3)]
    assert record.attempt == 8


def test_what_a_retry_function_raises_comes_out() -> None:
    """The caller ends the run with it."""

    def retry(record: Record[Any, Any], error: Exception, attempts: int) -> float:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Failures(FailurePolicy(retry=retry).retry_budget).decide(failed(), ERROR, 0.0, 0.0)


def test_retry_topics_come_in_turn() -> None:
    """From any topic the first, from each the next, after the last the end; each with the same patience again."""
    policy = FailurePolicy(
        retry=RetryPolicy(max_attempts=2, jitter=0), retry_topics={"r5": 5, "r60": 60}, dead_letter="dead"
    )
    for topic, then in (("t", "r5"), ("other", "r5"), ("r5", "r60")):
        assert decisions(policy, 2, topic=topic) == [Decision(delay=1), Decision(retry_topic=then)]
    assert decisions(policy, 2, topic="r60") == [Decision(delay=1), Decision(end="dead_letter")]


def test_a_retry_function_does_not_know_retry_topics() -> None:
    """It says itself what becomes of the record, and a delay is a delay."""
    policy = FailurePolicy(retry=always("skip"), retry_topics={"r5": 5})
    decision = Decision(end="skip", by_function=True)
    assert Failures(policy.retry_budget).decide(failed(), ERROR, 0.0, 0.0) == decision


def test_attempts_are_counted_anew_in_each_topic() -> None:
    """What was tried before the retry topic does not use up the patience here."""
    failures = Failures(FailurePolicy(retry=RetryPolicy(max_attempts=2, jitter=0), dead_letter="dead").retry_budget)
    record = failed(1)
    history_of(record).attempts_before = 7
    assert failures.decide(record, ERROR, 0.0, 0.0) == Decision(delay=1)
    assert record.attempt == 8


def test_not_due_is_no_attempt_and_no_failure() -> None:
    """A retry topic's record that comes early waits its time; the attempts go on where they were."""
    failures, record = Failures(FailurePolicy(retry=RetryPolicy(max_attempts=2, jitter=0)).retry_budget), failed()
    assert failures.decide(record, NotDue(4.5), 0.0, 0.0) == Decision(delay=4.5, waits=True)
    record._parks += 1
    assert (record.attempt, record.first_failure, record.last_failure) == (1, None, None)
    assert failures.decide(record, ERROR, 5.0, 5.0) == Decision(delay=1)
    record._parks += 1
    assert record.attempt == 2
    assert failures.decide(record, ERROR, 6.0, 6.0) == Decision(end="stop")


def test_failures_are_noted_on_the_record() -> None:
    """The first and the last, with time, class and text; the exception itself is not kept."""
    failures, record = Failures(FailurePolicy().retry_budget), failed()
    failures.decide(record, ValueError("one"), 10.0, 10.0)
    failures.decide(record, RetryLater(1, "waiting is not failing"), 15.0, 15.0)
    failures.decide(record, KeyError("two"), 20.0, 20.0)
    first, last = record.first_failure, record.last_failure
    assert first == (10.0, "ValueError", "one")
    assert last == (20.0, "KeyError", "'two'")


def test_a_failure_s_text_is_cut_and_may_fail() -> None:
    """1,000 characters are kept; an exception whose text cannot be made does no harm."""

    class MuteError(Exception):
        def __str__(self) -> str:
            raise KeyError("x")

    failures, record = Failures(FailurePolicy().retry_budget), failed()
    failures.decide(record, ValueError("x" * 5_000), 0.0, 0.0)
    assert record.last_failure is not None
    assert len(record.last_failure.message) == 1_000
    failures.decide(record, MuteError(), 0.0, 0.0)
    assert record.last_failure.message == "(its text could not be made: KeyError)"
    assert record.last_failure.type.endswith("MuteError")


# -- waiting is not failing -----------------------------------------------------------------------------


def waits(policy: FailurePolicy, times: list[float], delay: float = 1) -> tuple[Record, list[Decision]]:
    """What is decided of one record that asks for patience at these times."""
    failures, record, made = Failures(policy.retry_budget), failed(), []
    for now in times:
        made.append(failures.decide(record, RetryLater(delay), now, now))
        record._parks += 1
    return record, made


def test_retry_later_counts_no_attempt() -> None:
    """Waiting is not failing: a throttling service uses up no patience, and the handler sees the same attempt."""
    policy = FailurePolicy(retry=RetryPolicy(max_attempts=2, jitter=0), dead_letter="dead")
    record, made = waits(policy, [float(i) for i in range(1_000)])
    assert made == [Decision(delay=1, waits=True)] * 1_000
    assert (record.attempt, record.first_failure, record.last_failure) == (1, None, None)
    failures = Failures(policy.retry_budget)
    assert failures.decide(record, ERROR, 1_000.0, 1_000.0) == Decision(delay=1)
    record._parks += 1
    assert record.attempt == 2
    assert failures.decide(record, ERROR, 1_001.0, 1_001.0) == Decision(end="dead_letter")


def test_time_spent_waiting_does_not_count_for_max_elapsed() -> None:
    """Failing at 0 s, waiting for 100 s because a service asked for it, failing again: 5 s have elapsed, not 105."""
    failures, record = (
        Failures(FailurePolicy(retry=RetryPolicy(first_delay=1, jitter=0, max_elapsed=10)).retry_budget),
        failed(),
    )
    assert failures.decide(record, ERROR, 0.0, 0.0) == Decision(delay=1)
    record._parks += 1
    assert failures.decide(record, RetryLater(100), 4.0, 4.0) == Decision(delay=100, waits=True)
    record._parks += 1
    assert failures.decide(record, ERROR, 105.0, 105.0) == Decision(delay=2)
    record._parks += 1
    assert failures.decide(record, ERROR, 109.0, 109.0) == Decision(end="stop")


def test_max_wait_ends_the_waiting() -> None:
    """Seconds from the first RetryLater of the record: no wait ends later. Then it is a failure like others, noted, and
    the record goes where those go whose patience has ended."""
    policy = FailurePolicy(retry=RetryPolicy(max_wait=10), dead_letter="dead")
    record, made = waits(policy, [50, 53, 59, 59.5])
    assert made == [*[Decision(delay=1, waits=True)] * 3, Decision(end="dead_letter")]
    assert record.last_failure is not None
    assert record.last_failure.type == "aioparallel.errors.RetryLater"


def test_max_wait_itself_is_allowed_and_failures_between_do_not_begin_it_anew() -> None:
    """A wait that ends exactly then is made."""
    failures, record = Failures(FailurePolicy(retry=RetryPolicy(max_wait=10)).retry_budget), failed()
    assert failures.decide(record, RetryLater(10), 0.0, 0.0) == Decision(delay=10, waits=True)
    failures.decide(record, ERROR, 5.0, 5.0)
    assert failures.decide(record, RetryLater(5.1), 5.0, 5.0) == Decision(end="stop")


def test_max_wait_leads_to_the_retry_topics() -> None:
    """As the end of any patience; so it is enough of an end for them."""
    policy = FailurePolicy(retry=RetryPolicy(max_wait=0.5), retry_topics={"r": 5})
    assert waits(policy, [0.0])[1] == [Decision(retry_topic="r")]


def test_a_retry_function_sees_attempts_that_do_not_count_the_waiting() -> None:
    """It is asked about RetryLater as well: a delay counts no attempt, an end is an end."""
    asked: list[tuple[str, int]] = []

    def retry(record: Record[Any, Any], error: Exception, attempts: int) -> float:
        asked.append((type(error).__name__, attempts))
        return error.delay if isinstance(error, RetryLater) else 1.0

    failures, record = Failures(FailurePolicy(retry=retry).retry_budget), failed()
    for error in (RetryLater(5), RetryLater(5), ERROR, RetryLater(5), ERROR):
        failures.decide(record, error, 0.0, 0.0)
        record._parks += 1
    assert asked == [("RetryLater", 1), ("RetryLater", 1), ("ValueError", 1), ("RetryLater", 2), ("ValueError", 2)]
    ends = Failures(FailurePolicy(retry=always("skip")).retry_budget)
    assert ends.decide(failed(), RetryLater(5), 0.0, 0.0) == Decision(end="skip", by_function=True)


# -- whose clock, and whose waiting ---------------------------------------------------------------------


def test_patience_goes_by_the_monotonic_clock() -> None:
    """A wall clock that is put forward an hour ends nobody's patience; what is kept of a failure has its time."""
    failures = Failures(FailurePolicy(retry=RetryPolicy(jitter=0, max_elapsed=10, max_wait=10)).retry_budget)
    record = failed()
    assert failures.decide(record, ERROR, 100.0, 1_000.0) == Decision(delay=1)
    record._parks += 1
    assert failures.decide(record, ERROR, 102.0, 4_602.0) == Decision(delay=2)
    assert record.last_failure is not None
    assert record.last_failure.at == 4_602.0
    waiting = failed()
    for now, at in ((100.0, 1_000.0), (102.0, 4_602.0)):
        assert failures.decide(waiting, RetryLater(1), now, at) == Decision(delay=1, waits=True)
        waiting._parks += 1


async def test_where_waits_count_a_shortage_ends_the_patience_after_a_minute() -> None:
    """A job with a row that needs more memory than there is has an end, too; a place at a gate is waited for."""

    def made(policy: RetryPolicy, error: RetryLater, count: int) -> list[Decision]:
        failures, record = Failures(FailurePolicy(retry=policy, dead_letter="d").retry_budget), failed()
        return [failures.decide(record, error, 1_000.0 + second, second) for second in range(count)]

    once = RetryPolicy(max_attempts=1, count_waits=True)
    assert [one.end for one in made(once, OutOfResources("memory"), 62)] == [None] * 60 + ["dead_letter"] * 2
    assert made(replace(once, max_wait=600.0), OutOfResources("memory"), 300)[-1].end is None
    assert made(RetryPolicy(max_attempts=1), OutOfResources("memory"), 300)[-1].end is None
    assert made(once, NoRoom(Gate("host", 1)), 300)[-1].end is None
    assert made(once, NotToBlame(1.0, "the database is away"), 300)[-1].end is None


async def test_a_short_shortage_after_other_waits_is_waited_for() -> None:
    """The minute is that of the shortage: not of waiting for something else, or of an attempt that has failed."""
    policy = RetryPolicy(max_attempts=5, count_waits=True)
    for other in (NoRoom(Gate("host", 1)), NotToBlame(1.0, "the database is away"), ValueError("no")):
        failures, record = Failures(FailurePolicy(retry=policy, dead_letter="d").retry_budget), failed()
        for second, error in ((0.0, OutOfResources("files")), (50.0, other), (100.0, OutOfResources("files"))):
            assert failures.decide(record, error, 1_000.0 + second, second).end is None


def test_a_retry_function_is_not_asked_about_the_librarys_own_waiting() -> None:
    """The record has nothing to do with a host that has no room, or a database that is away."""
    asked: list[Exception] = []

    def retry(record: Record[Any, Any], error: Exception, attempts: int) -> Literal["dead_letter"]:
        asked.append(error)
        return "dead_letter"

    failures = Failures(FailurePolicy(retry=retry, dead_letter="dead").retry_budget)
    assert failures.decide(failed(), NotToBlame(1.0, "the database is away"), 0.0, 0.0) == Decision(delay=1, waits=True)
    assert not asked
    assert failures.decide(failed(), RetryLater(1.0), 0.0, 0.0) == Decision(end="dead_letter", by_function=True)
    assert len(asked) == 1


def test_the_line_of_a_skipped_record_names_who_has_skipped_it() -> None:
    """The option, or the retry function."""
    log = FailureLog({})
    by_option = log.following(Decision(end="skip"))
    assert by_option == 'SKIPPED: no more attempts, and give_up="skip" completes it'
    by_function = log.following(Decision(end="skip", by_function=True))
    assert by_function == 'SKIPPED: the retry function returned "skip", which completes it'


def unreadable(cause: Exception) -> DeserializationError:
    """What the record fails with when its deserializer raises this."""
    error = DeserializationError("value", 3, cause)
    error.__cause__ = cause
    return error


def wrapped(cause: Exception) -> Exception:
    """An exception of a client such as httpx, which was raised from another one of its own."""
    inner, outer = RuntimeError("connect"), RuntimeError("registry")
    inner.__cause__, outer.__cause__ = cause, inner
    return outer


def of_registry(**told: object) -> Exception:
    """An exception of a registry's client that tells the status in an attribute of its own."""
    error = RuntimeError("registry")
    vars(error).update(told)
    return error


def answered(status: int) -> Exception:
    """What httpx raises for a status."""
    request = httpx.Request("GET", "http://registry/schemas/ids/7")
    return httpx.HTTPStatusError("refused", request=request, response=httpx.Response(status, request=request))


@pytest.mark.parametrize(
    ("policy", "cause", "decision"),
    [
        (FailurePolicy(dead_letter="dead"), ERROR, Decision(end="dead_letter")),
        (FailurePolicy(dead_letter="dead", retry=EXACT, retry_topics={}), ERROR, Decision(end="dead_letter")),
        (FailurePolicy(give_up="skip"), KeyError("a"), Decision(end="skip")),
        (FailurePolicy(dead_letter="dead", retry=EXACT), ConnectionResetError(), Decision(delay=1)),
        (FailurePolicy(dead_letter="dead", retry=EXACT), wrapped(ConnectionRefusedError()), Decision(delay=1)),
        (FailurePolicy(dead_letter="dead", retry=EXACT), wrapped(KeyError("a")), Decision(end="dead_letter")),
        (FailurePolicy(dead_letter="dead", retry=EXACT), MemoryError(), Decision(delay=1)),
        (FailurePolicy(dead_letter="dead", retry=EXACT), of_registry(http_status_code=503), Decision(delay=1)),
        (FailurePolicy(dead_letter="dead", retry=EXACT), of_registry(status=429), Decision(delay=1)),
        (FailurePolicy(dead_letter="dead", retry=EXACT), wrapped(of_registry(status=500)), Decision(delay=1)),
        (FailurePolicy(dead_letter="dead", retry=EXACT), answered(502), Decision(delay=1)),
        (FailurePolicy(dead_letter="dead", retry=EXACT), answered(404), Decision(end="dead_letter")),
        (FailurePolicy(dead_letter="dead", retry=EXACT), of_registry(http_status_code=-1), Decision(end="dead_letter")),
        (FailurePolicy(dead_letter="dead", retry=EXACT), of_registry(status="503"), Decision(end="dead_letter")),
        (FailurePolicy(retry=EXACT), ERROR, Decision(delay=1)),
        (FailurePolicy(dead_letter="dead", retry=always(3)), ERROR, Decision(delay=3.0)),
        (FailurePolicy(dead_letter="dead", retry=always("skip")), ERROR, Decision(end="skip", by_function=True)),
    ],
)
def test_what_no_deserializer_can_read(policy: FailurePolicy, cause: Exception, decision: Decision) -> None:
    """It ends at the first attempt where it has somewhere to go. It is retried where the run would stop, where another
    process may be to blame, or where the retry function says so."""
    assert Failures(policy.retry_budget).decide(failed(), unreadable(cause), 0.0, 0.0) == decision


def test_a_long_error_is_logged_by_its_message(caplog: pytest.LogCaptureFixture) -> None:
    """Such as aiohttp's, whose repr lists all headers of the request and of the response."""

    class Refused(Exception):
        def __repr__(self) -> str:
            return f"Refused({'header ' * 100})"

        def __str__(self) -> str:
            return "503, " + "too busy " * 100

    FailureLog({}).decided(failed(), Refused(), Decision(delay=1), 0.0)
    [line] = caplog.messages
    assert "failed (attempt 1): Refused: 503, too busy" in line
    assert "header" not in line
    assert len(line) < 400
    assert line.endswith("…; next attempt in 1 s")
