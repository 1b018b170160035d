"""Extensions without a consumer."""

from __future__ import annotations

from aioparallel.config.extension import ConsumerContext
from aioparallel.config.options import Options
from aioparallel.delivery.producer import Producer
from aioparallel.group.client import Client

__all__ = ["context_of"]


def context_of(options: Options, group_id: str, client: Client, producer: Producer | None) -> ConsumerContext:
    """The context of a consumer that never ends and has no partitions."""

    def fail(error: BaseException) -> None:
        raise AssertionError from error

    return ConsumerContext(
        group_id=group_id,
        servers="memory:9092",
        options=options,
        client=client,
        producer=producer,
        plain_producer=lambda: producer,
        fail=fail,
        is_running=lambda: True,
        partitions=tuple,
    )
