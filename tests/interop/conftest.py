"""Fixtures: the Java programs, and a topic with a group on the real Apache Kafka."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import NoReturn

import pytest
import pytest_asyncio

from aioparallel.testing.brokers.local import LocalKafka
from tests.support.interop.group import Group, open_group
from tests.support.interop.java_programs import JavaPrograms, JavaProgramsMissing, build

GroupMaker = Callable[[int], Awaitable[Group]]
_numbers = itertools.count(1)


def give_up(reason: str, environment: Mapping[str, str]) -> NoReturn:
    """Fail in CI, where nobody reads why a test was skipped; skip anywhere else."""
    if environment.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _no_tracebacks_of_stuck_records(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of records fail because a test wants it, each with a warning and its traceback."""
    caplog.set_level(logging.ERROR, "aioparallel.engine")


@pytest.fixture(scope="session")
def java_programs() -> JavaPrograms:
    """The built programs of ``java/``."""
    try:
        return build(os.environ)
    except JavaProgramsMissing as missing:
        reason = str(missing)
    give_up(reason, os.environ)


@pytest_asyncio.fixture
async def new_group(local_kafka: LocalKafka) -> AsyncIterator[GroupMaker]:
    """A function: ``await new_group(partitions)`` makes a topic and the name of a group that reads it."""
    async with AsyncExitStack() as stack:

        async def make(partitions: int) -> Group:
            name = f"interop-{os.getpid()}-{next(_numbers)}"
            await local_kafka.create_topic(name, partitions)
            return await stack.enter_async_context(open_group(local_kafka.bootstrap_servers, name, f"group-of-{name}"))

        yield make
