"""Folds and fences of a store against a model: any course of take-overs, transactions, lost answers, folds, crashes, by
two members of which at most one has the partition."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.exc import OperationalError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from aioparallel import Record
from aioparallel.engine.sources import Source
from aioparallel.group.client import Client, CommitFault, Committed, Generation
from aioparallel.group.leader_epochs import UNKNOWN
from aioparallel.handlers.batches import Batch, Call
from aioparallel.offsets import Ledger, decode_offset_map, encode_offset_map
from aioparallel.persistence.sql import SqlStore
from aioparallel.persistence.sql.doubt import Fenced
from aioparallel.persistence.sql.lag_offsets import LagOffsets
from aioparallel.persistence.sql.opened import _OfSqlalchemy
from aioparallel.persistence.sql.taking import Partitions
from aioparallel.records.record import TopicPartition
from tests.support.examples import examples

P0 = TopicPartition("in", 0)
GENERATION = Generation(1, "m")
RECORDS = 24
EPOCH = 3
INSERT = text("INSERT INTO results VALUES (:offset)")


NUMBERS = st.integers(0, 1)
PLACES = st.lists(st.integers(0, RECORDS), min_size=1, max_size=4, unique=True)
ANSWERS = st.sampled_from(["there", "there", "lost", "not carried out", "handler fails"])


class NoGroup:
    """In the place of a client: what the group is told is for others."""

    async def commit(self, *_: object) -> dict[TopicPartition, None]:
        """Taken."""
        return {}

    def fenced(self, _: Generation) -> None:
        """Heard."""

    async def topic_ids(self, topics: Collection[str], _: float) -> dict[str, bytes]:
        """Always the same."""
        return dict.fromkeys(topics, b"id")

    async def valid_ends(self, epochs: Collection[TopicPartition], _: float) -> dict[TopicPartition, int]:
        """Nothing was ever lost."""
        return dict.fromkeys(epochs, RECORDS)


class Member:
    """One that may have the partition, or believe so."""

    def __init__(self, engine: Any) -> None:
        self.store = SqlStore(engine)
        self.ledger: Ledger | None = None
        client = cast("Client", NoGroup())
        self.partitions = self.store._partitions = Partitions(
            engine,
            self.store._statements,
            "g",
            client,
            LagOffsets(client, list),
            self.store._turn,
            self.store._on_trouble,
            self.store._outages.answered,
        )


class Model:
    """``done``: records that are complete, and have their row."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        place = Path(self.directory.name) / "store.db"
        self.engine = create_async_engine(f"sqlite+aiosqlite:///{place}")
        self.done: set[int] = set()
        self.is_told = False  # a position stands there
        self.run(self.prepare())
        self.members = [Member(self.engine), Member(self.engine)]
        self.owner: Member | None = None

    def run(self, what: Any) -> Any:
        """To its end."""
        return self.runner.run(what)

    async def prepare(self) -> None:
        """The tables."""
        await SqlStore(self.engine).create_tables()
        async with self.engine.begin() as connection:
            await connection.execute(text("CREATE TABLE results (place INTEGER)"))

    def close(self) -> None:
        """Leave nothing."""
        for member in self.members:
            self.run(member.store.close())
        self.run(self.engine.dispose())
        self.runner.close()
        self.directory.cleanup()

    # -- members

    def take_over(self, number: int) -> None:
        """It finds all that is complete, and nothing else."""
        member = self.members[number]
        found = self.run(member.partitions.take_over([P0], GENERATION, 5))[P0]
        self.owner = member
        if not self.is_told:
            assert found is None
            member.ledger = Ledger(0)
            self.fold(number)  # where it begins
        else:
            position = decode_offset_map(*found[:2])
            assert {offset for offset in range(RECORDS + 5) if position.is_complete(offset)} == self.done
            assert found.leader_epoch in (EPOCH, UNKNOWN)
            member.ledger = Ledger(found.offset, position)
        member.ledger.register(list(range(member.ledger.position, RECORDS)), RECORDS)

    def crash(self, number: int) -> None:
        """Its process is gone, and what it knew."""
        self.run(self.members[number].store.close())
        if self.owner is self.members[number]:
            self.owner = None
        self.members[number] = Member(self.engine)

    def fold(self, number: int) -> None:
        """Its ledger becomes the position; nothing of it where it is not the owner any more."""
        member = self.members[number]
        if member.ledger is None:
            return
        said = member.ledger.snapshot()
        map_text = encode_offset_map(said.base_offset, said.highest_succeeded, said.incompletes, limit=None)
        committed = Committed(said.base_offset, map_text, EPOCH)
        result = self.run(member.partitions.commit({P0: committed}, GENERATION, 5))
        if member is self.owner:
            assert result == {P0: None}
            self.is_told = True
            assert not any(said.is_complete(offset) for offset in self.run(self.read())[2])
        else:
            assert result == {P0: CommitFault.FENCED}

    # -- transactions

    def handle(self, number: int, places: list[int], answer: str) -> None:
        """One record, or a batch: all of it is there, or nothing; nothing where it is not the owner any more."""
        member = self.members[number]
        left = [] if member.ledger is None else list(member.ledger.incompletes)
        offsets = [left[place % len(left)] for place in places] if left else []
        offsets = sorted(set(offsets))
        if not offsets or member.ledger is None:
            return
        error = self.outcome(member, offsets, answer)
        if member is self.owner and answer in ("there", "lost"):
            assert error is None, error
            self.done.update(offsets)
            member.ledger.complete_all(offsets)
        elif answer == "handler fails":
            assert isinstance(error, ArithmeticError)
        elif member is not self.owner:
            assert isinstance(error, Fenced)
        else:
            assert isinstance(error, SQLAlchemyError)

    def outcome(self, member: Member, offsets: list[int], answer: str) -> Exception | None:
        """What the handler of the store raises."""
        records, source = [Record[Any, Any](*P0, offset) for offset in offsets], Source(P0)
        for record in records:
            record._source = source

        async def write(given: Any, connection: AsyncConnection) -> None:
            for record in [given] if isinstance(given, Record) else given:
                await connection.execute(INSERT, {"offset": record.offset})
            if answer == "handler fails":
                raise ArithmeticError

        commit = _OfSqlalchemy.commit

        async def answered(transaction: _OfSqlalchemy) -> None:
            if answer == "not carried out":
                await transaction.roll_back()
            else:
                await commit(transaction)
            if answer != "there":
                raise OperationalError("COMMIT", {}, OSError("no answer"))

        handler = member.store.handler(write)
        item: Any = records[0] if len(records) == 1 else Batch(records, Call({source: records}))
        _OfSqlalchemy.commit = answered  # type: ignore[method-assign,assignment]
        try:
            self.run(handler(item))
        except Exception as error:
            return error
        finally:
            _OfSqlalchemy.commit = commit  # type: ignore[method-assign]
        return None

    def each_row_is_there_once(self) -> None:
        """At every step; and position and rows beside it say which."""
        rows, positions, beside = self.run(self.read())
        assert sorted(rows) == sorted(self.done)
        said = set(beside)
        for offset, map_text in positions:
            position = decode_offset_map(offset, map_text)
            said |= {place for place in range(RECORDS + 5) if position.is_complete(place)}
        assert said == self.done

    async def read(self) -> tuple[list[int], list[tuple[int, str]], list[int]]:
        """What stands there."""
        async with self.engine.connect() as connection:
            rows = (await connection.execute(text("SELECT place FROM results"))).scalars().all()
            found = await connection.execute(text("SELECT next_offset, offset_map FROM aioparallel_position"))
            beside = (await connection.execute(text("SELECT record_offset FROM aioparallel_done"))).scalars().all()
            return list(rows), [(one[0], one[1]) for one in found], list(beside)


STEPS = st.one_of(
    st.tuples(st.just(Model.take_over), NUMBERS),
    st.tuples(st.just(Model.crash), NUMBERS),
    st.tuples(st.just(Model.fold), NUMBERS),
    st.tuples(st.just(Model.handle), NUMBERS, PLACES, ANSWERS),
    st.tuples(st.just(Model.handle), NUMBERS, PLACES, ANSWERS),
    st.tuples(st.just(Model.handle), NUMBERS, PLACES, ANSWERS),
)


@settings(max_examples=examples(20, 40), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(STEPS, min_size=30, max_size=60))
def test_any_course(steps: list[Any]) -> None:
    """Each row is there once, whatever came; and whoever takes over finds all that is complete."""
    model = Model()
    try:
        model.take_over(0)
        for step, *given in steps:
            step(model, *given)
            model.each_row_is_there_once()
    finally:
        model.close()
