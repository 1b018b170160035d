"""Every Python block about Spark runs as it stands there, in the session of these tests. The others: ``tests/docs``."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aioparallel.testing import LocalKafka
from tests.docs.blocks import Block, blocks
from tests.docs.given import NOTHING, Given
from tests.docs.of_spark import GIVEN

pytestmark = pytest.mark.spark

BLOCKS: Mapping[str, Block] = {one.name: one for one in blocks() if one.wants_spark}
SINK = (
    "docs/spark.md: A sink: `register_sink`",
    "docs/spark.md: A sink: `register_sink` 2",
    "aioparallel.spark.sink.register_sink",
)
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
    said = re.findall(r"order (\d+) \{'Idempotency-Key': '(\[\d+\])'\}", notified.read_text())
    assert sorted(int(order) for order, _ in said) == list(range(100))
    assert len({key for _, key in said}) == 100
    given = Given(
        before="from aioparallel.spark import register_sink\n"
        "df = spark.range(7).selectExpr('id as order', '1 as customer')\n",
        instead={"shop.calls:notify": "notifications:notify"},
    )
    run(BLOCKS[SINK[2]], given, spark, {})
    assert len(notified.read_text().splitlines()) == 107


def test_what_is_given_is_for_blocks_that_are_there() -> None:
    """None is left of a block that is gone or was renamed."""
    assert GIVEN.keys() - BLOCKS.keys() == set()
