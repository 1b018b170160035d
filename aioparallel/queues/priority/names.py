"""Names of the topics and groups of each priority, the same as in Flipkart's priority-kafka-client."""

from __future__ import annotations

from collections.abc import Sequence

from aioparallel.config.handling import check_count
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Record

__all__ = ["PriorityTopics", "check_priorities", "priority_group", "priority_of", "priority_topic"]

_DELIMITER = "-"


def priority_topic(topic: str, priority: int) -> str:
    """The topic that holds the records of one priority: ``"orders-2"``. Outputs of handlers may name it as well."""
    return f"{topic}{_DELIMITER}{priority}"


def priority_group(group_id: str, priority: int) -> str:
    """The consumer group that reads one priority: ``"billing-2"``."""
    return f"{group_id}{_DELIMITER}{priority}"


def priority_of(record: Record | str) -> int:
    """The priority of a record, or of a topic or group by its name; 0 is the lowest.

    Raises ValueError if the name does not end in a priority.
    """
    name = record if isinstance(record, str) else record.topic
    _, delimiter, number = name.rpartition(_DELIMITER)
    if not delimiter or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{name!r} names no priority: it must end in {_DELIMITER!r} and a number")
    return int(number)


def check_priorities(priorities: int) -> None:
    """Raises ConfigurationError unless ``priorities`` is from 1 to 32."""
    check_count("priorities", priorities)
    if priorities > 32:
        raise ConfigurationError("priorities", priorities, "are too many: 32 at most")


class PriorityTopics:
    """Logical topics and the topics of their priorities."""

    def __init__(self, topics: Sequence[str], priorities: int) -> None:
        self.logical = tuple(topics)
        self.of = [[priority_topic(topic, priority) for topic in topics] for priority in range(priorities)]
        """The topics by priority."""
        self.names = [name for names in self.of for name in names]
        self._priorities = {name: priority for priority, names in enumerate(self.of) for name in names}

    def priority(self, name: str) -> int:
        """The priority of one of these topics; 0 for any other topic."""
        return self._priorities.get(name, 0)
