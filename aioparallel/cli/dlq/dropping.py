"""Letters that are settled without being sent, and the deletion of what is settled."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Final

import aiokafka.errors as kafka
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from aioparallel.cli.dlq.marks import Marks
from aioparallel.cli.dlq.opening import Access
from aioparallel.cli.dlq.planning import Plan
from aioparallel.clients.aiokafka.errors import deadline
from aioparallel.errors import ClientError
from aioparallel.records import TopicPartition

__all__ = ["delete_settled", "drop_letters"]

DELETE_TIMEOUT: Final = 30.0  # seconds


async def drop_letters(plan: Plan, marks: Marks) -> None:
    """Settle what was planned. Raises MarksRefused."""
    for chosen in plan.letters:
        marks[chosen.partition].settle(chosen.offset)
    await marks.save({chosen.partition for chosen in plan.letters})


async def delete_settled(topic: str, access: Access, before: Mapping[int, int]) -> dict[int, int]:
    """Have Kafka delete the records below an offset in each partition; returns where each log begins now.

    Raises ClientError, NotAuthorized and TimeoutError.
    """
    known = inspect.signature(AIOKafkaAdminClient.__init__).parameters
    options = {name: value for name, value in access.options.items() if name in known}
    admin = AIOKafkaAdminClient(bootstrap_servers=access.bootstrap_servers, **options)
    wanted = {TopicPartition(topic, number): RecordsToDelete(offset) for number, offset in before.items()}
    try:
        async with deadline(DELETE_TIMEOUT, f"deleting settled records of {topic}"):
            await admin.start()
            found = await admin.delete_records(wanted, timeout_ms=round(DELETE_TIMEOUT * 1000))
    except ClientError as error:
        if isinstance(error.__cause__, kafka.PolicyViolationError):
            raise ClientError(
                f"{topic}: the broker deletes nothing there, as cleanup.policy does not contain delete; "
                "what was dropped stays marked as settled"
            ) from error
        raise
    finally:
        await admin.close()
    return {tp.partition: offset for tp, offset in found.items()}
