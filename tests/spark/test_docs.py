"""Every Python block about Spark runs as it stands there, in the session of these tests. The others: ``tests/docs``."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aioparallel.spark import kafka_jars
from aioparallel.testing import LocalKafka
from examples.flights_pipeline.programs import QUICK_START, run_program
from tests.docs.blocks import ROOT, Block, blocks
from tests.docs.given import NOTHING, Given
from tests.docs.of_spark import GIVEN
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all

pytestmark = pytest.mark.spark

BLOCKS: Mapping[str, Block] = {one.name: one for one in blocks() if one.wants_spark}
SINK = ("docs/spark.md: A sink", "docs/spark.md: A sink 2", "aioparallel.spark.sink.register_sink")
DECLARED = ("docs/spark.md: Declared pipelines", "docs/spark.md: Declared pipelines 2", "aioparallel.spark.topics")


def run(block: Block, given: Given, spark: SparkSession, places: Mapping[str, str]) -> None:
    """In the session that is there, as a script would be."""
    code = compile(given.around(block.code, places), block.name, "exec")
    exec(code, {"__name__": "__main__", "spark": spark})


def _case(block: Block) -> object:
    given = GIVEN.get(block.name, NOTHING)
    return pytest.param(block, given, id=block.name, marks=[pytest.mark.real] if given.topics else [])


@pytest.mark.parametrize(
    ("block", "given"), [_case(one) for one in BLOCKS.values() if one.name not in {*SINK, *DECLARED}]
)
def test_it_runs(
    block: Block,
    given: Given,
    spark: SparkSession,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With what a reader has around it."""
    servers = ""
    if given.topics:
        kafka: LocalKafka = request.getfixturevalue("local_kafka")
        asyncio.run(given.fill(kafka))
        servers = kafka.bootstrap_servers
    monkeypatch.chdir(tmp_path)
    try:
        run(block, given, spark, {"localhost:9092": servers, "{folder}": str(tmp_path)})
    finally:
        for query in spark.streams.active:
            query.stop()
    said = capsys.readouterr().out
    assert re.fullmatch(given.says, said), said


@pytest.fixture
def notified(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the handler of the sink says what it has done: it prints in the workers."""
    file = tmp_path / "said"
    speaks = f"def print(*words):\n    with open({str(file)!r}, 'a') as file:\n"
    speaks += "        file.write(' '.join(map(str, words)) + '\\n')\n"
    (tmp_path / "notifications.py").write_text(speaks + BLOCKS[SINK[1]].code)
    spark.addArtifacts(str(tmp_path / "notifications.py"), pyfile=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield file
    sys.modules.pop("notifications", None)


def test_a_sink(spark: SparkSession, notified: Path) -> None:
    """Each order once, with its key, whoever writes: the page, and the docstring."""
    run(BLOCKS[SINK[0]], NOTHING, spark, {})
    said = re.findall(r"order (\d+) \{'Idempotency-Key': '(write-\w+-\d+-\d+)'\}", notified.read_text())
    assert sorted(int(order) for order, _ in said) == list(range(100))
    assert len({key for _, key in said}) == 100
    given = Given(
        before="from aioparallel.spark import register_sink\n"
        "df = spark.range(7).selectExpr('id as order', '1 as customer')\n",
        instead={"shop.calls:notify": "notifications:notify"},
    )
    run(BLOCKS[SINK[2]], given, spark, {})
    assert len(notified.read_text().splitlines()) == 107


@pytest.mark.real
def test_declared_pipelines(local_kafka: LocalKafka, tmp_path: Path) -> None:
    """The project of the page, with the docstring's transformation beside: each takes all of its topic to the other."""
    servers = local_kafka.bootstrap_servers
    given = Given(instead={'"raw"': '"docs_declared"', '"work"': '"docs_flow"'})
    beside = Given(
        before=BLOCKS[DECLARED[0]].code.partition("dp.create_sink")[0] + f"SERVERS = {servers!r}\n",
        instead={
            'read_topic(spark, "raw"': 'read_topic(spark, "docs_declared"',
            '"work"': '"docs_view"',
            "to_work": "to_view",
        },
    )
    for topic in ("docs_declared", "docs_flow", "docs_view"):
        asyncio.run(local_kafka.create_topic(topic, 2))
    fill(servers, "docs_declared", [Message(b"k%d" % (n % 5), b"%d" % n) for n in range(50)])
    project = tmp_path / "project" / "transformations"
    project.mkdir(parents=True)
    for name, code in {
        "work.py": given.around(BLOCKS[DECLARED[0]].code, {"localhost:9092": servers}),
        "progress.py": BLOCKS[DECLARED[1]].code,
        "view.py": beside.around(BLOCKS[DECLARED[2]].code, {}),
    }.items():
        (project / name).write_text(code)
    (spec,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "spark.md").read_text(), re.DOTALL)
    assert "file:///data/flights/storage" in spec
    spec = spec.replace("file:///data/flights/storage", (tmp_path / "storage").as_uri())
    (project.parent / "spark-pipeline.yml").write_text(spec)
    command = ["spark-pipelines", "run", "--remote", "local[2]", "--jars", ",".join(kafka_jars())]
    command += ["--conf", f"spark.driver.extraJavaOptions={QUICK_START} -Dspark.ui.enabled=false"]
    command += ["--spec", str(project.parent / "spark-pipeline.yml")]
    lines: list[str] = []
    command[0] = str(Path(sys.executable).with_name("spark-pipelines"))
    asyncio.run(run_program("the pipeline", command, tmp_path / "log", lines.append))
    for topic in ("docs_flow", "docs_view"):
        written = asyncio.run(read_all(servers, topic))
        assert sorted(int(record.value or b"") for record in written) == list(range(50))
    assert any("to_work: " in line for line in lines), lines


def test_what_is_given_is_for_blocks_that_are_there() -> None:
    """None is left of a block that is gone or was renamed."""
    assert GIVEN.keys() - BLOCKS.keys() == set()
