"""How property tests get their examples: the same ones each time, or, where somebody explores, many new ones. And
signals as everybody expects them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from aioparallel.testing import LocalKafka, Secured
from aioparallel.testing.brokers.local import local_kafka_available
from tests.support.garbage import set_aside
from tests.support.kafka.group_protocol import QUICK
from tests.support.sharing import (
    pytest_collection_modifyitems,
    pytest_runtest_teardown,
    pytest_xdist_make_scheduler,
)

__all__ = ["PASSWORD", "pytest_collection_modifyitems", "pytest_runtest_teardown", "pytest_xdist_make_scheduler"]

PASSWORD = "open-sesame-1704"
"""Of all users; found nowhere else."""

# No verdict depends on how busy the machine is. And no database: what is found becomes an example that everybody has.
settings.register_profile(
    "fixed",
    database=None,
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("fixed"), derandomize=False, max_examples=1_500)
settings.load_profile("fixed")  # --hypothesis-profile=explore comes later, and before any module of tests is imported


def _skip_without_kafka() -> None:
    available, reason = local_kafka_available()
    if not available and not os.environ.get("CI"):
        pytest.skip(reason)


@pytest.fixture(scope="session")
def mortal_kafka() -> Iterator[LocalKafka]:
    """Apache Kafka with few partitions, for tests that kill it and restart it: ``local_kafka``, which has those of all
    tests, takes up to a minute to come back on a busy machine."""
    _skip_without_kafka()
    with LocalKafka(compile_once=True) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def quick_kafka() -> Iterator[LocalKafka]:
    """Apache Kafka that lets members of the new group protocol send heartbeats often."""
    _skip_without_kafka()
    with LocalKafka(compile_once=True, server_properties=QUICK) as kafka:
        yield kafka


@pytest.fixture(scope="session")
def secured_kafka() -> Iterator[LocalKafka]:
    """Apache Kafka with a listener of each kind. ``me`` may do everything, ``clerk`` what a test allows; both have the
    same password. A login is over after three seconds."""
    _skip_without_kafka()
    secured = Secured({"me": PASSWORD, "clerk": PASSWORD}, acls=True, session=3.0)
    with LocalKafka(compile_once=True, secured=secured) as kafka:
        kafka.secured.allow("me", "ALL", topic="*")
        kafka.secured.allow("me", "ALL", group="*")
        yield kafka


def pytest_configure() -> None:
    """A shell without job control starts what runs in the background with SIGINT ignored, and every child inherits
    that: tests that interrupt one would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Some hundred megabytes that stay."""
    set_aside()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Who explores waits as long as it takes."""
    if settings.get_current_profile_name() == "explore":
        item.add_marker(pytest.mark.timeout(0), append=False)
