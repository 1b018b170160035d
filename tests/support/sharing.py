"""What takes long to start runs in one process of those that run tests, and ends with the last test that needs it: a
broker at rest takes 2 % of a processor, a cluster of three 9 %, and three Sparks are warm after three times the work.

Files whose tests share such a thing are a group; any other file is one by itself, as with ``--dist loadfile``. The
process that distributes tests collects none: it knows a file's group by the fixture that is named there. (The groups of
pytest-xdist 3.8 travel at the end of node ids, which pytest 9.2 lets nobody change: they spread tests one by one.)
"""

from __future__ import annotations

import re
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

from aioparallel.testing import LocalKafka

__all__ = ["pytest_collection_modifyitems", "pytest_runtest_teardown", "pytest_xdist_make_scheduler"]

SHARED: Final = ("spark", "kafka_cluster", "mortal_kafka", "secured_kafka")
"""Fixtures, those whose tests take longest first: so no group is begun late, and the rest fills what is left."""
_running: Final[dict[str, LocalKafka]] = {}


class GroupsAndFiles(LoadFileScheduling):  # type: ignore[misc]
    """Each group in one process, each file of none in one."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return group_of(self.config.rootpath / file) or file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupsAndFiles | None:
    """Groups, where files stay together."""
    return GroupsAndFiles(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups come first. Raises UsageError where a file's text does not tell what its tests ask for."""
    for item in items:
        asked = set(SHARED).intersection(getattr(item, "fixturenames", ()))
        if asked and group_of(item.path) is None:
            raise pytest.UsageError(f"{item.nodeid} asks for {', '.join(asked)}: have it take that itself, with a type")
    items.sort(key=lambda item: SHARED.index(group) if (group := group_of(item.path)) else len(SHARED))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """A broker ends with its group."""
    group = group_of(item.path)
    if group is None:
        return (yield)
    broker = getattr(item, "funcargs", {}).get(group)
    if isinstance(broker, LocalKafka):
        _running[group] = broker
    result = yield
    if (nextitem is None or group_of(nextitem.path) != group) and group in _running:
        _running.pop(group).stop()
    return result


@cache
def group_of(file: Path) -> str | None:
    """The first shared fixture that its tests ask for, as an argument or while they run."""
    text = file.read_text()
    asked = (name for name in SHARED if f"{name}: " in text or f'"{name}"' in text)
    return next((name for name in asked if re.search(rf'\b{name}: |fixturevalue\("{name}"', text)), None)
