"""The machine and the versions that a case was measured with."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from aioparallel.errors import JavaNotFound
from aioparallel.jvm.java_runtime import find_java

__all__ = ["Facts", "gather"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What somebody needs to know who compares figures.

    ``date``: when its run began, ISO 8601 in UTC. ``memory``: bytes. ``rounds``: warm ones. ``scale``: by what the
    record counts were divided, 1 for the full size. ``java``: None for none.
    """

    date: str
    cpu: str
    cores: int
    memory: int
    system: str
    python: str
    aioparallel: str
    aiokafka: str
    uvloop: str | None
    java: str | None
    broker: str
    seed: int
    rounds: int
    scale: int

    def now(self) -> Facts:
        """The same with the present date."""
        return replace(self, date=datetime.now(UTC).isoformat(timespec="seconds"))


def gather(*, broker: str, seed: int, rounds: int, scale: int) -> Facts:
    """Of this machine, now."""
    try:
        found = find_java()
        java: str | None = f"{found.version} ({found.source})"
    except JavaNotFound:
        java = None
    cpuinfo = Path("/proc/cpuinfo")
    models = re.findall(r"model name\s*: (.+)", cpuinfo.read_text()) if cpuinfo.exists() else []
    return Facts(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        cpu=models[0] if models else platform.processor() or platform.machine(),
        cores=os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release().partition('-')[0]} {platform.machine()}",
        python=f"{platform.python_implementation()} {platform.python_version()}",
        aioparallel=version("aioparallel"),
        aiokafka=version("aiokafka"),
        uvloop=version("uvloop"),
        java=java,
        broker=broker,
        seed=seed,
        rounds=rounds,
        scale=scale,
    )
