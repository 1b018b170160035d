"""Refuses an output directory that overlaps with files that a DataFrame reads."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from aioparallel.records.errors import ConfigurationError
from aioparallel.spark.file_systems import has_jvm, whole_path, without_links

__all__ = ["check_frame", "check_paths"]

_GLOB: Final = re.compile(r"[*?\[{]")


def check_paths(spark: SparkSession, paths: Sequence[str], output: str, given: str) -> None:
    """Check that the output and these paths, which may be globs, do not contain each other. ``output``: its absolute
    path; ``given``: as the user wrote it. Raises ConfigurationError."""
    for path in paths:
        fixed, pattern = _split(path)
        base = whole_path(spark, fixed)
        if _is_within(base, output):
            raise _refused(given, f"contains an input, {path}")
        if not pattern and _is_within(output, base):
            raise _refused(given, f"is inside an input, {path}")
        whole = re.compile(f"{re.escape(base.rstrip('/'))}/{_regex(pattern)}(/.*)?")
        if pattern and whole.fullmatch(output):
            raise _refused(given, f"is matched by the input {path}")


def check_frame(spark: SparkSession, frame: DataFrame, output: str, given: str) -> None:
    """Check the same for all files that the frame reads, also through tables and views.

    A classic session lists the directories that were read, also for cached frames and subqueries. Over Connect the root
    of a partitioned directory is inferred from its files.
    """
    is_classic = has_jvm(spark)
    for file in frame.inputFiles():  # always URIs
        place = without_links(unquote(file))
        if _is_within(place, output):
            raise _refused(given, f"contains an input, {file}")
        root = None if is_classic else _partitioned_root(place)
        if root is not None and _is_within(output, root):
            raise _refused(given, f"is inside an input, {root}")
    if is_classic:
        for root in _roots(frame):
            place = without_links(root)
            if _is_within(place, output) or _is_within(output, place):
                raise _refused(given, f"contains an input or is inside one, {root}")


def _refused(given: str, what: str) -> ConfigurationError:
    return ConfigurationError(
        "to", given, f"{what}: the input would be lost, or be read again in the next run; write to another directory"
    )


def _is_within(place: str, directory: str) -> bool:
    return place == directory or place.startswith(f"{directory.rstrip('/')}/")


def _partitioned_root(file: str) -> str | None:
    """The directory above ``k=v/k=v/file``, whose readers find new partitions; None without partitions."""
    directory = os.path.dirname(file)
    root = directory
    while "=" in os.path.basename(root):
        root = os.path.dirname(root)
    return None if root == directory else root


def _roots(frame: DataFrame) -> Iterator[str]:
    """The directories and files that all relations of the analysed plan read, before Spark replaces cached parts and
    optimises others away."""
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
    """Elements of a Scala sequence."""
    return (sequence.apply(number) for number in range(sequence.size()))


def _split(path: str) -> tuple[str, str]:
    """The path before the first component with a Hadoop glob, and the rest."""
    parts = path.split("/")
    first = next((number for number, part in enumerate(parts) if _GLOB.search(part)), len(parts))
    return "/".join(parts[:first]) or ("/" if path.startswith("/") else "."), "/".join(parts[first:])


def _regex(glob: str) -> str:
    """A regular expression for ``*``, ``?``, ``[a-c]``, ``[!a]``, ``{a,b}`` and ``\\`` as the escape."""
    regex = ""
    depth = 0
    characters = iter(glob.rstrip("/"))
    for character in characters:
        if character == "*":
            regex += "[^/]*"
        elif character == "?":
            regex += "[^/]"
        elif character == "[":
            inside = "".join(iter(lambda: next(characters, "]"), "]"))
            negated = inside[:1] in ("!", "^")
            regex += f"[{'^' if negated else ''}{inside[negated:]}]".replace("\\", "\\\\")
        elif character == "{":
            regex, depth = f"{regex}(?:", depth + 1
        elif character == "}" and depth:
            regex, depth = f"{regex})", depth - 1
        elif character == "," and depth:
            regex += "|"
        elif character == "\\":
            regex += re.escape(next(characters, ""))
        else:
            regex += re.escape(character)
    return regex + ")" * depth
