"""Pytest fixtures with Kafka brokers.

==================  =======  ================================================================================
fixture             scope    description
==================  =======  ================================================================================
``kafka_broker``    session  the broker chosen by ``--kafka-broker`` (or the ini option ``kafka_broker``)
``local_kafka``     session  Apache Kafka as a JVM process; the same one as ``kafka_broker`` if that is local
``kafka_cluster``   session  Apache Kafka as three brokers, each a JVM process, and a controller
``secured_kafka``   session  Apache Kafka with TLS and logins; ``kafka.secured.security()`` is for its user ``alice``
``embedded_broker``  session  librdkafka's mock cluster in this process
``kafka_topic``     test     ``await kafka_topic(partitions=8)`` makes a new topic on ``kafka_broker``
==================  =======  ================================================================================

If Apache Kafka cannot be started, tests that use it are skipped. In CI (the variable ``CI`` is set) and with
``--kafka-broker=local`` they fail.

Every pytest run in an environment with ``aioparallel`` imports this module, so it imports as little as possible.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, Protocol, cast

import pytest

if TYPE_CHECKING:
    from aioparallel.testing.brokers.broker import Broker
    from aioparallel.testing.brokers.choice import Preference
    from aioparallel.testing.brokers.docker import DockerKafka
    from aioparallel.testing.brokers.embedded import EmbeddedBroker
    from aioparallel.testing.brokers.local import LocalKafka
    from aioparallel.testing.brokers.secured import Secured

__all__ = [
    "TopicMaker",
    "embedded_broker",
    "kafka_broker",
    "kafka_cluster",
    "kafka_topic",
    "local_kafka",
    "secured_kafka",
]

CHOICES: Final = ("auto", "local", "docker", "embedded")
_OPTION: Final = "kafka_broker"
_STARTED: Final = pytest.StashKey[dict[str, str]]()
"""The brokers started in this session: a line for the terminal summary of each."""

_FIXTURES: Final = {"local": "local_kafka", "docker": "_docker_kafka", "embedded": "embedded_broker"}

_topic_numbers = itertools.count(1)


class TopicMaker(Protocol):
    """The fixture ``kafka_topic``."""

    def __call__(self, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Awaitable[str]:
        """Make a new topic and return its name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command line option and its ini counterpart."""
    text = "the broker behind the fixture kafka_broker: auto, local (Apache Kafka as a JVM process), docker, embedded"
    parser.getgroup("kafka").addoption("--kafka-broker", choices=CHOICES, dest=_OPTION, help=text)
    parser.addini(_OPTION, text, default="auto")


def pytest_configure(config: pytest.Config) -> None:
    """Refuse an invalid ini value before any test runs."""
    config.stash[_STARTED] = {}
    if (preference := _preference(config)) not in CHOICES:
        raise pytest.UsageError(f"ini option kafka_broker={preference!r}: must be one of {', '.join(CHOICES)}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Report the brokers that the tests used."""
    for line in config.stash[_STARTED].values():
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def kafka_broker(request: pytest.FixtureRequest) -> Broker:
    """The broker of this test session. The summary at the end of the run names it."""
    from aioparallel.testing.brokers.choice import choose_broker  # noqa: PLC0415 - see the module

    choice = choose_broker(cast("Preference", _preference(request.config)))
    # Uses the fixture of that kind, so that tests which request it by kind share the broker.
    broker = cast("Broker", request.getfixturevalue(_FIXTURES[choice.broker.kind]))
    _note(request.config, broker, f" ({choice.reason})")
    return broker


@pytest.fixture(scope="session")
def local_kafka(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """Apache Kafka in a JVM process, one for the test session."""
    yield from _running_kafka(request.config, 1)


@pytest.fixture(scope="session")
def kafka_cluster(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """Three brokers of Apache Kafka, one cluster for the test session. A test that kills or pauses a broker must bring
    it back."""
    yield from _running_kafka(request.config, 3)


@pytest.fixture(scope="session")
def secured_kafka(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """Apache Kafka with additional listeners for TLS and logins, and a user ``alice``."""
    from aioparallel.testing.brokers.secured import Secured  # noqa: PLC0415 - see the module

    yield from _running_kafka(request.config, 1, Secured({"alice": "wonderland"}))


@pytest.fixture(scope="session")
def embedded_broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    """librdkafka's mock cluster, one for the test session. One member per group; see EmbeddedBroker for its limits."""
    from aioparallel.testing.brokers.embedded import EmbeddedBroker  # noqa: PLC0415 - see the module

    with EmbeddedBroker() as broker:
        _note(request.config, broker)
        yield broker


@pytest.fixture(scope="session")
def _docker_kafka(request: pytest.FixtureRequest) -> Iterator[DockerKafka]:
    from aioparallel.testing.brokers.docker import DockerKafka  # noqa: PLC0415 - see the module

    with DockerKafka() as broker:
        _note(request.config, broker)
        yield broker


@pytest.fixture
def kafka_topic(request: pytest.FixtureRequest, kafka_broker: Broker) -> TopicMaker:
    """A function: ``await kafka_topic(partitions=1, configs=None)`` makes a new topic and returns its name."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", request.node.name)[:100]

    async def create(partitions: int = 1, configs: Mapping[str, str] | None = None) -> str:
        name = f"{stem}-{os.getpid()}-{next(_topic_numbers)}"
        await kafka_broker.create_topic(name, partitions, configs)
        return name

    return create


def _running_kafka(config: pytest.Config, brokers: int, secured: Secured | None = None) -> Iterator[LocalKafka]:
    from aioparallel.records.errors import BrokerStartError  # noqa: PLC0415 - see the module
    from aioparallel.testing.brokers.local import LocalKafka  # noqa: PLC0415 - see the module

    kafka = LocalKafka(brokers=brokers, secured=secured, compile_once=True, report=_reporter(config))
    try:
        kafka.start()
    except BrokerStartError as error:
        if os.environ.get("CI") or _preference(config) == "local":
            raise
        pytest.skip(f"Apache Kafka could not be started; --kafka-broker=embedded needs none: {error}")
    _note(config, kafka)
    yield kafka
    kafka.stop()


def _preference(config: pytest.Config) -> str:
    return config.getoption(_OPTION) or config.getini(_OPTION) or "auto"


def _note(config: pytest.Config, broker: Broker, reason: str = "") -> None:
    config.stash[_STARTED][repr(broker)] = f"kafka broker: {broker!r}{reason}"


def _reporter(config: pytest.Config) -> Callable[[str], None]:
    """A function that writes to the terminal although pytest captures output: fetching Kafka may take a minute."""

    def report(text: str) -> None:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        capture = config.pluginmanager.get_plugin("capturemanager")
        if terminal is not None and capture is not None:
            with capture.global_and_fixture_disabled():
                terminal.write_line(f"\n{text}")

    return report
