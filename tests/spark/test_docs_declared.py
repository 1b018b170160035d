"""The documentation's declared pipelines, each run by Spark's own command."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aioparallel.testing import LocalKafka
from examples.flights_pipeline.programs import QUICK_START, run_program
from tests.docs.blocks import ROOT
from tests.docs.given import Given
from tests.support.kafka.filling import Message, fill
from tests.support.kafka.reading import read_all
from tests.support.spark.class_archive import archive_options
from tests.support.spark.settings import connect_address

from .test_docs import BLOCKS, DECLARED

pytestmark = [pytest.mark.spark, pytest.mark.real]


def test_declared_pipelines(
    spark: SparkSession, local_kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    command = ["spark-pipelines", "run", "--remote", connect_address(spark)]
    command += ["--spec", str(project.parent / "spark-pipeline.yml")]
    lines: list[str] = []
    monkeypatch.setenv("JDK_JAVA_OPTIONS", f"{QUICK_START} {archive_options()}")
    command[0] = str(Path(sys.executable).with_name("spark-pipelines"))
    asyncio.run(run_program("the pipeline", command, tmp_path / "log", lines.append))
    for topic in ("docs_flow", "docs_view"):
        written = asyncio.run(read_all(servers, topic))
        assert sorted(int(record.value or b"") for record in written) == list(range(50))
    assert any("to_work: " in line for line in lines), lines
