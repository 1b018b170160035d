"""What the sessions and streams of all tests here have in common."""

from __future__ import annotations

from typing import Final

QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
"""For a JVM that lives a minute, on two cores that it shares with a broker."""

STREAM_TIMEOUT: Final = 120
"""Seconds for a stream to take what is there."""

ALONE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_START,
}
"""For ``builder.config(map=...)``: a session that serves no pages and talks to loopback only."""
