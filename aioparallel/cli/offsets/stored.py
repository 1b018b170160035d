"""Reads and writes the positions of a group: in Kafka, or in the database of a SqlStore."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Protocol

from aioparallel.cli.database import Database, open_engine
from aioparallel.cli.groups.reading import Connected
from aioparallel.cli.offsets.planning import Refused
from aioparallel.clients.aiokafka.group_admin import GroupState
from aioparallel.group.client import Committed
from aioparallel.group.offset_commits import split
from aioparallel.records.error_codes import ErrorCode
from aioparallel.records.errors import ClientError, NotAuthorized
from aioparallel.records.record import TopicPartition

__all__ = ["DatabasePositions", "KafkaPositions", "PositionStore", "members_text", "position_store"]

_NAMED: Final = 5
"""Members that are named in a message."""


class PositionStore(Protocol):
    """Where the positions of a group are."""

    limit: int | None
    """Most characters of a map; None: any number."""

    async def read(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, Committed]:
        """The positions of these partitions, or of all. Raises Refused while an open transaction may change one."""

    async def write(
        self, before: Mapping[TopicPartition, Committed | None], after: Mapping[TopicPartition, Committed]
    ) -> None:
        """Write ``after``, if nothing has changed since ``before`` was read. Raises Refused."""


class KafkaPositions:
    """Committed offsets in Kafka."""

    def __init__(self, to: Connected, group: str, limit: int) -> None:
        self.limit: int | None = limit
        self._admin = to.admin
        self._group = group

    async def read(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, Committed]:
        """See :class:`PositionStore`."""
        if partitions is None:
            partitions = await self._admin.committed(self._group)
        found: dict[TopicPartition, Committed] = {}
        for partition, one in (await self._admin.stable_offsets(self._group, partitions)).items():
            if one == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                raise Refused(
                    f"{partition}: a transaction with an offset of this group is open (UNSTABLE_OFFSET_COMMIT); wait "
                    "until it has ended, at the latest after its transaction.timeout.ms"
                )
            if not isinstance(one, Committed):
                raise Refused(f"{partition}: the broker answered {_name_of(one)}")
            found[partition] = one
        return found

    async def write(
        self, before: Mapping[TopicPartition, Committed | None], after: Mapping[TopicPartition, Committed]
    ) -> None:
        """See :class:`PositionStore`. The broker itself refuses a commit from outside while the group has members."""
        now = await self.read(list(after))
        for partition in after:
            if (found := now.get(partition)) != before[partition]:
                raise Refused(
                    f"{partition}: another program has committed meanwhile (offset "
                    f"{'none' if found is None else found.offset}); nothing was changed"
                )
        changed: list[TopicPartition] = []
        for part in split(after):
            try:
                await self._commit(part, changed)
            except (ClientError, TimeoutError) as error:
                if not changed:
                    raise
                names = ", ".join(map(str, sorted(changed)))
                raise Refused(f"{error}. Committed all the same, and changed: {names}") from error

    async def _commit(self, part: Mapping[TopicPartition, Committed], changed: list[TopicPartition]) -> None:
        """Send one request, and read back. ``changed`` gets the partitions that were committed."""
        doubt = ""
        try:
            codes = await self._admin.commit(self._group, part)
        except NotAuthorized:
            raise
        except (ClientError, TimeoutError) as error:
            doubt = f"; the commit may still arrive ({error})"
        else:
            changed += [partition for partition, code in codes.items() if code == ErrorCode.NONE]
            _raise_refusals(codes, is_partial=bool(changed))
        try:
            stored = await self.read(list(part))
        except (ClientError, TimeoutError) as error:
            if doubt:
                raise Refused(f"it is unknown whether the commit was carried out{doubt}: {error}") from error
            raise
        for partition, position in part.items():
            found = stored.get(partition)
            if found is None or found[:2] != position[:2]:
                raise Refused(
                    f"{partition}: offset {'none' if found is None else found.offset} is stored now, not "
                    f"{position.offset}{doubt or ': another program has committed since'}"
                )
        if doubt:
            changed += part


def _raise_refusals(codes: Mapping[TopicPartition, int], *, is_partial: bool) -> None:
    """Raise Refused if a code is an error. ``is_partial``: whether other partitions were committed."""
    for partition, code in codes.items():
        match code:
            case ErrorCode.NONE:
                continue
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.REBALANCE_IN_PROGRESS | ErrorCode.ILLEGAL_GENERATION:
                raise Refused(
                    f"a member has joined the group meanwhile: the broker has refused the commit ({_name_of(code)})"
                    f"{'' if is_partial else '. Nothing was changed'}; stop all members, and try again"
                )
            case ErrorCode.OFFSET_METADATA_TOO_LARGE:
                raise Refused(f"{partition}: the brokers do not accept metadata of this length ({_name_of(code)})")
            case _:
                raise Refused(f"{partition}: the broker has refused the commit ({_name_of(code)}); try again")


class DatabasePositions:
    """Positions of a SqlStore. What Kafka has for this group is for lag tools only, and stays as it is."""

    def __init__(self, where: Database, url: str, group: str) -> None:
        self.limit: int | None = None
        self._where = where
        self._url = url
        self._group = group

    async def read(self, partitions: Collection[TopicPartition] | None) -> dict[TopicPartition, Committed]:
        """See :class:`PositionStore`."""
        from aioparallel.persistence.sql.reading import stored_positions  # noqa: PLC0415 - needs the extra sql
        from aioparallel.persistence.sql.schema import Schema  # noqa: PLC0415

        schema = Schema(self._where.prefix, self._where.schema)
        async with open_engine("database", self._url, "the positions could not be read") as engine:
            found = await stored_positions(engine, schema, self._group)
        return {partition: one for partition, one in found.items() if partitions is None or partition in partitions}

    async def write(
        self, before: Mapping[TopicPartition, Committed | None], after: Mapping[TopicPartition, Committed]
    ) -> None:
        """See :class:`PositionStore`. Compares and writes in one transaction."""
        from aioparallel.persistence.sql.changing import (  # noqa: PLC0415
            PositionsChanged,
            RowsAbove,
            change_positions,
        )
        from aioparallel.persistence.sql.schema import Schema  # noqa: PLC0415

        expected = {partition: one for partition, one in before.items() if one is not None and partition in after}
        if missing := after.keys() - expected.keys():
            raise Refused(f"{min(missing)}: the group has no position there; its consumer writes the first one")
        schema = Schema(self._where.prefix, self._where.schema)
        try:
            async with open_engine("database", self._url, "the positions could not be written") as engine:
                await change_positions(engine, schema, self._group, expected, after)
        except RowsAbove as error:
            raise Refused(
                f"{error.partition}: the record at offset {error.offset} is complete and too far above the position to "
                "be in a map; let the consumer run until the position is near it"
            ) from error
        except PositionsChanged as error:
            raise Refused(
                f"{error.partition}: another program has changed the position meanwhile; nothing was changed"
            ) from error


async def position_store(to: Connected, group: str, where: Database) -> PositionStore:
    """Where the positions of the group are."""
    if where.database is not None:
        return DatabasePositions(where, where.database, group)
    return KafkaPositions(to, group, await to.admin.metadata_limit())


def members_text(state: GroupState) -> str:
    """The members by name, for a message."""
    names = [
        f"{one.client_id} at {one.host}" + (f" (static {one.instance_id})" if one.instance_id else "")
        for one in state.members
    ]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"error code {code}"
