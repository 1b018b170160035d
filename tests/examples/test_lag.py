"""examples/lag.py prints what docs/autoscaling.md shows."""

from __future__ import annotations

import re
import uuid
from pathlib import Path
from typing import Final

import pytest

from aioparallel.testing import LocalKafka
from examples import lag

pytestmark = pytest.mark.timeout(120)

PAGE: Final = Path(__file__).parents[2] / "docs/autoscaling.md"


@pytest.mark.real
async def test_the_page_shows_what_it_prints(
    local_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both parts, on Apache Kafka."""
    monkeypatch.setattr(lag, "SERVERS", local_kafka.bootstrap_servers)
    topic = f"lag-{uuid.uuid4()}"
    await local_kafka.create_topic(topic, 1)
    await lag.main(topic)
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert capsys.readouterr().out == "".join(code for language, code in blocks if not language)
