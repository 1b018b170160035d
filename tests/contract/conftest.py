"""Runs each contract test against each registered cluster, on each event loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import cast

import pytest
import pytest_asyncio
import uvloop

from aioparallel.clients.aiokafka.admin import Admin
from aioparallel.testing import LocalKafka
from tests.support.clusters import aiokafka_cluster, kafka_share_cluster, memory_cluster, memory_share_cluster
from tests.support.clusters.cluster import Cluster, ClusterKind
from tests.support.clusters.member import Member
from tests.support.clusters.share_cluster import ShareCluster, ShareClusterKind
from tests.support.clusters.strict_broker import PROPERTIES, login
from tests.support.kafka.group_protocol import QUICK
from tests.support.virtual_time import VirtualLoop

# --- THE REGISTRY -----------------------------------------------------------------------------------------
# To add a cluster, add its kind to KINDS of its module; to add a module, add its KINDS here.
REGISTRY: Sequence[ClusterKind] = (*memory_cluster.KINDS, *aiokafka_cluster.KINDS)
SHARE_REGISTRY: Sequence[ShareClusterKind] = (*memory_share_cluster.KINDS, *kafka_share_cluster.KINDS)
# ----------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "needs(*features): only for clusters that have all these features")


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Each test runs once on each event loop. Those of share groups run in virtual time as well."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop,
        "uvloop": uvloop.new_event_loop,
    }
    return factories | ({"virtual": VirtualLoop} if "share_kind" in getattr(item, "fixturenames", ()) else {})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give ``cluster_kind`` and ``share_kind`` each registered kind, with the kind's marks."""
    for fixture, registry in (("cluster_kind", REGISTRY), ("share_kind", SHARE_REGISTRY)):
        if fixture in metafunc.fixturenames:
            kinds = [pytest.param(kind, id=kind.name, marks=kind.marks) for kind in registry]
            metafunc.parametrize(fixture, kinds, indirect=True, scope="function")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Remove the tests whose features or loop a cluster lacks; they are not even skipped."""
    items[:] = [item for item in items if fits(item)]


def fits(item: pytest.Item) -> bool:
    """Whether the item's cluster has the features that the item needs."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return True
    kind = item.callspec.params.get("cluster_kind") or item.callspec.params.get("share_kind")
    if not isinstance(kind, ClusterKind | ShareClusterKind):
        return True
    needs = {feature for mark in item.iter_markers("needs") for feature in mark.args}
    return needs <= kind.features and any(loop in item.callspec.id.split("-") for loop in kind.loops)


@pytest.fixture
def cluster_kind(request: pytest.FixtureRequest) -> ClusterKind:
    """Which cluster this test runs against."""
    return cast("ClusterKind", request.param)


@pytest.fixture
def cluster_broker(cluster_kind: ClusterKind, request: pytest.FixtureRequest) -> object:
    """The result of the kind's ``broker_fixture``. No coroutine, so that it can outlive this test's loop."""
    return request.getfixturevalue(cluster_kind.broker_fixture) if cluster_kind.broker_fixture else None


@pytest_asyncio.fixture
async def cluster(cluster_kind: ClusterKind, cluster_broker: object) -> AsyncIterator[Cluster]:
    """The cluster this test runs against."""
    async with cluster_kind.open(cluster_broker) as opened:
        yield opened


@pytest.fixture
def share_kind(request: pytest.FixtureRequest) -> ShareClusterKind:
    """Which cluster this test of share groups runs against."""
    return cast("ShareClusterKind", request.param)


@pytest.fixture
def share_broker(share_kind: ShareClusterKind, request: pytest.FixtureRequest) -> object:
    """The result of the kind's ``broker_fixture``."""
    return request.getfixturevalue(share_kind.broker_fixture) if share_kind.broker_fixture else None


@pytest_asyncio.fixture
async def shared(share_kind: ShareClusterKind, share_broker: object) -> AsyncIterator[ShareCluster]:
    """The cluster this test of share groups runs against."""
    async with share_kind.open(share_broker) as opened:
        yield opened


@pytest.fixture
def topic() -> str:
    """A new topic name; the test creates the topic."""
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group_id() -> str:
    """A new group name."""
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def member(cluster: Cluster, group_id: str) -> Member:
    """A member of ``group_id``, not started."""
    return Member(cluster.client(group_id), cluster.timing.deadline)


@pytest.fixture(scope="session")
def strict() -> Iterator[LocalKafka]:
    """The broker of the strict tests; see ``strict_broker.py``."""
    with LocalKafka(compile_once=True, server_properties=PROPERTIES) as broker:
        yield broker


@pytest.fixture(scope="session")
def sharing_kafka() -> Iterator[LocalKafka]:
    """The broker of the tests of share groups, and of groups of the new protocol; see ``kafka_share_cluster.py`` and
    ``group_protocol.py``."""
    properties = kafka_share_cluster.PROPERTIES | QUICK
    with LocalKafka(compile_once=True, server_properties=properties) as broker:
        yield broker


@pytest_asyncio.fixture
async def admin(strict: LocalKafka) -> AsyncIterator[Admin]:
    """An admin client of the user who has all permissions."""
    async with Admin(strict.bootstrap_servers, login("admin")) as connected:
        yield connected
