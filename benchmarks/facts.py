"""The machine and the versions of a measurement."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from aioparallel.jvm.java_runtime import find_java
from aioparallel.records.errors import JavaNotFound

__all__ = ["Facts", "gather", "without_git_variables"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a reader must know to compare results.

    ``date``: start of the run, ISO 8601 in UTC. ``memory``: bytes. ``rounds``: warm ones. ``scale``: divisor of the
    record counts, 1 for full size. ``java``: None if missing. ``commit``: as described by Git; empty without it.
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
    commit: str = ""

    def now(self) -> Facts:
        """The same with the current date."""
        return replace(self, date=datetime.now(UTC).isoformat(timespec="seconds"))


def gather(*, broker: str, seed: int, rounds: int, scale: int) -> Facts:
    """The facts of this machine now."""
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
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
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
        commit=_commit(),
    )


def _commit() -> str:
    command = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=9")
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=without_git_variables())
    except FileNotFoundError:
        return ""
    return ran.stdout.strip() if ran.returncode == 0 else ""


def without_git_variables() -> dict[str, str]:
    """The environment without GIT_DIR and the like, which would make Git read another repository."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
