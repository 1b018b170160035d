"""What ``aioparallel broker`` prints when it has started."""

from __future__ import annotations

import pytest
from rich.console import Console

from aioparallel.cli.broker import BrokerOptions, introduction, new_broker
from aioparallel.jvm.sets import KAFKA_VERSION
from aioparallel.records.errors import ConfigurationError
from aioparallel.testing import LocalKafka


@pytest.mark.parametrize("kafka", [False, True])
def test_the_limits_of_the_embedded_broker(kafka: bool) -> None:
    """In the classic protocol one worker for each group, and a wait after a restart; Kafka has neither limit."""
    text = introduction(BrokerOptions(kafka=kafka, topic=("orders:4",)), "localhost:9092")
    assert ("has one worker here" in text) is not kafka
    assert ("started again waits up to 30 s" in text) is not kafka


def test_the_version_of_kafka() -> None:
    """It is printed, and may be chosen."""
    assert introduction(BrokerOptions(kafka=True), "localhost:9092").startswith(f"Apache Kafka {KAFKA_VERSION} runs at")
    options = BrokerOptions(kafka=True, kafka_version="4.4.0")
    assert introduction(options, "localhost:9092").startswith("Apache Kafka 4.4.0 runs at")
    assert repr(new_broker(options, Console())) == "<LocalKafka 4.4.0 not running>"
    with pytest.raises(ConfigurationError, match="needs --kafka"):
        BrokerOptions(kafka_version="4.4.0")
    with pytest.raises(ConfigurationError, match="must be a version of Apache Kafka, such as"):
        LocalKafka(version="latest")


def test_the_variable_is_for_the_commands() -> None:
    """Programs pass the address themselves."""
    program, commands = introduction(BrokerOptions(kafka=True), "localhost:1234").split(
        "The commands, in other terminals:"
    )
    assert 'Programs connect with bootstrap_servers="localhost:1234".' in program
    assert "export AIOPARALLEL_BOOTSTRAP_SERVERS=localhost:1234\n" in commands
    assert "export" not in introduction(BrokerOptions(), "localhost:9092")
