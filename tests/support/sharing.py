"""What takes long to start runs in one process of those that run tests (``--dist loadgroup``), and ends with the last
test that needs it: a broker at rest takes 2 % of a processor, a cluster of three 9 %.

Tests that share such a thing are a group; all others stay together by file, as with ``--dist loadfile``. (xdist itself
would spread those one by one, and pull their modules' fixtures apart.)
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import pytest
from xdist.remote import Producer  # type: ignore[import-untyped]
from xdist.scheduler import LoadGroupScheduling  # type: ignore[import-untyped]

from aioparallel.testing import LocalKafka

__all__ = ["pytest_collection_modifyitems", "pytest_runtest_teardown", "pytest_xdist_make_scheduler"]

SHARED: Final = ("spark", "kafka_cluster", "mortal_kafka", "secured_kafka")
"""Fixtures, those whose tests take longest first: so no group is begun late, and the rest fills what is left."""


class GroupsAndFiles(LoadGroupScheduling):  # type: ignore[misc]
    """Each group in one process, each file of what is in none."""

    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if scope == nodeid else scope


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> GroupsAndFiles | None:
    """Groups and files, where groups are asked for."""
    return GroupsAndFiles(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups come first. A test that asks for its fixture while it runs says its group itself."""
    for item in items:
        for fixture in SHARED:
            if _group_of(item) is None and fixture in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(fixture))
    items.sort(key=lambda item: SHARED.index(group) if (group := _group_of(item)) else len(SHARED))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """A broker ends with its group."""
    yield
    group = _group_of(item)
    if group is not None and (nextitem is None or _group_of(nextitem) != group):
        broker = getattr(item, "funcargs", {}).get(group)
        if isinstance(broker, LocalKafka):
            broker.stop()


def _group_of(item: pytest.Item) -> str | None:
    marker = item.get_closest_marker("xdist_group")
    return None if marker is None else marker.args[0]
