"""Options: each wrong one is refused with its name, the value and what is allowed."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import FrozenInstanceError, fields
from typing import Any, get_type_hints

import pytest

from aioparallel.config.extension import Extension
from aioparallel.config.handling import Ordering
from aioparallel.config.options import OptionFields, Options
from aioparallel.config.policies import Transactions
from aioparallel.consumer import ParallelConsumer
from aioparallel.queues.kmq import RedeliveryTracker
from aioparallel.records.errors import AioparallelError, ConfigurationError
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient


def test_the_defaults_fit_together() -> None:
    """Options() is valid, and frozen."""
    options = Options()
    with pytest.raises(FrozenInstanceError):
        options.max_concurrency = 3  # type: ignore[misc]


def test_the_keywords_are_the_fields() -> None:
    """What constructors accept by type is exactly what Options has, with the same types."""
    assert OptionFields.__annotations__.keys() == {field.name for field in fields(Options)}
    assert get_type_hints(OptionFields) == get_type_hints(Options)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_concurrency": 0}, "max_concurrency=0: must be a whole number of at least 1"),
        ({"max_concurrency": 1.5}, "max_concurrency=1.5"),
        ({"max_concurrency": True}, "max_concurrency=True"),
        ({"max_buffered": -1}, "max_buffered=-1"),
        ({"max_buffered_bytes": "64M"}, "max_buffered_bytes='64M'"),
        ({"commit_interval": 0}, "commit_interval=0: must be more than 0 seconds"),
        ({"commit_interval": float("nan")}, "commit_interval=nan"),
        ({"drain_timeout": -1}, "drain_timeout=-1: must be seconds"),
        ({"drain_timeout": 55}, "drain_timeout=55: must be at most 51 s here"),
        ({"heartbeat_interval": 20}, "heartbeat_interval=20: must be at most a third of session_timeout (30 s)"),
        ({"ordering": "key"}, "ordering='key': must be one of Ordering.KEY"),
        ({"auto_offset_reset": "none"}, "auto_offset_reset='none': must be one of earliest, latest, error"),
        ({"until": "now"}, "until='now'"),
        ({"when_map_is_full": "stop"}, "when_map_is_full='stop'"),
        ({"isolation": "thread"}, "isolation='thread'"),
        ({"start_at": dt.datetime(2026, 1, 1)}, "must have a time zone"),  # noqa: DTZ001 - that is the point
        ({"start_at": {"t": 3}}, "must map TopicPartition"),
        ({"start_at": 7}, "start_at=7"),
        ({"start_at": {("t", -3): 5}}, "start_at={('t', -3): 5}: must map TopicPartition"),
        ({"start_at": {("t", True): 5}}, "start_at={('t', True): 5}: must map TopicPartition"),
        ({"start_at": {("t", 0): True}}, "start_at={('t', 0): True}: must map TopicPartition"),
        ({"start_at": {("t", 0): -1}}, "start_at={('t', 0): -1}: must map TopicPartition"),
        ({"extensions": 3}, "extensions=3: must be a list of instances of aioparallel.Extension"),
        ({"extensions": Extension()}, "must be a list of instances of aioparallel.Extension"),
        ({"extensions": [Extension]}, "must be a list of instances of aioparallel.Extension"),
        (
            {"client": 3},
            "client=3: must be a Client (aioparallel.group.client): it has no assigns_in_steps, start, stop",
        ),
        ({"client": InMemoryClient}, "is a class: give an instance of it, InMemoryClient(...)"),
        ({"producer": 3}, "producer=3: must be a Producer (aioparallel.delivery.producer): it has no start, stop"),
        ({"order_by": 7}, "order_by=7: must be a plain function of the record"),
        ({"order_by": len, "ordering": Ordering.UNORDERED}, "needs ordering=Ordering.KEY"),
        ({"client_options": [1]}, "client_options=[1]: must be a mapping"),
        ({"max_concurency": 3}, "max_concurency=3: there is no such option; did you mean 'max_concurrency'?"),
        ({"zzz": 3}, "there is no such option; the options are auto_offset_reset"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], says: str) -> None:
    """The message begins with option=value and says what is allowed; it is a ValueError and one of ours."""
    with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
        ParallelConsumer("t", group_id="g", **given)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, AioparallelError)


@pytest.mark.parametrize("topics", ["", [], [""], 7, None, ["t", 7]])
def test_wrong_topics_are_refused(topics: object) -> None:
    """Topics are a name, names or a compiled pattern."""
    with pytest.raises(ConfigurationError, match="topics="):
        ParallelConsumer(topics, group_id="g")  # type: ignore[arg-type]


@pytest.mark.parametrize("servers", ["", 7, ["a:1", ""], "a:b"])
def test_wrong_bootstrap_servers_are_refused(servers: object) -> None:
    """Servers are host:port, one or several."""
    with pytest.raises(ConfigurationError, match="bootstrap_servers="):
        ParallelConsumer("t", group_id="g", bootstrap_servers=servers)  # type: ignore[arg-type]


def test_wrong_group_is_refused() -> None:
    """A group needs a name."""
    with pytest.raises(ConfigurationError, match="group_id="):
        ParallelConsumer("t", group_id=" ")


def test_client_options_that_are_ours_are_refused() -> None:
    """What the consumer decides cannot be passed to the client behind its back."""
    with pytest.raises(ConfigurationError, match="enable_auto_commit"):
        ParallelConsumer("t", group_id="g", client_options={"enable_auto_commit": True})


def test_transactions_have_an_interval_of_their_own() -> None:
    """However the options are made. The default is not refused there, as nobody may have given it."""
    with pytest.raises(ConfigurationError, match="commit_interval=5: cannot be combined with Transactions"):
        Options(commits=Transactions(), commit_interval=5)
    with pytest.raises(ConfigurationError, match=r"commit_interval=1\.0: cannot be combined with Transactions"):
        Options.of({"commits": Transactions(), "commit_interval": 1.0})
    assert Options(commits=Transactions()).commit_interval == 1.0


def test_a_tracker_with_a_client_needs_a_producer() -> None:
    """Redelivered records are produced."""
    with pytest.raises(ConfigurationError, match="producer=None: is needed if the client"):
        RedeliveryTracker("q", group_id="g", client=InMemoryClient(InMemoryBroker(), "g"))
