"""An archive of Kafka's loaded classes, in a file next to the jars. With it a broker starts with half the CPU time:
2.8 s instead of 5.1 s for one broker including the formatting of its storage, measured on two cores.

It is Java's dynamic class data archive (JEP 350), for one Java and these jars. Java checks it, and ignores one that
does not fit. Making it takes as long as three starts, so it is made only on request (``python -m
aioparallel.testing.local_kafka --prepare``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aioparallel.jvm.java_runtime import JavaRuntime, find_java
from aioparallel.jvm.sets import KAFKA
from aioparallel.records.errors import BrokerStartError
from aioparallel.testing.brokers.kafka_node import KafkaProgram
from aioparallel.testing.brokers.kafka_nodes import KafkaNodes
from aioparallel.testing.brokers.server_properties import broker_properties

__all__ = ["find_archive", "prepare"]

_HEAP: Final = "256m"
_START_TIMEOUT: Final = 60.0
_WRITE_TIMEOUT: Final = 120.0
"""Seconds for a broker to end and write its archive: usually a few, many on a busy machine."""


def find_archive(java: JavaRuntime, jars: Path) -> Path | None:
    """The archive for this Java and these jars. None if there is none, or the jars are newer."""
    archive = _place(java, jars)
    try:
        newest = max(jar.stat().st_mtime_ns for jar in jars.glob("*.jar"))
        return archive if archive.stat().st_mtime_ns > newest else None
    except (OSError, ValueError):
        return None


def prepare(report: Callable[[str], None]) -> Path:
    """Fetch the jars and make the archive, unless they exist. Returns the directory of the jars.

    Reports it if this Java writes no archive; brokers then start without. Raises what fetching the jars and starting a
    broker raise.
    """
    java, jars = find_java(), KAFKA.fetch(report)
    if find_archive(java, jars) is None:
        archive = _place(java, jars)
        if not _write(KafkaProgram(java, jars, compile_once=True), archive):
            report(f"{java} wrote no archive of Kafka's classes to {archive}: brokers start without")
    return jars


def _write(program: KafkaProgram, archive: Path) -> bool:
    """Run a broker that writes the archive when it ends. Returns whether it has."""
    fresh = archive.with_name(f"{archive.name}.{os.getpid()}")
    nodes = KafkaNodes(1, program._replace(archive_to=fresh), _HEAP, broker_properties(1))
    try:
        nodes.start(_START_TIMEOUT)
        nodes.brokers[1].stop_cleanly(_WRITE_TIMEOUT)
        fresh.replace(archive)  # atomic, so that others see the whole file or none
    except (OSError, BrokerStartError):
        return False
    finally:
        nodes.close()
        fresh.unlink(missing_ok=True)
    return True


def _place(java: JavaRuntime, jars: Path) -> Path:
    """The path of the archive, which depends on the Java executable and its version."""
    executable = java.executable.resolve()
    about = f"{executable} {executable.stat().st_mtime_ns}"
    return jars.with_name(f"{jars.name}-java-{hashlib.sha256(about.encode()).hexdigest()[:12]}.jsa")
