"""Keys that Spark holds equal are one lane."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import struct
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType, VariantType

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark import async_udf, parallel_map, run_locally
from aioparallel.spark.keys import _quoted, check_hashable, missing_column, one_lane

NAN, OTHER_NAN = float("nan"), struct.unpack("d", struct.pack("Q", 0x7FF8000000000001))[0]
DECIMAL = decimal.Decimal


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (NAN, OTHER_NAN),
        (np.float32("nan"), NAN),
        (DECIMAL("NaN"), NAN),
        (pd.NaT, pd.NaT),
        (0.0, -0.0),
        (DECIMAL("1.0"), DECIMAL("1.00")),
        (("k", NAN), ("k", OTHER_NAN)),
        (("k", (1, -0.0, NAN)), ("k", (1, 0.0, OTHER_NAN))),
        (frozenset([NAN]), frozenset([OTHER_NAN])),
        (b"k", bytes(bytearray(b"k"))),
        (
            datetime.datetime(2026, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
            datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        ),
    ],
)
def test_what_is_equal_is_one_lane(one: Any, other: Any) -> None:
    """Alone and within tuples."""
    assert {one_lane(one): 1} == {one_lane(other): 1}


def test_what_differs_stays_apart() -> None:
    """And what cannot say whether it is itself is left as it is."""
    keys = [1, "1", b"1", 1.5, None, ("nan",), NAN, pd.NA]
    assert len({one_lane(key) for key in keys}) == len(keys)


class _Alone:
    """No two at once."""

    def __init__(self) -> None:
        self.running = 0

    async def __call__(self, row: Any) -> dict[str, Any]:
        self.running += 1
        assert self.running == 1, "beside another of its key"
        await asyncio.sleep(0)
        self.running -= 1
        return {"n": 1}


@pytest.mark.parametrize("key", ["k", ["k", "c"], lambda row: row["k"], lambda row: (row["k"],)])
def test_rows_of_nan_run_one_after_the_other(key: Any) -> None:
    """By a column, by several, and by a function of the row."""
    rows = [{"k": [NAN, OTHER_NAN][number % 2], "c": "same"} for number in range(50)]
    operator = parallel_map(_Alone(), schema="n int", key=key, retry=None)
    assert len(run_locally(operator, rows)) == 50


@pytest.mark.parametrize("key", ["k", lambda k: k])
def test_calls_of_nan_run_one_after_the_other(key: Any) -> None:
    """In a column."""
    alone = _Alone()

    @async_udf(returns="int", key=key, retry=None)
    async def one(k: float) -> int:
        await alone(k)
        return 1

    assert run_locally(one, [NAN, OTHER_NAN] * 20) == [1] * 40


def test_what_is_equal_in_another_way_is_refused() -> None:
    """Texts with a collation, whose equality Python does not know, and variants."""
    given = StructType(
        [
            StructField("plain", StringType()),
            StructField("bytes", BinaryType()),
            StructField("folded", StringType("UTF8_LCASE")),
            StructField("variant", VariantType()),
        ]
    )
    check_hashable(given, ["plain", "bytes"])
    with pytest.raises(ConfigurationError, match=r"key='folded'.*collate UTF8_LCASE.*F\.collate\(F\.lower"):
        check_hashable(given, ["folded"])
    with pytest.raises(ConfigurationError, match="key='variant'"):
        check_hashable(given, ["variant"])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("`a.b`", "; a row's names have no backticks: 'a.b'"),
        ("`c``d`", "; a row's names have no backticks: 'c`d'"),
        ("E", "; a row's names are as they are written: 'e'"),
        ("e.f", "; a field of a struct is none: select it as a column"),
        ("z", ""),
    ],
)
def test_columns_that_are_not_there(name: str, hint: str) -> None:
    """What was meant is said."""
    columns = ["a.b", "c`d", "e"]
    assert missing_column(name, columns) == f"is no column; there are a.b, c`d, e{hint}"
    with pytest.raises(ConfigurationError, match="is no column"):
        run_locally(parallel_map(_Alone(), schema="n int", key=name), [dict.fromkeys(columns, 1)])


@pytest.mark.parametrize("name", ["a.b", "c`d", "`e`", "f"])
def test_names_for_spark(name: str) -> None:
    """Every name of a column is that column, and a name that is none is Spark's to understand."""
    quoted = _quoted(name, {"a.b", "c`d", "`e`", "f"})
    assert quoted[1:-1].replace("``", "`") == name
    assert _quoted("`a.b`", {"a.b"}) == "`a.b`"
