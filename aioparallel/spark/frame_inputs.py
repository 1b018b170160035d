"""The files that a DataFrame reads, beside the directory that it is written to."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from aioparallel.errors import ConfigurationError
from aioparallel.spark.file_systems import has_jvm, whole_path, without_links

__all__ = ["check_frame", "check_paths"]

_GLOB: Final = re.compile(r"[*?\[{]")


def check_paths(spark: SparkSession, paths: Sequence[str], output: str, given: str) -> None:
    """That the output lies in none of these, which may be globs, and none of them in it. ``output``: its whole path;
    ``given``: as the user wrote it. Raises ConfigurationError."""
    for path in paths:
        fixed, pattern = _split(path)
        base = whole_path(spark, fixed)
        if _is_within(base, output):
            raise _refused(given, f"holds what is read, {path}")
        if not pattern and _is_within(output, base):
            raise _refused(given, f"lies in what is read, {path}")
        whole = re.compile(f"{re.escape(base.rstrip('/'))}/{_regex(pattern)}(/.*)?")
        if pattern and whole.fullmatch(output):
            raise _refused(given, f"is read by {path}")


def check_frame(spark: SparkSession, frame: DataFrame, output: str, given: str) -> None:
    """The same of all files that the frame reads: of tables and views too, whatever a step has read.

    A classic session tells the directories that were named to read, those of frames that are cached, and of subqueries,
    too. Over Connect one that is partitioned is guessed from its files.
    """
    is_classic = has_jvm(spark)
    for file in frame.inputFiles():  # URIs, whichever way the paths were written
        place = without_links(unquote(file))
        if _is_within(place, output):
            raise _refused(given, f"holds what is read, {file}")
        root = None if is_classic else _partitioned_root(place)
        if root is not None and _is_within(output, root):
            raise _refused(given, f"lies in what is read, {root}")
    if is_classic:
        for root in _roots(frame):
            place = without_links(root)
            if _is_within(place, output) or _is_within(output, place):
                raise _refused(given, f"holds what is read, or lies in it, {root}")


def _refused(given: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        "to", given, f"{what}: what is read would be lost, or come again in the next run; write to another directory"
    )


def _is_within(place: str, directory: str) -> bool:
    return place == directory or place.startswith(f"{directory.rstrip('/')}/")


def _partitioned_root(file: str) -> str | None:
    """The directory above ``k=v/k=v/file``: a reader of it finds new partitions; None where there are none."""
    directory = os.path.dirname(file)
    root = directory
    while "=" in os.path.basename(root):
        root = os.path.dirname(root)
    return None if root == directory else root


def _roots(frame: DataFrame) -> Iterator[str]:
    """The directories and files that were named to read from, of all relations of the plan as it was analysed: before
    Spark has replaced what is cached, and taken out what it can do without."""
    classic: Any = frame
    plan = classic._jdf.queryExecution().analyzed()
    for each in (plan, *_elements(plan.subqueriesAll())):
        for leaf in _elements(each.collectLeaves()):
            name = leaf.getClass().getSimpleName()
            if name == "LogicalRelation" and leaf.relation().getClass().getSimpleName() == "HadoopFsRelation":
                yield from (str(path.toString()) for path in _elements(leaf.relation().location().rootPaths()))
            elif (
                name == "DataSourceV2Relation"
                and leaf.table().getClass().getSuperclass().getSimpleName() == "FileTable"
            ):
                yield from (str(path.toString()) for path in _elements(leaf.table().fileIndex().rootPaths()))
            elif name == "HiveTableRelation":
                yield unquote(str(leaf.tableMeta().location().toString()))


def _elements(sequence: Any) -> Iterator[Any]:
    """Of Scala."""
    return (sequence.apply(number) for number in range(sequence.size()))


def _split(path: str) -> tuple[str, str]:
    """The directories without a pattern, and the rest: Hadoop's globs."""
    parts = path.split("/")
    first = next((number for number, part in enumerate(parts) if _GLOB.search(part)), len(parts))
    return "/".join(parts[:first]) or ("/" if path.startswith("/") else "."), "/".join(parts[first:])


def _regex(glob: str) -> str:
    """``*``, ``?``, ``[a-c]``, ``[!a]``, ``{a,b}`` and ``\\`` before what is meant as it is."""
    said = ""
    depth = 0
    characters = iter(glob.rstrip("/"))
    for character in characters:
        if character == "*":
            said += "[^/]*"
        elif character == "?":
            said += "[^/]"
        elif character == "[":
            inside = "".join(iter(lambda: next(characters, "]"), "]"))
            negated = inside[:1] in ("!", "^")
            said += f"[{'^' if negated else ''}{inside[negated:]}]".replace("\\", "\\\\")
        elif character == "{":
            said, depth = f"{said}(?:", depth + 1
        elif character == "}" and depth:
            said, depth = f"{said})", depth - 1
        elif character == "," and depth:
            said += "|"
        elif character == "\\":
            said += re.escape(next(characters, ""))
        else:
            said += re.escape(character)
    return said + ")" * depth
