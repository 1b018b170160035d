"""Which brokers owe an answer; times are passed in."""

from __future__ import annotations

import asyncio

import pytest

from aioparallel.clients.last_contacts import LastContacts
from aioparallel.observe.stats import BrokerContact
from aioparallel.records.record import TopicPartition

NAMES: dict[object, str] = {1: "one:9092", 2: "two:9092"}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def last_contacts(clock: Clock) -> LastContacts:
    return LastContacts(clock)


def of(last_contacts: LastContacts, node: int) -> BrokerContact:
    return next(one for one in last_contacts.brokers(NAMES) if one.broker == node)


def fail(last_contacts: LastContacts, node: int, error: BaseException) -> None:
    with pytest.raises(type(error)), last_contacts.asking(node):
        raise error


def test_a_broker_that_answers_owes_nothing(last_contacts: LastContacts, clock: Clock) -> None:
    """A broker owes an answer from the request until it answers. The time of the answer is recorded by kind."""
    with last_contacts.asking(1, "fetch"):
        clock.now = 0.5
        assert of(last_contacts, 1).owes == 0.5
    clock.now = 1.5
    assert of(last_contacts, 1) == BrokerContact(1, "one:9092", answered=1.0, owes=None, reason="")
    assert last_contacts.since_answered("fetch") == 1.0
    assert last_contacts.since_answered("commit") is None


def test_what_fails_is_owed_from_the_first_failure_on(last_contacts: LastContacts, clock: Clock) -> None:
    """However often the request is repeated. Any answer ends it."""
    for second in range(6):
        clock.now = float(second)
        fail(last_contacts, 1, ConnectionError("refused"))
    assert of(last_contacts, 1).owes == 5.0
    assert of(last_contacts, 1).reason == "refused"
    assert of(last_contacts, 1).answered is None
    last_contacts.answered(1)
    assert of(last_contacts, 1).owes is None
    assert of(last_contacts, 1).reason == ""


def test_with_another_request_under_way_an_answer_counts_from_then(last_contacts: LastContacts, clock: Clock) -> None:
    """A broker that answers heartbeats during a long fetch is not silent."""
    with last_contacts.asking(1, "fetch"):
        clock.now = 3.0
        with last_contacts.asking(1, "heartbeat"):
            pass
        clock.now = 3.5
        assert of(last_contacts, 1).owes == 0.5


def test_a_cancelled_request_is_not_owed(last_contacts: LastContacts, clock: Clock) -> None:
    """A cancelled request is not owed if nothing else was. After an earlier failure the broker still owes an answer."""
    fail(last_contacts, 1, asyncio.CancelledError())
    clock.now = 3.0
    assert of(last_contacts, 1).owes is None
    fail(last_contacts, 2, ConnectionError())
    clock.now = 5.0
    fail(last_contacts, 2, asyncio.CancelledError())
    assert of(last_contacts, 2).owes == 2.0
    assert of(last_contacts, 2).reason == "ConnectionError"


def test_a_failure_that_nobody_repeats_is_forgotten(last_contacts: LastContacts, clock: Clock) -> None:
    """Because its partitions may have another leader by then."""
    fail(last_contacts, 1, ConnectionError("refused"))
    clock.now = 9.0
    assert of(last_contacts, 1).owes == 9.0
    clock.now = 11.0
    assert of(last_contacts, 1).owes is None


def test_a_node_outside_the_cluster_is_left_out(last_contacts: LastContacts) -> None:
    """A removed broker or a bootstrap address is left out and forgotten."""
    fail(last_contacts, 3, ConnectionError("refused"))
    fail(last_contacts, 1, ConnectionError("refused"))
    assert [one.broker for one in last_contacts.brokers(NAMES)] == [1]
    assert [one.broker for one in last_contacts.brokers({**NAMES, 3: "three:9092"})] == [1]


def test_the_age_of_log_ends(last_contacts: LastContacts, clock: Clock) -> None:
    """The age of log ends, by partition."""
    first, second = TopicPartition("t", 0), TopicPartition("t", 1)
    last_contacts.end_received([first])
    clock.now = 2.0
    last_contacts.end_received([second])
    clock.now = 3.0
    assert (last_contacts.since_end_received(first), last_contacts.since_end_received(second)) == (3.0, 1.0)
    assert last_contacts.since_end_received(TopicPartition("t", 2)) is None
