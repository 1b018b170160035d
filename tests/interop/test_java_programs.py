"""The build of the Java programs says what is missing, and is done once."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from tests.interop.conftest import give_up
from tests.support.interop.java_programs import PROJECT, JavaPrograms, JavaProgramsMissing, build

pytestmark = pytest.mark.timeout(600, func_only=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The sources alone, never built."""
    return Path(shutil.copytree(PROJECT, tmp_path / "java", ignore=shutil.ignore_patterns("target")))


@pytest.fixture
def jdk(tmp_path: Path) -> Path:
    """What looks like a JDK."""
    compiler = tmp_path / "jdk" / "bin" / "javac"
    compiler.parent.mkdir(parents=True)
    compiler.symlink_to(sys.executable)
    return compiler.parent.parent


def test_without_a_compiler(project: Path, tmp_path: Path) -> None:
    """The message asks for a JDK and says that a runtime is not enough."""
    with pytest.raises(JavaProgramsMissing, match=r"no Java compiler \(javac\).*install a JDK"):
        build({"PATH": str(tmp_path)}, project)


def test_without_maven(project: Path, jdk: Path, tmp_path: Path) -> None:
    """The message names Maven."""
    with pytest.raises(JavaProgramsMissing, match=r"Maven \(mvn\).*install it"):
        build({"PATH": str(tmp_path), "JAVA_HOME": str(jdk)}, project)


def test_when_maven_fails(project: Path, jdk: Path) -> None:
    """The message holds what Maven said; nothing counts as built."""
    maven = jdk / "bin" / "mvn"
    maven.write_text(f"#!{sys.executable}\nprint('cannot resolve it')\nraise SystemExit(1)\n")
    maven.chmod(0o755)
    for _ in range(2):
        with pytest.raises(JavaProgramsMissing, match=r"exit code 1.*\ncannot resolve it"):
            build({"PATH": str(jdk / "bin"), "JAVA_HOME": str(jdk)}, project)


def test_missing_programs_fail_in_ci_and_skip_elsewhere() -> None:
    """A skip in CI would be read by nobody."""
    with pytest.raises(pytest.fail.Exception, match="no Maven"):
        give_up("no Maven", {"CI": "true"})
    with pytest.raises(pytest.skip.Exception, match="no Maven"):
        give_up("no Maven", {})


def test_what_is_built_is_not_built_again(java_programs: JavaPrograms, tmp_path: Path) -> None:
    """Once built, no Maven is needed; changed sources need it again."""
    built = Path(shutil.copytree(PROJECT, tmp_path / "java"))
    environment = {"PATH": str(tmp_path), "JAVA_HOME": str(java_programs.java.parent.parent)}
    assert build(environment, built).java == java_programs.java

    with next(built.glob("src/**/*.java")).open("a") as source:
        source.write("// changed\n")
    with pytest.raises(JavaProgramsMissing, match="Maven"):
        build(environment, built)
