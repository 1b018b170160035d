"""Modules whose extra is not installed: the import says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "lacks", "extra"),
    [
        ("aioparallel.stores.sql", "sqlalchemy", "sql"),
        ("aioparallel.spark", "pyspark", "spark"),
        ("aioparallel.spark", "pyarrow", "spark"),
        ("aioparallel.testing", "confluent_kafka", "testing"),
        ("aioparallel.http", "aiohttp", "http"),
        ("aioparallel.observe.metrics.prometheus", "prometheus_client", "prometheus"),
        ("aioparallel.observe.metrics.opentelemetry", "opentelemetry", "otel"),
        ("aioparallel.observe.traces.opentelemetry", "opentelemetry", "otel"),
    ],
)
def test_an_import_without_its_extra_names_it(module: str, lacks: str, extra: str) -> None:
    """Unless the module can do without."""
    code = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name.partition('.')[0] == {lacks!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        "try:\n"
        f"    import {module}\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
        "else:\n"
        "    print('imported')\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "imported\n" or f"pip install 'aioparallel[{extra}]'" in ran.stdout, ran.stdout
