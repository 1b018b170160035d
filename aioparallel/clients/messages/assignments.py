"""What the messages of consumer groups and share groups have in common: assignments, and the ids of members."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass

from aioparallel.clients.messages.schema import Int32, Uuid

__all__ = ["Assignment", "DescribedAssignment", "DescribedPartitions", "TopicPartitions", "new_member_id"]


def new_member_id() -> str:
    """A random id as Java's members have it: a UUID in base64. Brokers of Kafka 4.1 refuse fetches of share groups with
    any other."""
    while True:
        found = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        if not found.startswith("-"):  # neither has Java, as it looks like an option on command lines
            return found


@dataclass(frozen=True, slots=True)
class TopicPartitions:
    """Partitions of one topic."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class Assignment:
    """All partitions that a member should have, not only the new ones."""

    topic_partitions: tuple[TopicPartitions, ...]


@dataclass(frozen=True, slots=True)
class DescribedPartitions:
    """Partitions of one topic, with its name."""

    topic_id: Uuid
    topic_name: str
    partitions: tuple[Int32, ...]


@dataclass(frozen=True, slots=True)
class DescribedAssignment:
    """A member's assignment, in the description of its group."""

    topic_partitions: tuple[DescribedPartitions, ...]
