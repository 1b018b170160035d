"""What one consumer's process is told to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """What one consumer's process does; travels as JSON on its command line.

    ``records``: where the plain loop stops; None for the parallel consumer, which stops at the end offsets.
    ``run``: counts the processes of one job, from 0. ``directory``: for ``<name>.events`` and
    ``<name>.samples``. Times are in seconds.
    """

    name: str
    bootstrap_servers: str
    topic: str
    group_id: str
    service: str
    directory: str
    enriched: str
    concurrency: int
    session_timeout: float
    heartbeat_interval: float
    run: int = 0
    records: int | None = None

    def to_json(self) -> str:
        """As text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """From :meth:`to_json`."""
        return cls(**json.loads(text))

    @property
    def events(self) -> Path:
        """The file of what the handler saw."""
        return Path(self.directory) / f"{self.name}.events"

    @property
    def samples(self) -> Path:
        """The file of the consumer's statistics over time, JSON lines."""
        return Path(self.directory) / f"{self.name}.samples"
