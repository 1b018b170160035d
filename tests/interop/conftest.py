"""Fixtures: the Java programs, and a topic with a group on the real Apache Kafka."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import NoReturn

import pytest

from aioparallel.testing import LocalKafka
from aioparallel.testing.pytest_plugin import TopicMaker
from tests.support.interop.group import Group
from tests.support.interop.java_programs import JavaPrograms, JavaProgramsMissing, build

GroupMaker = Callable[[int], Awaitable[Group]]


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


@pytest.fixture
def new_group(local_kafka: LocalKafka, kafka_topic: TopicMaker) -> GroupMaker:
    """A function: ``await new_group(partitions)`` makes a topic and the name of a group that reads it."""

    async def make(partitions: int) -> Group:
        name = await kafka_topic(partitions)
        return Group(local_kafka.bootstrap_servers, name, f"group-of-{name}")

    return make
