"""Puts producer, outbox and dead letters of one run together, and closes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aioparallel.config.options import Options
from aioparallel.config.policies import FailurePolicy
from aioparallel.delivery.dead_letters import DeadLetters, LetterBox
from aioparallel.delivery.outbox import Outbox
from aioparallel.delivery.producer import Producer
from aioparallel.delivery.shrinking import CutLetters
from aioparallel.engine.sinks import OutputSink
from aioparallel.observe.health import Problem
from aioparallel.observe.stats import BrokerOutputs
from aioparallel.records.errors import ConfigurationError, TopicNotFound
from aioparallel.records.record import Record

__all__ = ["Delivery", "failure_topics"]

# Seconds for unacknowledged outputs when everything else has ended.
_LAST_ACKNOWLEDGEMENTS = 2.0


class Delivery:
    """Connects only to send an output, or to check a topic of the failure policy.

    ``producer``: None if the consumer has a custom client and no producer. ``output_sink``, ``letter_box``: where
    outputs and dead letters go; None: directly to the producer. ``fatal(error)``: ends the run with an error.
    """

    def __init__(
        self,
        producer: Producer | None,
        options: Options,
        group_id: str,
        output_sink: OutputSink | None = None,
        letter_box: LetterBox | None = None,
        *,
        fatal: Callable[[BaseException], None],
    ) -> None:
        self._producer = producer
        self._options = options
        self._group_id = group_id
        self._dead_letters: DeadLetters | None = None
        self.cut = CutLetters()
        """Dead letters that lack a part of their record."""
        if producer is not None and output_sink is None:
            output_sink = letter_box = Outbox(producer, options.producing, fatal)
        self.output_sink = output_sink
        """Where outputs go."""
        self._letter_box = letter_box
        if producer is None and failure_topics(options.failures):
            raise ConfigurationError(
                "producer", None, "dead letters and retry topics need a producer if you pass a client: producer=..."
            )

    async def check(self, servers: str) -> None:
        """Connect, and check the topics of the failure policy. Raises TopicNotFound, and what connecting raises."""
        topics = failure_topics(self._options.failures)
        if self._producer is None or not topics:
            return
        timeout = self._options.connect_timeout
        await self._producer.start(timeout)
        missing = set(topics) - {partition.topic for partition in await self._producer.partitions(topics, timeout)}
        if missing:
            raise TopicNotFound(missing, servers, topics)

    def dead_letter_sink(self, around: Callable[[LetterBox], LetterBox] = lambda box: box) -> DeadLetters | None:
        """Make the sink for dead letters; None if there are none. Call it once a run, within the running loop.
        ``around``: returns what sends dead letters instead of the usual :class:`LetterBox`."""
        failures = self._options.failures
        if self._letter_box is None and failures.dead_letter is None:
            return None
        timeout = self._options.producing.delivery_timeout
        box = None if self._letter_box is None else around(self._letter_box)
        self._dead_letters = DeadLetters(failures, self._group_id, box, timeout, self.cut)
        return self._dead_letters

    @property
    def undelivered(self) -> Mapping[Record[Any, Any], str]:
        """Records that cannot be dead-lettered, and why."""
        return self._dead_letters.undelivered if self._dead_letters is not None else {}

    @property
    def outputs(self) -> Sequence[BrokerOutputs]:
        """Unacknowledged outputs, by broker."""
        return () if self._producer is None else self._producer.outputs()

    @property
    def problems(self) -> Sequence[Problem]:
        """Health problems of the producer."""
        return () if self._producer is None else self._producer.problems()

    async def close(self) -> None:
        """Fail unacknowledged outputs, and disconnect. Call it after the last drain."""
        try:
            if self._dead_letters is not None:
                await self._dead_letters.close()
        finally:
            if self._producer is not None:
                await self._producer.stop(_LAST_ACKNOWLEDGEMENTS)


def failure_topics(failures: FailurePolicy) -> dict[str, str]:
    """Return the topics that a failure policy writes to, and the purpose of each."""
    topics = dict.fromkeys(failures.retry_topics, "a retry topic of FailurePolicy")
    if isinstance(failures.dead_letter, str):
        topics[failures.dead_letter] = "dead_letter="
    return topics
