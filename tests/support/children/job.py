"""What a consumer process is to do, and what it tells: the lines between the test and the process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

__all__ = ["Job", "Probe"]

Probe = Literal["order", "others", "latency"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A consumer to be run in a process of its own.

    ``options``: those of ``ParallelConsumer``, as JSON knows them. ``handler_seconds``: how long each handler sleeps.
    ``probe``: what the handler measures, see ``probes.py``; ``hot_key`` and ``expected`` are for it.
    ``stats_interval``: seconds between samples of ``stats()``; 0 for none. ``watch_loop``: let ``run_sync`` take
    plain asyncio and time every callback, which uvloop's loop does not allow; otherwise it takes uvloop.
    """

    bootstrap_servers: str
    topic: str
    group_id: str
    options: Mapping[str, object] = field(default_factory=dict)
    handler_seconds: float = 0.0
    probe: Probe = "order"
    hot_key: str = ""
    expected: int = 0
    stats_interval: float = 0.5
    watch_loop: bool = False

    def text(self) -> str:
        """The job as one argument of a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Job:
        """The job back from :meth:`text`."""
        return cls(**json.loads(text))
