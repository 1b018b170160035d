"""What the benchmark sets and asks of share groups."""

from __future__ import annotations

from aioparallel.clients.aiokafka.share_admin import ShareAdmin
from aioparallel.records.errors import AioparallelError

__all__ = ["left_of", "read_from_the_beginning"]


async def read_from_the_beginning(servers: str, group: str) -> None:
    """Let a new group begin with the first records; by default it begins with those that are written after it."""
    async with ShareAdmin(servers) as admin:
        await admin.set_group_configs(group, {"share.auto.offset.reset": "earliest"})


async def left_of(servers: str, group: str, each: int) -> int:
    """How many records of a topic, of which each partition has so many, have not ended in this group."""
    async with ShareAdmin(servers) as admin:
        offsets = (await admin.offsets(group)).values()
    left = [each if one.start is None else one.lag for one in offsets]
    known = [lag for lag in left if lag is not None]
    if not left or len(known) < len(left):
        raise AioparallelError(f"group {group!r} does not know what is left: {[*offsets]}")
    return sum(known)
