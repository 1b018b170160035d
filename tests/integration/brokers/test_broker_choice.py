"""Which broker is chosen, and why."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import pytest

from aioparallel import testing
from aioparallel.jvm.jars import JarSet
from aioparallel.jvm.java_runtime import JavaRuntime
from aioparallel.records.errors import AioparallelError, BrokerStartError, ConfigurationError, JarsMissing, JavaNotFound
from aioparallel.testing import pytest_plugin
from aioparallel.testing.brokers import choice, local
from aioparallel.testing.brokers.choice import Preference, choose_broker
from aioparallel.testing.brokers.docker import DockerKafka, docker_available
from aioparallel.testing.brokers.local import LocalKafka


@pytest.mark.parametrize("preference", ["local", "docker", "embedded"])
def test_what_is_asked_for_is_taken(preference: Preference) -> None:
    """A broker asked for is chosen without a look at what the machine has, and not started."""
    assert choose_broker(preference).broker.kind == preference


def test_another_name_is_refused() -> None:
    """A preference that does not exist is an error that lists those that do."""
    with pytest.raises(ConfigurationError, match="auto, local, docker, embedded"):
        choose_broker("redpanda")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("local", "docker", "kind"),
    [(True, True, "local"), (True, False, "local"), (False, True, "docker"), (False, False, "embedded")],
)
def test_auto_takes_the_most_real_one(local: bool, docker: bool, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache Kafka as a process, else in Docker, else the embedded broker; the reason tells what was found."""
    monkeypatch.setattr(choice, "local_kafka_available", lambda: (local, "because of Java"))
    monkeypatch.setattr(choice, "docker_available", lambda: docker)
    broker, reason = choose_broker()
    assert broker.kind == kind
    assert "because of Java" in reason


@pytest.mark.parametrize(
    ("jars", "maven", "available", "reason"),
    [(True, False, True, "cached"), (False, True, True, "Maven can fetch"), (False, False, False, "no Maven")],
)
def test_local_kafka_needs_java_and_jars(
    jars: bool, maven: bool, available: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With Java, cached jars or Maven will do; the reason names what there is or is not."""
    monkeypatch.setattr(local, "find_java", lambda: JavaRuntime(Path("java"), 21, "PATH"))
    monkeypatch.setattr(JarSet, "cached", lambda _set: "jars" if jars else None)
    monkeypatch.setattr(local, "maven", lambda: "mvn" if maven else None)
    found, text = local.local_kafka_available()
    assert found == available
    assert "Java 21" in text
    assert reason in text


def test_without_java_there_is_no_local_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why no Java was found is the reason."""

    def fail() -> JavaRuntime:
        raise JavaNotFound("no Java at all")

    monkeypatch.setattr(local, "find_java", fail)
    assert local.local_kafka_available() == (False, "no Java at all")


@pytest.mark.parametrize("error", [JavaNotFound("no Java at all"), JarsMissing("no jars at all")])
def test_without_java_or_jars_starting_is_a_broker_start_error(
    error: AioparallelError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps the broker from starting is one kind of error, whatever it is."""

    def fail() -> JavaRuntime:
        raise error

    monkeypatch.setattr(local, "find_java", fail)
    with pytest.raises(BrokerStartError, match=str(error)):
        LocalKafka().start()


def test_on_windows_there_is_no_local_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where processes cannot be guarded the reason says so, and what to use."""
    monkeypatch.setattr(os, "name", "nt")
    available, reason = local.local_kafka_available()
    monkeypatch.undo()
    assert not available
    assert "use Docker" in reason


def test_looking_for_docker_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is not there is False, not an error."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    assert docker_available() is False


def test_kafka_in_docker_names_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without testcontainers, or without an engine, the start fails with what to install or what was said."""
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    broker = DockerKafka()
    with pytest.raises(BrokerStartError, match=r"testcontainers|could not be started"):
        broker.start()
    broker.stop()


def test_the_plugin_offers_every_preference() -> None:
    """The plugin lists the preferences itself, to import nothing; the lists agree."""
    assert get_args(Preference) == pytest_plugin.CHOICES


@pytest.mark.parametrize("name", testing.__all__)
def test_public_names_are_there(name: str) -> None:
    """Each name the package offers is found when asked for, and listed."""
    assert getattr(testing, name).__name__ == name
    assert name in dir(testing)


def test_another_name_is_an_attribute_error() -> None:
    """A name that the package does not have fails the usual way."""
    with pytest.raises(AttributeError, match="no attribute 'Redpanda'"):
        _ = testing.Redpanda
