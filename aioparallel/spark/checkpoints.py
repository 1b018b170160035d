"""The progress of a stream from its checkpoint: Spark commits to no group, so lag tools do not see it.

Reads the files of Spark 4 (``OffsetSeqLog``, ``CommitLog``, the initial offsets of the Kafka source).
``offsets/<batch>`` is written before a batch runs: a version, a line of settings, then for each source a line of JSON,
or ``-``; in version 2 after the source's name and a colon. ``commits/<batch>`` exists once the batch has ended.
``sources/<source>/0`` has the offsets at which the Kafka source began, after a zero byte and a version.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa
from pyarrow import fs

from aioparallel.config.unknown_options import refuses_others
from aioparallel.records.errors import ConfigurationError
from aioparallel.records.record import TopicPartition
from aioparallel.spark.logs import survey
from aioparallel.spark.topic_positions import kafka_offsets

__all__ = ["CheckpointStatus", "PartitionStatus", "checkpoint_status"]

_VERSIONS: Final = ("v1", "v2")
_SHOWN: Final = 5
"""Number of checkpoints below a directory that an error lists."""

Offsets: TypeAlias = dict[TopicPartition, int]
"""The next offset to read."""


class PartitionStatus(NamedTuple):
    """One partition of a source. Offsets are exclusive ends: the next one to read."""

    source: str
    """Its number in the plan, from "0", or its name."""
    topic: str
    partition: int
    committed: int | None
    """End of the last batch that has ended; before the first one, where the stream began. None: unknown."""
    planned: int | None
    """End of the open batch; None without an open batch."""
    end: int | None = None
    """Last stable offset of the log; None without ``bootstrap_servers``, or if the partition is gone."""

    @property
    def lag(self) -> int | None:
        """Offsets from ``committed`` to ``end``; None if one of them is unknown."""
        return None if self.end is None or self.committed is None else max(0, self.end - self.committed)


@dataclass(frozen=True)
class CheckpointStatus:
    """The progress of a stream."""

    query: str | None
    """Spark's id of the query, which stays the same after restarts."""
    batch: int | None
    """The last batch that has ended; None before the first one."""
    open_batch: int | None
    """The batch that was started and has not ended: it runs, or will run again. None if there is none."""
    planned_at: datetime | None
    """When the last batch was started."""
    partitions: tuple[PartitionStatus, ...]
    other_sources: int = 0
    """Number of sources other than Kafka."""


@refuses_others
def checkpoint_status(
    checkpoint: str | os.PathLike[str],
    *,
    bootstrap_servers: str | None = None,
    timeout: float = 30.0,
    client_options: Mapping[str, object] | None = None,
) -> CheckpointStatus:
    """Read a stream's checkpoint, whether the stream runs or not: committed offsets, and whether a batch is open.

    ``checkpoint``: a directory, or a URI for pyarrow's file systems (``file:``, ``s3:``, ``gs:``, ``hdfs:``). Declared
    pipelines have one in ``<storage>/_checkpoints/<sink>/<flow>/0``. ``bootstrap_servers``: the cluster to ask for end
    offsets, for the lag. ``timeout``: seconds for each request; ``client_options``: of aiokafka's consumer.

    A stream in real-time mode writes its offsets when a batch ends, so this shows its last batch. Raises
    ConfigurationError if it is not a checkpoint, OSError if it cannot be read, and the errors of :func:`survey`.
    """
    files = _Files(os.fspath(checkpoint))
    commits = files.batches("commits")  # before the offsets: a batch that ends meanwhile is reported as open
    batches = files.batches("offsets")
    if not batches and not files.exists("metadata"):
        raise files.no_checkpoint()
    batch = max(commits, default=None)
    last = max(batches, default=None)
    open_batch = last if last is not None and last > (-1 if batch is None else batch) else None
    seen, planned = files.offsets(batch), files.offsets(open_batch)
    status = CheckpointStatus(
        query=files.query(),
        batch=batch,
        open_batch=open_batch,
        planned_at=planned.at or seen.at,
        partitions=tuple(_partitions(files, seen.sources, planned.sources)),
        other_sources=max(seen.others, planned.others),
    )
    return status if bootstrap_servers is None else _with_ends(status, bootstrap_servers, timeout, client_options)


class _Batch(NamedTuple):
    """The content of a file of offsets."""

    sources: dict[str, Offsets]
    at: datetime | None
    others: int


class _Files:
    """The files of a checkpoint, on any file system."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        # Like Spark: "file:" with one slash or three, and no percent decoding.
        path = re.sub("^file:(//)?(?=/)", "", checkpoint)
        try:
            is_local = ":/" not in path
            found = (fs.LocalFileSystem(), os.path.abspath(path)) if is_local else fs.FileSystem.from_uri(path)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise ConfigurationError("checkpoint", checkpoint, f"must be a directory or a URI: {error}") from error
        self._system, self._root = found[0], str(found[1])

    def batches(self, log: str) -> set[int]:
        """The batches in a log; Spark keeps the last hundred by default."""
        selector = fs.FileSelector(f"{self._root}/{log}", allow_not_found=True)
        return {int(info.base_name) for info in self._system.get_file_info(selector) if info.base_name.isdecimal()}

    def exists(self, name: str) -> bool:
        return bool(self._system.get_file_info(f"{self._root}/{name}").type == fs.FileType.File)

    def query(self) -> str | None:
        if not self.exists("metadata"):
            return None
        with self._understood("metadata"):
            found: str | None = json.loads(self._read("metadata")).get("id")
        return found

    def offsets(self, batch: int | None) -> _Batch:
        """The end offsets of a batch; empty for None."""
        if batch is None:
            return _Batch({}, None, 0)
        name = f"offsets/{batch}"
        with self._understood(name):
            version, settings, *lines = self._read(name).splitlines()
            if version not in _VERSIONS:
                known = " and ".join(_VERSIONS)
                raise ConfigurationError(
                    "checkpoint", self._checkpoint, f"has version {version!r} in {name}, and only {known} are known"
                )
            sources: dict[str, Offsets] = {}
            others = 0
            for number, line in enumerate(lines):
                source, offset = line.split(":", 1) if version == "v2" else (str(number), line)
                found = kafka_offsets(offset)
                if found is None:
                    others += offset.strip() != "-"
                else:
                    sources[source] = found
            milliseconds = json.loads(settings).get("batchTimestampMs") if settings else None
            return _Batch(sources, datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None, others)

    def beginnings(self) -> dict[str, Offsets]:
        """Where each Kafka source began."""
        selector = fs.FileSelector(f"{self._root}/sources", allow_not_found=True)
        found: dict[str, Offsets] = {}
        for directory in self._system.get_file_info(selector):
            name = f"sources/{directory.base_name}/0"
            if not self.exists(name):
                continue
            version, _, rest = self._read(name).lstrip("\0").partition("\n")
            if version in _VERSIONS and (offsets := kafka_offsets(rest)) is not None:
                found[directory.base_name] = offsets
        return found

    def no_checkpoint(self) -> ConfigurationError:
        """The error for a directory that is no checkpoint, with the checkpoints below it."""
        selector = fs.FileSelector(self._root, allow_not_found=True, recursive=True)
        below = sorted(
            os.path.dirname(info.path)
            for info in self._system.get_file_info(selector)
            if info.base_name == "offsets" and info.type == fs.FileType.Directory
        )
        more = f" and {len(below) - _SHOWN} more" if len(below) > _SHOWN else ""
        hint = f"; below it are {', '.join(below[:_SHOWN])}{more}" if below else ""
        return ConfigurationError(
            "checkpoint", self._checkpoint, f"is no checkpoint of a stream: it has no metadata and no offsets{hint}"
        )

    def _read(self, name: str) -> str:
        with self._system.open_input_stream(f"{self._root}/{name}") as file:
            return str(file.read().decode(errors="replace"))

    @contextlib.contextmanager
    def _understood(self, name: str) -> Iterator[None]:
        """Turn errors of parsing, for example of a truncated file, into one that names the file."""
        try:
            yield
        except (ValueError, AttributeError) as error:
            if isinstance(error, ConfigurationError):
                raise
            raise ConfigurationError(
                "checkpoint",
                self._checkpoint,
                f"has a file {name} that is not as Spark writes it ({error}); if it is not being written just now, "
                "Spark cannot go on from it either",
            ) from error


def _partitions(
    files: _Files, committed: Mapping[str, Offsets], planned: Mapping[str, Offsets]
) -> Iterator[PartitionStatus]:
    beginnings = files.beginnings()
    for source in sorted({*committed, *planned, *beginnings}):
        before, after = committed.get(source) or beginnings.get(source, {}), planned.get(source, {})
        for partition in sorted({*before, *after}):
            yield PartitionStatus(source, *partition, before.get(partition), after.get(partition))


def _with_ends(
    status: CheckpointStatus, servers: str, timeout: float, client_options: Mapping[str, object] | None
) -> CheckpointStatus:
    topics = sorted({one.topic for one in status.partitions})
    logs = survey(servers, topics, timeout=timeout, client_options=client_options) if topics else {}
    ends = {(topic, number): log.end for topic, by in logs.items() for number, log in by.items()}
    partitions = tuple(one._replace(end=ends.get((one.topic, one.partition))) for one in status.partitions)
    return dataclasses.replace(status, partitions=partitions)
