"""Requests that a broker refuses as invalid."""

from __future__ import annotations

import aiokafka.errors as kafka

from aioparallel.clients.aiokafka.aiokafka_errors import translated
from aioparallel.records.errors import ClientError


def test_two_members_at_the_embedded_broker() -> None:
    """The mock cluster answers so to a SyncGroup, which aiokafka raises as text."""
    error = translated(kafka.KafkaError(repr(kafka.InvalidRequestError())), "taking part in group 'enrich'")
    assert isinstance(error, ClientError)
    assert "two live members of the classic protocol, which it cannot rebalance" in str(error)
    assert "leave out what chooses that protocol (session_timeout, " in str(error)
    assert "KafkaError('InvalidRequestError()')" in str(error)


def test_another_refusal() -> None:
    """Has nothing to do with members."""
    for other in (kafka.InvalidRequestError("x"), kafka.KafkaError("y")):
        assert "embedded" not in str(translated(other, "creating a topic"))
