"""Log lines while no broker accepts a connection: enough, and not too many."""

from __future__ import annotations

import logging
import socket

import aiokafka.errors as kafka
import pytest

from aioparallel.clients.aiokafka import connecting
from aioparallel.clients.aiokafka.log_noise import KnownLines


async def test_a_search_for_a_broker_is_logged_at_intervals(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning after a moment and then at intervals, however often the connection is refused."""
    monkeypatch.setattr(connecting, "_FIRST_LOG", 0.5)
    monkeypatch.setattr(connecting, "_LOG_INTERVAL", 0.6)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens
        server = "{}:{}".format(*taken.getsockname())
        with caplog.at_level(logging.DEBUG, "aioparallel"), pytest.raises(TimeoutError, match=r"[Rr]efused|Connect"):
            await connecting.find_broker(server, {}, 1.5, 0.1)
    tries = [record for record in caplog.records if "No Kafka broker answers" in record.getMessage()]
    assert len(tries) >= 5
    assert tries[0].levelno == logging.DEBUG
    assert [record.levelno for record in tries].count(logging.WARNING) == 2


def line(message: str, *args: object, level: int = logging.ERROR) -> logging.LogRecord:
    return logging.LogRecord("aiokafka", level, __file__, 1, message, args, None)


@pytest.mark.parametrize("error", [kafka.KafkaConnectionError(), kafka.SaslAuthenticationFailed()])
@pytest.mark.parametrize("message", ["Unable connect to node with id %s: %s", 'Unable connect to "%s:%s": %s'])
def test_a_refused_connection_is_logged_occasionally(message: str, error: Exception) -> None:
    """A connection is tried ten times a second, and logged once in five seconds; as an error if a retry does not
    help."""
    known = KnownLines()
    args = (1, error) if message.count("%s") == 2 else ("host", 9092, error)
    logging.getLogger("aiokafka").setLevel(logging.DEBUG)
    try:
        lines = [line(message, *args) for _ in range(50)]
        passed = [known.filter(one) for one in lines]
    finally:
        logging.getLogger("aiokafka").setLevel(logging.NOTSET)
    assert all(passed)
    first = logging.WARNING if error.retriable else logging.ERROR  # type: ignore[attr-defined]
    assert [one.levelno for one in lines] == [first] + [logging.DEBUG] * 49
