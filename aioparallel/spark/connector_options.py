"""Checks the options that are passed on to Spark's Kafka source and sink.

Spark ignores an option that it does not know, and Kafka's clients ignore a property that they do not know. So a
misspelled one would have no effect, and nobody would notice. Names are case-insensitive, as in Spark.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from aioparallel.config.security.secret import Hidden
from aioparallel.config.unknown_options import did_you_mean, is_secret, meant
from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.kafka_properties import CLIENTS_VERSION, CONSUMER, NEWER, PRODUCER

__all__ = ["READING", "READING_WITHOUT_ORDER", "WRITING", "ConnectorOptions"]

logger = logging.getLogger(__name__)

_PREFIX: Final = "kafka."
_LIKENESS: Final = 0.85
"""Properties less like a known one may be of an interceptor or a login module."""
_OF_CONNECTIONS: Final = "sasl|ssl"
"""Properties that may hold passwords and private keys, also if they are misspelled."""


@dataclass(frozen=True)
class ConnectorOptions:
    """The options of Spark's Kafka source or sink."""

    place: str
    """The source or the sink, in messages."""
    client: str
    """The Kafka client that it uses."""
    known: Collection[str]
    """Names without prefix that are passed on."""
    refused: Mapping[str, str]
    """Names that are not passed on, and what to do instead."""
    arguments: Collection[str]
    """Names of the function's arguments."""
    properties: Collection[str]
    """Properties of the client, whose names get a prefix."""
    foreign: Collection[str]
    """Properties of the other client, which this one ignores."""
    safe: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Options by name: values that are allowed, as a regular expression, and what they must be and why."""

    def refusing(self, more: Mapping[str, str], arguments: Collection[str]) -> ConnectorOptions:
        """The same for another function, which refuses more names and has other arguments."""
        known = [name for name in self.known if name.lower() not in map(str.lower, more)]
        refused = {name: advice for name, advice in self.refused.items() if name not in more}
        return replace(self, known=known, refused={**refused, **more}, arguments=arguments)

    def as_text(self, options: Mapping[str, object] | None) -> dict[str, str]:
        """The options as Spark takes them. Raises ConfigurationError, and warns of properties that no client has."""
        for name in self.check(options):
            logger.warning(
                "options %s: Kafka's %s (kafka-clients %s) has no such property and ignores it, unless an interceptor, "
                "a login module or a newer client reads it",
                name,
                self.client,
                CLIENTS_VERSION,
                extra={"action": "unknown_kafka_property"},
            )
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in (options or {}).items()
        }

    def check(self, options: Mapping[str, object] | None) -> list[str]:
        """Check names, and values that must be safe. Returns the names of properties that the client does not have.

        Raises ConfigurationError."""
        given: object = {} if options is None else options
        if not isinstance(given, Mapping):
            raise ConfigurationError("options", given, 'must be a dict, as in {"kafka.client.id": "flights"}')
        return [name for name, value in given.items() if not self._has(name, value)]

    def _has(self, name: object, value: object) -> bool:
        if not isinstance(name, str):
            raise ConfigurationError("name in options", name, "names of options are strings")
        lower = name.lower()
        if advice := _lowered(self.refused).get(lower):
            raise _refusal(name, value, advice)
        if lower in self.arguments:
            raise _refusal(name, value, f"give it as an argument of its own, {lower}=")
        if value is None or (isinstance(value, Collection) and not isinstance(value, str)):
            raise _refusal(
                name, value, "must be a text, a number or a bool, as Spark takes it; leave out what is not set"
            )
        self._check_safe(name, value)
        if lower in _lowered(self.known):
            return True
        if not lower.startswith(_PREFIX):
            raise self._no_option(name, value)
        short = lower.removeprefix(_PREFIX)
        if short not in self.properties and short not in NEWER:
            self._refuse_property(name, value, short)
        return short in self.properties

    def _check_safe(self, name: str, value: object) -> None:
        values, advice = self.safe.get(name.lower(), (".*", ""))
        if not re.fullmatch(values, str(value).strip(), re.IGNORECASE):
            raise _refusal(name, value, advice)

    def _no_option(self, name: str, value: object) -> ConfigurationError:
        names = [*self.known, *self.refused, *self.arguments]
        near = _nearest(name, 0.75, [*self._with_prefix(), *names]) or _nearest(name, 0.6, names)
        if near is not None:
            return _refusal(name, value, f"{self.place} has no such option; {self._did_you_mean(near)}", near)
        has = ", ".join(sorted(self.known))
        return _refusal(
            name,
            value,
            f"{self.place} has no such option; it has {has}, and properties of Kafka's {self.client} with the prefix "
            f"{_PREFIX}",
        )

    def _refuse_property(self, name: str, value: object, short: str) -> None:
        """Refuse a property that has no effect for sure, or is very like one of the client."""
        if short in self.foreign:
            raise _refusal(name, value, f"Kafka's {self.client} has no such property, leave it out")
        near = _nearest(short, _LIKENESS, [*self.known, *self.refused, *self._with_prefix()])
        if near is not None:
            advice = f"Kafka's {self.client} has no such property; {self._did_you_mean(near)}"
            raise _refusal(name, value, advice, near)

    def _with_prefix(self) -> list[str]:
        return [_PREFIX + short for short in (*self.properties, *NEWER)]

    def _did_you_mean(self, near: str) -> str:
        if near in self.arguments:
            return f"{did_you_mean(near)} It is an argument of its own, {near}="
        return did_you_mean(near, _lowered(self.refused).get(near.lower()))


def _refusal(name: str, value: object, advice: str, near: str = "") -> ConfigurationError:
    shows = not any(is_secret(one) or re.search(_OF_CONNECTIONS, one.lower()) for one in (name, near))
    return ConfigurationError(f"options {name}", value if shows else Hidden(value), advice)


def _lowered(names: Mapping[str, str] | Collection[str]) -> dict[str, str]:
    advices = names if isinstance(names, Mapping) else dict.fromkeys(names, "")
    return {name.lower(): advice for name, advice in advices.items()}


def _nearest(name: str, likeness: float, names: Iterable[str]) -> str | None:
    """The name that is most like this one. Later ones replace earlier ones of the same letters."""
    by_letters = {_letters(one.removeprefix(_PREFIX)): one for one in names}
    near = meant(_letters(name), by_letters, likeness=likeness)
    return None if near is None else by_letters[near]


def _letters(name: str) -> str:
    """Without what separates words: ``max_offsets_per_trigger`` means ``maxOffsetsPerTrigger``."""
    return re.sub(r"[\W_]", "", name.lower())


_SPLITS: Final = (
    "it splits a partition between tasks, so that records of one key overtake each other; leave it out, give the topic "
    "more partitions, or set keep_key_order=False if order does not matter"
)
_SPLITTING: Final = ("maxRecordsPerPartition", "minPartitions")

READING_WITHOUT_ORDER: Final = ConnectorOptions(
    "Spark's Kafka source",
    "consumer",
    # https://spark.apache.org/docs/latest/streaming/structured-streaming-kafka-integration.html, and
    # KafkaSourceProvider of the connector 4.2.0.
    known=(
        "failOnDataLoss",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "groupIdPrefix",
        "kafkaConsumer.pollTimeoutMs",
        "maxTriggerDelay",
        "minOffsetsPerTrigger",
        *_SPLITTING,
    ),
    refused={
        "assign": "name the topics",
        "endingOffsets": "use ending",
        "endingOffsetsByTimestamp": "use ending",
        "endingTimestamp": "use ending",
        "includeHeaders": "leave it out, headers always come",
        "kafka.bootstrap.servers": "use bootstrap_servers",
        "kafka.isolation.level": "use isolation",
        "maxOffsetsPerTrigger": "use per_trigger",
        "startingOffsets": "use starting",
        "startingOffsetsByTimestamp": "use starting",
        "startingOffsetsByTimestampStrategy": "use past_the_end",
        "startingTimestamp": "use starting",
        "subscribe": "name the topics",
        "subscribePattern": "name the topics",
    },
    arguments=(
        "bootstrap_servers",
        "ending",
        "isolation",
        "keep_key_order",
        "past_the_end",
        "per_trigger",
        "starting",
        "streaming",
        "topics",
    ),
    properties=CONSUMER,
    foreign=PRODUCER - CONSUMER,
)
"""The options of :func:`read_topic` with ``keep_key_order=False``."""
READING: Final = READING_WITHOUT_ORDER.refusing(dict.fromkeys(_SPLITTING, _SPLITS), READING_WITHOUT_ORDER.arguments)
"""The options of :func:`read_topic`."""

_REPEATS: Final = "otherwise requests that Kafka's producer repeats write records twice, or in another order"

WRITING: Final = ConnectorOptions(
    "Spark's Kafka sink",
    "producer",
    known=("includeHeaders",),
    refused={
        "checkpointLocation": "use checkpoint",
        "kafka.bootstrap.servers": "use bootstrap_servers",
        "queryName": "use query_name",
        "topic": "name the topic",
    },
    arguments=("bootstrap_servers", "checkpoint", "index", "query_name", "source", "trigger"),
    properties=PRODUCER,
    foreign=CONSUMER - PRODUCER,
    safe={
        "kafka.acks": (
            "all|-1",
            'must be "all": otherwise records that Spark counts as written are lost with the leader of a partition',
        ),
        "kafka.enable.idempotence": ("true", f"must be True: {_REPEATS}"),
        # ProducerConfig turns idempotence off without an error.
        "kafka.max.in.flight.requests.per.connection": ("0*[1-5]", f"must be 1 to 5, for idempotence: {_REPEATS}"),
    },
)
"""The options of :func:`write_topic` and :func:`sink_options`."""
