"""The topics and groups of a priority, named as Flipkart's priority-kafka-client names them."""

from __future__ import annotations

from collections.abc import Sequence

from aioparallel.config.handling import check_count
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import Record

__all__ = ["PriorityTopics", "check_priorities", "priority_group", "priority_of", "priority_topic"]

_DELIMITER = "-"


def priority_topic(topic: str, priority: int) -> str:
    """The topic that holds the records of one priority: ``"orders-2"``. For outputs of handlers, too."""
    return f"{topic}{_DELIMITER}{priority}"


def priority_group(group_id: str, priority: int) -> str:
    """The consumer group that reads one priority: ``"billing-2"``."""
    return f"{group_id}{_DELIMITER}{priority}"


def priority_of(record: Record | str) -> int:
    """The priority of a record, or of a topic or group by its name; 0 is the lowest.

    Raises ValueError where the name does not end in one.
    """
    name = record if isinstance(record, str) else record.topic
    _, delimiter, number = name.rpartition(_DELIMITER)
    if not delimiter or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{name!r} names no priority: it would end in {_DELIMITER!r} and a number")
    return int(number)


def check_priorities(priorities: int) -> None:
    """Raises ConfigurationError unless there may be so many."""
    check_count("priorities", priorities)
    if priorities > 32:
        raise ConfigurationError("priorities", priorities, "are too many: a few do, 32 at most")


class PriorityTopics:
    """Logical topics, and those of their priorities."""

    def __init__(self, topics: Sequence[str], priorities: int) -> None:
        self.logical = tuple(topics)
        self.of = [[priority_topic(topic, priority) for topic in topics] for priority in range(priorities)]
        """By priority."""
        self.names = [name for names in self.of for name in names]
        """All of them."""
        self._priorities = {name: priority for priority, names in enumerate(self.of) for name in names}

    def priority(self, name: str) -> int:
        """That of one of these topics; the lowest for any other."""
        return self._priorities.get(name, 0)
