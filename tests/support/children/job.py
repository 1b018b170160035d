"""What a consumer in a process of its own is to do, and the child that does it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aioparallel.testing.processes import Child
from tests.support.waiting import DEADLINE, until

__all__ = ["Job"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A consumer to be run.

    ``options``: those of ``ParallelConsumer``, as JSON knows them. ``seconds``: how long a handler sleeps, at random
    between these. ``batch``: handlers get so many records at once; 0: single ones. ``stuck``: the record at this offset
    of each partition never ends. ``failing``: such a part of the records fails, and waits an hour for its next attempt.
    ``deduplicate``: the compacted topic, and by what. ``sample_interval``: seconds between lines with ``stats()`` on
    standard output; 0 for none.
    """

    bootstrap_servers: str
    topic: str
    group_id: str
    options: Mapping[str, object] = field(default_factory=dict)
    seconds: tuple[float, float] = (0.0, 0.0)
    batch: int = 0
    stuck: int | None = None
    failing: float = 0.0
    deduplicate: tuple[str, str] | None = None
    sample_interval: float = 0.0

    @property
    def text(self) -> str:
        """For the command line of a child, which may be of an older revision: without what has its default."""
        defaults = asdict(type(self)(bootstrap_servers="", topic="", group_id=""))
        return json.dumps({name: value for name, value in asdict(self).items() if value != defaults[name]})

    def child(self, directory: Path, name: str = "consumer") -> Child:
        """A process that does it until SIGTERM; its events are in ``name.events`` in this directory, what it has to
        say in ``name.log``."""
        arguments = [self.text, str(directory / f"{name}.events")]
        return Child.of_module(name, "tests.support.children.consumer", *arguments, log=directory / f"{name}.log")

    async def run(self, directory: Path, name: str, enough: Callable[[], object] | None = None) -> None:
        """Let a child do it: up to its own end, or until ``enough()``, then it is killed."""
        async with self.child(directory, name) as child:
            if enough is None:
                await child.ended(DEADLINE)
            else:
                await until(lambda: enough() or not child.running, what=f"enough of {name}")
                await child.kill()

    @classmethod
    def of(cls, text: str) -> Job:
        """The job back from the child's command line."""
        return cls(**json.loads(text))
