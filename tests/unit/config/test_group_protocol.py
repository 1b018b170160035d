"""The options of the group protocols: what the brokers decide is refused, and what is left reaches the client."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from aioparallel.clients import defaults
from aioparallel.clients.aiokafka import AiokafkaClient
from aioparallel.config.options import Options
from aioparallel.config.policies import FailurePolicy, Transactions
from aioparallel.consumer import ParallelConsumer
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker
from aioparallel.queues.priority import PriorityConsumer
from aioparallel.queues.share import ShareConsumer
from aioparallel.records.errors import ConfigurationError
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient

ROUND_ROBIN = {"partition_assignment_strategy": (RoundRobinPartitionAssignor,)}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"group_protocol": "next"}, "group_protocol='next': must be one of classic, consumer"),
        (
            {"group_protocol": "consumer", "session_timeout": 45.0},
            'session_timeout=45.0: cannot be combined with group_protocol="consumer", in which the brokers decide '
            "it: leave it out, and set group.consumer.session.timeout.ms there, or "
            "consumer.session.timeout.ms of this group",
        ),
        ({"group_protocol": "consumer", "session_timeout": 30.0}, "session_timeout=30.0: cannot be combined"),
        ({"group_protocol": "consumer", "heartbeat_interval": 1}, "set group.consumer.heartbeat.interval.ms there"),
        (
            {"group_protocol": "consumer", "client_options": ROUND_ROBIN},
            'cannot be combined with group_protocol="consumer", in which the brokers assign: leave it out',
        ),
        (
            {"group_protocol": "classic", "group_remote_assignor": "range"},
            "group_remote_assignor='range': needs group_protocol=\"consumer\"",
        ),
        ({"group_protocol": "consumer", "group_remote_assignor": " "}, "must be an assignor of the brokers"),
        ({"group_protocol": "consumer", "group_remote_assignor": 3}, "must be an assignor of the brokers"),
    ],
)
def test_what_does_not_fit_is_refused(given: dict[str, Any], says: str) -> None:
    """The message says where to set it instead."""
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        ParallelConsumer("t", group_id="g", **given)


@pytest.mark.parametrize(
    ("given", "protocol"),
    [
        ({}, "auto"),
        ({"rebalance_timeout": 90.0, "client_options": {"client_rack": "a"}}, "auto"),
        ({"session_timeout": 10.0}, "classic"),
        ({"session_timeout": 30.0}, "classic"),
        ({"group_protocol": "auto", "heartbeat_interval": 3.0}, "classic"),
        ({"client_options": ROUND_ROBIN}, "classic"),
        ({"client_options": {"group_instance_id": "a"}}, "classic"),
        ({"client_options": {"group_instance_id": None}}, "auto"),
        ({"session_timeout": 10.0, "group_remote_assignor": "range"}, "auto"),
    ],
)
def test_what_is_for_the_classic_protocol_chooses_it(given: dict[str, Any], protocol: str) -> None:
    """In the other one it would have no effect, or another. An assignor of the brokers is for that one."""
    made = ParallelConsumer("t", group_id="g", **given).options
    assert made.protocol == replace(made, max_concurrency=3).protocol == Options(**given).protocol == protocol
    without = replace(made, session_timeout=None, heartbeat_interval=None, client_options={})
    assert without.protocol == "auto"


def test_the_times_of_the_classic_protocol_have_defaults() -> None:
    """A short session alone makes the heartbeats shorter."""
    assert (Options().session, Options().heartbeat) == (30.0, 3.0)
    assert (Options(session_timeout=6).session, Options(session_timeout=6).heartbeat) == (6, 2.0)
    assert (Options(heartbeat_interval=1).session, Options(heartbeat_interval=1).heartbeat) == (30.0, 1)
    ParallelConsumer("t", group_id="g", session_timeout=0.7)
    with pytest.raises(ConfigurationError, match=r"heartbeat_interval=3: must be at most a third of .* \(6 s\)"):
        Options(session_timeout=6, heartbeat_interval=3)


@pytest.mark.parametrize("name", ["group_instance_id", "client_rack"])
def test_an_empty_name_is_refused(name: str) -> None:
    """As from a variable that is set to nothing. Brokers would refuse it, or take it for a name."""
    with pytest.raises(ConfigurationError, match=rf"client_options\['{name}'\]='': a text that is not empty"):
        ParallelConsumer("t", group_id="g", client_options={name: ""})


def test_brokers_cannot_leave_a_consumer_s_own_topics_out() -> None:
    """It would read what it writes. (``"auto"`` reads patterns in the classic protocol.)"""
    given: dict[str, Any] = {"group_id": "g", "failures": FailurePolicy(dead_letter="orders.dead")}
    ParallelConsumer(re.compile(r"orders\..*"), **given)
    ParallelConsumer(re.compile(r"orders\.[^d].*"), **given, group_protocol="consumer")
    with pytest.raises(ConfigurationError, match=r"topics=.*: matches orders\.dead, which this consumer writes to"):
        ParallelConsumer(re.compile(r"orders\..*"), **given, group_protocol="consumer")


def test_an_assignor_of_the_brokers_needs_the_new_protocol_where_a_pattern_chooses_the_classic_one() -> None:
    """It would have no effect."""
    with pytest.raises(
        ConfigurationError, match="group_remote_assignor='range': needs group_protocol=\"consumer\" where"
    ):
        ParallelConsumer(re.compile("a.*"), group_id="g", group_remote_assignor="range")
    ParallelConsumer(re.compile("a.*"), group_id="g", group_remote_assignor="range", group_protocol="consumer")


def test_other_times_are_refused_however_the_options_are_made() -> None:
    """None is no time."""
    for time in (10, 30.0):
        with pytest.raises(ConfigurationError, match=f"session_timeout={time}: cannot be combined"):
            Options(group_protocol="consumer", session_timeout=time)
    assert Options(group_protocol="consumer", session_timeout=None).session_timeout is None


def test_the_drain_may_use_the_heartbeat_s_time_as_well() -> None:
    """The time begins when the member learns of the rebalance."""
    with pytest.raises(ConfigurationError, match="at most 51 s here"):
        Options(drain_timeout=54)
    Options(group_protocol="consumer", drain_timeout=54)
    with pytest.raises(ConfigurationError, match=r"at most 54 s here: rebalance_timeout \(60\) - commit_timeout \(5\)"):
        Options(group_protocol="consumer", drain_timeout=55)


@pytest.mark.parametrize(
    ("given", "seconds", "says"),
    [
        (
            {"group_protocol": "classic"},
            25,
            "at most session_timeout (30) - 10: lower it, or raise session_timeout to 35 s",
        ),
        (
            {},
            25,
            "at most session_timeout (30) - 10: lower it, or raise session_timeout to 35 s, and with it choose the "
            "classic group protocol",
        ),
        (
            {"group_protocol": "consumer"},
            36,
            "at most the session of the brokers (group.consumer.session.timeout.ms, 45 s by default) - 10: lower it",
        ),
        (
            {"group_remote_assignor": "range"},
            25,
            "at most session_timeout (30) - 10: lower it, or raise session_timeout to 35 s",
        ),
        ({"group_remote_assignor": "range"}, 36, "at most session_timeout (30) - 10: lower it"),
        (
            {"group_remote_assignor": "range", "session_timeout": 60},
            36,
            "at most the session of the brokers (group.consumer.session.timeout.ms, 45 s by default) - 10: lower it",
        ),
    ],
)
def test_transactions_end_before_the_session_in_each_protocol(given: dict[str, Any], seconds: float, says: str) -> None:
    """The session is the brokers' in the new one, so that a longer session_timeout is no way out there."""
    with pytest.raises(ConfigurationError, match=re.escape(says) + "$"):
        Options(commits=Transactions(transaction_timeout=seconds), **given)


def test_transactions_that_end_before_the_session_are_accepted() -> None:
    """Of the brokers, or of the member."""
    assert Options(commits=Transactions(transaction_timeout=25), session_timeout=35).protocol == "classic"
    Options(commits=Transactions(transaction_timeout=35), group_protocol="consumer")
    Options(commits=Transactions(transaction_timeout=35), group_remote_assignor="range", session_timeout=45)


def test_a_client_of_the_user_is_not_told() -> None:
    """It has the option itself."""
    client = InMemoryClient(InMemoryBroker(), "g")
    ParallelConsumer("t", group_id="g", client=client, session_timeout=10)
    with pytest.raises(ConfigurationError, match="group_protocol='consumer': cannot be combined with a client"):
        ParallelConsumer("t", group_id="g", client=client, group_protocol="consumer")
    with pytest.raises(ConfigurationError, match="group_remote_assignor='range': cannot be combined with a client"):
        ParallelConsumer(re.compile("t.*"), group_id="g", client=client, group_remote_assignor="range")


@pytest.mark.parametrize("protocol", ["consumer", "auto"])
def test_commits_of_the_new_protocol_have_no_retention_of_their_own(protocol: Any) -> None:
    """Only versions of OffsetCommit that this protocol refuses have one: no commit would ever be accepted."""
    with pytest.raises(ConfigurationError, match=r"offsets\.retention\.minutes"):
        AiokafkaClient("127.0.0.1:1", "g", offset_retention=60.0, group_protocol=protocol)


def test_share_groups_refuse_both() -> None:
    """They have a protocol of their own."""
    given: list[dict[str, Any]] = [{"group_protocol": "consumer"}, {"group_remote_assignor": "uniform"}]
    for one in given:
        with pytest.raises(ConfigurationError, match="does not apply to a share group"):
            ShareConsumer("t", group_id="g", **one)


def test_every_member_gets_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a consumer, a queue, its trackers, and each priority."""
    made = []

    class Recorded(AiokafkaClient):
        def __init__(self, servers: str, group_id: str, **options: Any) -> None:
            made.append((group_id, options["group_protocol"], options["group_remote_assignor"]))
            super().__init__(servers, group_id, **options)

    monkeypatch.setattr(defaults, "AiokafkaClient", Recorded)
    options: dict[str, Any] = {"group_protocol": "consumer", "group_remote_assignor": "range"}
    ParallelConsumer("t", group_id="plain", **options)
    KmqConsumer("q", group_id="queue", **options)
    RedeliveryTracker("q", group_id="tracker", **options)
    PriorityConsumer("t", group_id="mail", priorities=2, **options)
    RedeliveryTracker("q", group_id="timed", session_timeout=30.0)
    assert made.pop() == ("timed", "classic", None)
    ParallelConsumer("t", group_id="by default")
    assert made.pop() == ("by default", "auto", None)
    assert {name.split("-")[0] for name, *_ in made} == {"plain", "queue", "tracker", "mail"}
    assert len(made) == 6
    assert {tuple(rest) for _, *rest in made} == {("consumer", "range")}
