"""Options of Spark's Kafka source and sink: a misspelled one is refused, and one that weakens delivery, too."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.readwriter import DataStreamWriter

from aioparallel import spark
from aioparallel.records.errors import CheckFailed, ConfigurationError
from aioparallel.spark import backfill, checks, topics
from aioparallel.spark.backfill import FromParquet, FromTopic, ToParquet, ToTopic
from aioparallel.spark.checks import check
from aioparallel.spark.connector_options import READING, READING_WITHOUT_ORDER, WRITING, ConnectorOptions
from aioparallel.spark.kafka_properties import CONSUMER, NEWER, PRODUCER
from aioparallel.spark.logs import Log
from aioparallel.spark.topics import read_topic, sink_options, write_topic

SERVERS = "broker:9092"
NOTHING: Any = None


def refused(options: ConnectorOptions, name: str, value: object = "value") -> str:
    """The message."""
    with pytest.raises(ConfigurationError) as raised:
        options.as_text({name: value})
    assert raised.value.option == f"options {name}"
    return str(raised.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("failOnData", "failOnDataLoss"),
        ("failOnDataLos", "failOnDataLoss"),
        ("groupIdPrefx", "groupIdPrefix"),
        ("pollTimeoutMs", "kafkaConsumer.pollTimeoutMs"),
        ("kafka.consumer.pollTimeoutMs", "kafkaConsumer.pollTimeoutMs"),
        ("kafka.failOnDataLoss", "failOnDataLoss"),
        ("fetch.max.bytes", "kafka.fetch.max.bytes"),
        ("fetchMaxBytes", "kafka.fetch.max.bytes"),
        ("kafka.fetch.max.byte", "kafka.fetch.max.bytes"),
        ("kafka.fetch_max_bytes", "kafka.fetch.max.bytes"),
        ("kafka.security.protocl", "kafka.security.protocol"),
    ],
)
def test_a_misspelled_option_of_the_source_is_refused(name: str, meant: str) -> None:
    """With the one that was meant, and that one passes."""
    assert refused(READING, name).endswith(f"; did you mean {meant!r}?")
    assert READING.as_text({meant: 5, meant.upper(): True}) == {meant: "5", meant.upper(): "true"}


@pytest.mark.parametrize(
    ("name", "meant", "instead"),
    [
        ("startingOfsets", "startingOffsets", "use starting"),
        ("startingOffset", "startingOffsets", "use starting"),
        ("startingTimestmp", "startingTimestamp", "use starting"),
        ("endingOfsets", "endingOffsets", "use ending"),
        ("subscibe", "subscribe", "name the topics"),
        ("includeHeader", "includeHeaders", "leave it out, headers always come"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger", "use per_trigger"),
        ("max_offsets_per_trigger", "maxOffsetsPerTrigger", "use per_trigger"),
        ("kafka.isolation.levl", "kafka.isolation.level", "use isolation"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers", "use bootstrap_servers"),
    ],
)
def test_what_is_meant_may_be_refused_itself(name: str, meant: str, instead: str) -> None:
    """Both are said at once."""
    assert refused(READING, name).endswith(f"did you mean {meant!r}? Do not set that one either: {instead}")
    assert refused(READING, meant.lower()) == f"options {meant.lower()}='value': {instead}"


def test_what_splits_partitions() -> None:
    """Is refused only where keys have an order."""
    assert "'minPartitions'? Do not set that one either: it splits a partition" in refused(READING, "minPartition")
    assert refused(READING_WITHOUT_ORDER, "minPartition").endswith("did you mean 'minPartitions'?")
    assert READING_WITHOUT_ORDER.as_text({"minPartitions": 16}) == {"minPartitions": "16"}


def test_an_argument_is_no_option() -> None:
    """Nor is a misspelled one."""
    assert (
        refused(READING, "per_trigger", 5) == "options per_trigger=5: give it as an argument of its own, per_trigger="
    )
    assert refused(READING, "startin").endswith("did you mean 'starting'? It is an argument of its own, starting=")


@pytest.mark.parametrize("name", ["nonsense", "foo", "batchSize"])
def test_what_is_like_nothing_gets_the_list(name: str) -> None:
    """Of Spark's options; Kafka's have too many names."""
    message = refused(READING, name)
    assert "no such option; it has failOnDataLoss, fetchOffset.numRetries, " in message
    assert message.endswith("minOffsetsPerTrigger, and properties of Kafka's consumer with the prefix kafka.")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("compresion", "kafka.compression.type"),
        ("batchSize", "kafka.batch.size"),
        ("acks", "kafka.acks"),
        ("kafka.compresion.type", "kafka.compression.type"),
        ("kafka.lingerms", "kafka.linger.ms"),
    ],
)
def test_a_misspelled_option_of_the_sink_is_refused(name: str, meant: str) -> None:
    """A sink has hardly any but Kafka's."""
    assert refused(WRITING, name).endswith(f"; did you mean {meant!r}?")
    assert "'checkpointLocation'? Do not set that one either: use check" in refused(WRITING, "chekpointLocation")


@pytest.mark.parametrize(
    ("name", "weak", "safe"),
    [
        ("kafka.acks", ["1", 1, "0", ""], ["all", "-1", -1]),
        ("kafka.enable.idempotence", ["false", False, 0], ["true", True]),
        ("kafka.max.in.flight.requests.per.connection", [6, "10", 0], [1, "5"]),
    ],
)
def test_weaker_delivery_is_refused(name: str, weak: list[object], safe: list[object]) -> None:
    """In any case of the name. More requests in flight would turn idempotence off, without a word."""
    for value in weak:
        assert ": must be " in refused(WRITING, name, value)
        assert "otherwise" in refused(WRITING, name.upper(), value)
    for value in safe:
        assert WRITING.as_text({name: value}) == {name: str(value).lower()}


def test_properties_of_the_other_client_are_refused() -> None:
    """They have no effect; those of both pass."""
    for name in ("kafka.linger.ms", "kafka.acks"):
        assert refused(READING, name).endswith("Kafka's consumer has no such property, leave it out")
    assert refused(WRITING, "kafka.fetch.max.bytes").endswith("Kafka's producer has no such property, leave it out")
    for options in (READING, WRITING):
        assert options.check({"kafka.client.id": "a", "KAFKA.Security.Protocol": "SSL"}) == []


def test_a_property_that_no_client_has_passes_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """An interceptor or a login module may have it, or a newer client. The value is not logged."""
    for name in ("kafka.schema.registry.url", "kafka.sasl.oauthbearer.scope"):
        caplog.clear()
        assert READING.as_text({name: "secret-value"}) == {name: "secret-value"}
        (line,) = caplog.records
        assert (line.levelno, line.__dict__["action"]) == (logging.WARNING, "unknown_kafka_property")
        assert line.getMessage().startswith(f"options {name}: Kafka's consumer (kafka-clients 3.9.2) has no such")
        assert "secret-value" not in line.getMessage()
    caplog.clear()
    READING.as_text({"kafka.fetch.max.bytes": 1, "kafka.retries": 1, "kafka.group.id": "g"})
    assert not caplog.records


@pytest.mark.parametrize(
    "name",
    ["kafka.sasl.jaas.confg", "kafka.ssl.keystore.pasword", "kafka.ssl.keystore.kye", "jaas", "password", "sasl.jaas"],
)
def test_a_secret_is_not_shown(name: str) -> None:
    """Nor is it in the error."""
    assert "hunter2" not in refused(READING, name, "hunter2")
    with pytest.raises(ConfigurationError) as raised:
        READING.as_text({name: "hunter2"})
    assert "hunter2" not in repr(vars(raised.value))


def test_options_that_are_no_options() -> None:
    """Nothing but a dict with names."""
    with pytest.raises(ConfigurationError, match="options='failOnDataLoss': must be a dict"):
        READING.as_text("failOnDataLoss")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="name in options=1: names of options are strings"):
        READING.as_text({1: 2})  # type: ignore[dict-item]
    assert READING.as_text(None) == {}


@pytest.mark.parametrize("value", [None, ["a", "b"], b"a", {"a": 1}], ids=repr)
def test_a_value_that_spark_does_not_take(value: object) -> None:
    """Its text would be the value: Kafka's client would get "None", for example."""
    for options, name in [(READING, "kafka.group.id"), (WRITING, "kafka.ssl.keystore.location")]:
        with pytest.raises(ConfigurationError, match=f"{name}=.*: must be a text, a number or a bool"):
            options.as_text({name: value})


def test_the_lists_have_each_name_once() -> None:
    """All are in lower case, as names are compared."""
    assert not NEWER & (CONSUMER & PRODUCER)
    assert {"acks", "linger.ms"} <= PRODUCER - CONSUMER
    assert {"isolation.level", "fetch.max.bytes"} <= CONSUMER - PRODUCER
    assert all(name == name.lower() for name in (*CONSUMER, *PRODUCER, *NEWER))


def test_a_place_of_a_backfill_is_checked_when_it_is_made() -> None:
    """Its options and those of aiokafka; the advice names what a backfill has."""
    with pytest.raises(ConfigurationError, match=r"client_options\['client_idd'\]=1: .*did you mean 'client_id'"):
        ToTopic("work", SERVERS, client_options={"client_idd": 1})
    with pytest.raises(ConfigurationError, match="did you mean 'client_id'"):
        FromTopic("raw", SERVERS, client_options={"client_idd": 1})
    with pytest.raises(ConfigurationError, match=r"did you mean 'kafka\.compression\.type'"):
        ToTopic("work", SERVERS, options={"kafka.compresion.type": "zstd"})
    with pytest.raises(ConfigurationError, match=r"kafka\.acks='1': must be"):
        ToTopic("work", SERVERS, options={"kafka.acks": "1"})
    for name in ("startingOfsets", "minPartition", "maxOffsetPerTrigger", "per_trigger", "isolation", "starting"):
        with pytest.raises(ConfigurationError, match=f"options {name}=") as raised:
            FromTopic("raw", SERVERS, options={name: 1})
        assert "use per_trigger" not in str(raised.value)
        assert "keep_key_order" not in str(raised.value)
    with pytest.raises(ConfigurationError, match=r"client_options=<str>: must be a dict"):
        FromTopic("raw", SERVERS, client_options="password")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"bootstrap_servers=5: must be host:port"):
        FromTopic("raw", 5, client_options={})  # type: ignore[arg-type]
    FromTopic("raw", SERVERS, options={"failOnDataLoss": False}, client_options={"client_id": "a"})
    ToTopic("work", SERVERS, options={"kafka.linger.ms": 5}, client_options={"client_id": "a"})


def test_what_writes_refuses_them_at_once() -> None:
    """Before it looks at the frame."""
    with pytest.raises(ConfigurationError, match=r"did you mean 'kafka\.compression\.type'"):
        sink_options("work", bootstrap_servers=SERVERS, options={"compresion": "x"})
    with pytest.raises(ConfigurationError, match=r"kafka\.acks='1'"):
        write_topic(NOTHING, "work", bootstrap_servers=SERVERS, options={"kafka.acks": "1"})


def test_check_finds_them_also_without_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, and not for each topic."""
    monkeypatch.setattr(checks, "connector_trouble", lambda _: None)
    monkeypatch.setattr(checks, "worker_trouble", lambda _: None)
    monkeypatch.setattr(checks, "java_version", lambda _: "17")
    monkeypatch.setattr(checks, "survey", lambda *_, **__: {"raw": {0: Log(0, 0)}, "other": {0: Log(0, 0)}})
    for sample in (0, 100):
        with pytest.raises(CheckFailed) as raised:
            check(
                NOTHING,
                bootstrap_servers=SERVERS,
                topics=["raw", "other"],
                sample=sample,
                options={"startingOfsets": "latest"},
            )
        assert len(raised.value.findings) == 1
        assert "did you mean 'startingOffsets'" in raised.value.findings[0]


@pytest.mark.parametrize(
    ("trigger", "message"),
    [
        ({"avialableNow": True}, "trigger avialableNow=True: .*did you mean 'availableNow'"),
        ({"realtime": "1 minute"}, "did you mean 'realTime'"),
        ({"foo": 1}, "the options are availableNow, continuous, once, processingTime, realTime"),
        ("availableNow", "trigger='availableNow': must be a dict"),
    ],
)
def test_a_misspelled_trigger_is_refused(trigger: Any, message: str) -> None:
    """PySpark would raise a bare TypeError."""
    with pytest.raises(ConfigurationError, match=message):
        write_topic(NOTHING, "work", bootstrap_servers=SERVERS, checkpoint="x", trigger=trigger)
    assert set(topics._TRIGGERS) == inspect.signature(DataStreamWriter.trigger).parameters.keys() - {"self"}


PUBLIC: dict[str, Callable[..., object]] = {
    name: getattr(spark, name)
    for name in spark.__all__
    if callable(getattr(spark, name)) and (name[0].islower() or name == "ProgressListener")
} | {one.__name__: one for one in (FromParquet, FromTopic, ToParquet, ToTopic, backfill.backfill)}


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_a_misspelled_argument_is_named(name: str) -> None:
    """Of each public function, and of each class that users make; its signature stays."""
    made = PUBLIC[name]
    first = next(iter(inspect.signature(made).parameters))
    with pytest.raises(ConfigurationError, match=rf"{first}x=1: there is no such option; did you mean '{first}'"):
        made(**{f"{first}x": 1})
    assert "options" not in inspect.signature(made).parameters or name in {"FromTopic", "ToTopic"} | {
        one.__name__ for one in (check, read_topic, sink_options, write_topic)
    }


def test_arguments_that_strangers_misspell() -> None:
    """With the name of the class."""
    with pytest.raises(ConfigurationError, match=r"^per_triger=5: .*'per_trigger'"):
        read_topic(NOTHING, "raw", bootstrap_servers=SERVERS, per_triger=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"^bootstrap_server='x': .*'bootstrap_servers'"):
        read_topic(NOTHING, "raw", bootstrap_server="x")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match=r"^FromTopic startin='earliest': .*'starting'"):
        FromTopic("raw", SERVERS, startin="earliest")  # type: ignore[call-arg]
