"""Rows and handlers that several tests try."""

from __future__ import annotations

from typing import Any

from aioparallel.spark.values import Row


async def double(row: Row) -> Row:
    return {"n": row["n"], "twice": 2 * row["n"]}


def numbers(count: int) -> list[Row]:
    return [{"n": n, "k": f"k{n % 7}"} for n in range(count)]


async def plain(row: Row) -> Row:
    return row


async def yields(row: Row) -> Any:
    yield row
