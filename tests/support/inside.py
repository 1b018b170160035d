"""What is inside a consumer of a consumer group, for tests that look there."""

from __future__ import annotations

from typing import Any

from aioparallel import ParallelConsumer
from aioparallel.group.client import Client
from aioparallel.group.run import GroupRun

__all__ = ["client_of", "run_of"]


def run_of(consumer: ParallelConsumer[Any, Any]) -> GroupRun:
    """Its run, which has begun."""
    run = consumer._engine
    assert isinstance(run, GroupRun)
    return run


def client_of(consumer: ParallelConsumer[Any, Any]) -> Client:
    """Its member of the group."""
    client = consumer._membership.client
    assert client is not None
    return client
