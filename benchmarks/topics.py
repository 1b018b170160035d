"""Topics that are deleted after each case."""

from __future__ import annotations

import logging

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.records.errors import AioparallelError

__all__ = ["Topics"]

log = logging.getLogger(__name__)


class Topics:
    """Creates topics and deletes them after a case."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin
        self._names: list[str] = []

    async def create(self, name: str, partitions: int) -> None:
        """Create a topic with one replica. Raises ClientError or TimeoutError."""
        await self._admin.create_topic(name, partitions)
        self._names.append(name)

    async def clear(self) -> None:
        """Delete all topics created so far; logs those that stay."""
        names, self._names = self._names, []
        try:
            await self._admin.delete_topics(*names)
        except (AioparallelError, TimeoutError):
            log.warning("topics not deleted, delete them by hand", extra={"topics": names}, exc_info=True)
