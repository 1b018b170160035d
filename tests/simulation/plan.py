"""What a seed stands for: options, topics, faults and tempers of handlers, drawn before the play begins."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from aioparallel.config.handling import Ordering
from aioparallel.config.options import OptionFields
from aioparallel.config.policies import RetryPolicy
from aioparallel.testing.memory import ErrorCode, Fault, Request

__all__ = ["BEHAVIOURS", "FAULTS", "GroupProtocol", "Plan"]

GroupProtocol = Literal["classic", "consumer"]

# How a handler may behave, and how often beside the others.
BEHAVIOURS: dict[str, float] = {
    "at_once": 20,
    "suspend": 20,
    "turns": 5,
    "fail": 6,
    "fail_later": 5,
    "retry_later": 3,
    "reject": 2,
    "hang": 4,
    "ignore_cancellation": 3,
    "swallow_and_return": 3,
    "swallow_and_uncancel": 3,
    "cancel_itself": 3,
    "cancel_itself_and_wait": 2,
    "raise_cancelled": 2,
    "leave_a_stray": 2,
    "defer": 4,
    "defer_and_fail": 3,
    "defer_too_long": 2,
    "defer_outputs": 2,
    "produce": 14,
    "produce_many": 6,
    "stream": 6,
    "stream_that_fails": 3,
    "wrong_output": 1,
    "look": 6,
    "commit": 3,
    "pause": 2,
    "time_out_inside": 3,
    "generator_exit": 1,
    "interrupt": 0.2,
    "stop": 0.4,
}

# Drawn after all else, so that the seeds without them stay as they are.
PAUSES: dict[str, float] = {"pause_some": 8, "set_concurrency": 4}

_LOST = Fault(is_request_lost=True)
_UNANSWERED = Fault(is_response_lost=True)
_LATE = Fault(request_delay=0.4)
_VERY_LATE = Fault(request_delay=3.0)
_SLOW = Fault(response_delay=0.6)
_ANY = (_LOST, _UNANSWERED, _LATE, _VERY_LATE, _SLOW)

# What may go wrong with each kind of request, without it being a reason to end the run.
FAULTS: dict[Request, tuple[Fault, ...]] = {
    Request.CONNECT: (_LOST, _LATE),
    Request.METADATA: (_LOST, _SLOW),
    Request.FETCH: (_LOST, _LATE, _SLOW, Fault(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)),
    Request.LIST_OFFSETS: (*_ANY, Fault(error=ErrorCode.LEADER_NOT_AVAILABLE)),
    Request.JOIN: (*_ANY, Fault(error=ErrorCode.NOT_COORDINATOR)),
    Request.SYNC: (*_ANY, Fault(error=ErrorCode.NOT_COORDINATOR), Fault(error=ErrorCode.REBALANCE_IN_PROGRESS)),
    Request.HEARTBEAT: (*_ANY, Fault(error=ErrorCode.ILLEGAL_GENERATION), Fault(error=ErrorCode.UNKNOWN_MEMBER_ID)),
    Request.LEAVE: _ANY,
    Request.COMMIT: (
        *_ANY,
        Fault(error=ErrorCode.NOT_COORDINATOR),
        Fault(error=ErrorCode.ILLEGAL_GENERATION),
        Fault(error=ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        Fault(error=ErrorCode.REQUEST_TIMED_OUT, is_carried_out=True),
    ),
    Request.OFFSET_FETCH: (*_ANY, Fault(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)),
    Request.PRODUCE: (
        *_ANY,
        Fault(error=ErrorCode.NOT_ENOUGH_REPLICAS),
        Fault(error=ErrorCode.REQUEST_TIMED_OUT, is_carried_out=True),
        Fault(error=ErrorCode.KAFKA_STORAGE_ERROR),
    ),
    Request.IDENTIFY: (_LOST, _SLOW, Fault(error=ErrorCode.COORDINATOR_NOT_AVAILABLE)),
}

# With the new group protocol, a heartbeat's and a commit's faults are these.
OF_CONSUMER: dict[Request, tuple[Fault, ...]] = {
    Request.CONSUMER_HEARTBEAT: (
        *_ANY,
        Fault(error=ErrorCode.NOT_COORDINATOR),
        Fault(error=ErrorCode.FENCED_MEMBER_EPOCH),
        Fault(error=ErrorCode.UNKNOWN_MEMBER_ID),
        Fault(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, is_carried_out=True),
    ),
    Request.COMMIT: (
        *_ANY,
        Fault(error=ErrorCode.NOT_COORDINATOR),
        Fault(error=ErrorCode.STALE_MEMBER_EPOCH),
        Fault(error=ErrorCode.UNKNOWN_MEMBER_ID),
        Fault(error=ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
        Fault(error=ErrorCode.REQUEST_TIMED_OUT, is_carried_out=True),
    ),
}


@dataclass
class Plan:
    """Everything about a play but the moments, which the director draws as it goes. Seconds are virtual."""

    seed: int
    group_protocol: GroupProtocol = "classic"
    accepts_older_epochs: bool = False
    """Commits with an older epoch are accepted where the partition was kept (KIP-1251)."""
    partitions: int = 0
    records: int = 0
    keys: tuple[bytes | None, ...] = ()
    transactions: float = 0.0
    gaps: float = 0.0
    read_committed: bool = False
    cooperative: bool = False
    members: int = 1
    metadata_limit: int = 4096
    troubled_for: float = 0.0
    calm: bool = False
    """No request fails, and nobody is lost."""
    faults: dict[Request, float] = field(default_factory=dict)
    behaviours: dict[str, float] = field(default_factory=dict)
    pause: float = 0.1
    """Seconds that handlers suspend, at most."""
    pace: float = 1e-5
    look_every: float = 0.005
    order_by: bool = False
    dead_letter: str = ""
    """``"topic"``, ``"function"``, or none."""
    resources: bool = False
    until_end: bool = False
    options: OptionFields = field(default_factory=lambda: OptionFields())

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        self.partitions = rng.choice((1, 1, 2, 3, 5, 12))
        self.records = rng.choice((20, 60, 120, 200))
        few = tuple(b"hot%d" % n for n in range(rng.randint(1, 3)))
        many = tuple(b"k%d" % n for n in range(60))
        self.keys = rng.choice((few, many, (None,), (*few, None), (*few, *many[:10])))
        self.transactions = rng.choice((0.0, 0.0, 0.1, 0.4))
        self.gaps = rng.choice((0.0, 0.0, 0.1, 0.5))
        self.read_committed = rng.random() < 0.5
        self.cooperative = rng.random() < 0.5
        self.members = rng.randint(1, 3)
        self.metadata_limit = rng.choice((4096, 4096, 400, 40, 12))
        self.troubled_for = rng.uniform(1.0, 5.0)
        self.calm = rng.random() < 0.2
        self.pause = rng.choice((0.005, 0.02, 0.1, 0.4))
        self.pace = rng.choice((1e-6, 2e-5, 1e-4, 6e-4))
        self.look_every = rng.choice((0.003, 0.01, 0.03))
        self.resources = rng.random() < 0.3
        self.until_end = rng.random() < 0.15
        self._draw_faults(rng)
        self._draw_behaviours(rng)
        self._draw_options(rng)
        self._draw_pauses(random.Random(f"pauses {self.seed}"))
        if self.group_protocol == "consumer":
            self._be_of_consumer(random.Random(f"consumer {self.seed}"))

    def _draw_pauses(self, rng: random.Random) -> None:
        if rng.random() < 0.4:
            for name, weight in PAUSES.items():
                self.behaviours[name] = weight * rng.random()

    def _draw_faults(self, rng: random.Random) -> None:
        share = rng.choice((0.02, 0.05, 0.1, 0.2))
        for request in FAULTS:
            if rng.random() < 0.6:
                self.faults[request] = share * rng.uniform(0.3, 1.0)
        if self.calm:
            self.faults.clear()

    def faults_of(self, request: Request) -> tuple[Fault, ...]:
        """What may go wrong with it."""
        return (
            OF_CONSUMER.get(request, FAULTS.get(request, ())) if self.group_protocol == "consumer" else FAULTS[request]
        )

    def _be_of_consumer(self, rng: random.Random) -> None:
        self.cooperative = False
        self.accepts_older_epochs = rng.random() < 0.5
        heartbeats = [
            self.faults.pop(one, 0.0) for one in (Request.JOIN, Request.SYNC, Request.HEARTBEAT, Request.LEAVE)
        ]
        if any(heartbeats):
            self.faults[Request.CONSUMER_HEARTBEAT] = max(heartbeats)

    def _draw_behaviours(self, rng: random.Random) -> None:
        trouble = rng.choice((0.0, 0.3, 1.0, 3.0))
        calm = {"at_once", "suspend", "turns", "produce", "produce_many", "stream", "look", "commit"}
        for name, weight in BEHAVIOURS.items():
            drawn = weight * rng.random() * (1.0 if name in calm else trouble)
            if rng.random() < 0.8:
                self.behaviours[name] = drawn
        self.behaviours["suspend"] = max(self.behaviours.get("suspend", 0.0), 0.5)

    def _draw_options(self, rng: random.Random) -> None:
        slots = rng.choice((1, 1, 2, 3, 5, 8, 20))
        drain, commit = rng.choice((0.0, 0.2, 1.0, 3.0)), rng.choice((0.5, 1.0, 2.0))
        self.options = OptionFields(
            ordering=rng.choice((Ordering.KEY, Ordering.KEY, Ordering.PARTITION, Ordering.UNORDERED)),
            max_concurrency=slots,
            max_buffered=rng.choice((1, 2, 3, 10, 40, 10_000)),
            max_buffered_bytes=rng.choice((1, 60, 500, 64 * 1024 * 1024, 64 * 1024 * 1024)),
            max_parked=rng.choice((None, 2 * slots, 2 * slots + 3, 4 * slots)),
            handler_timeout=rng.choice((None, 0.3, 1.0)),
            commit_interval=rng.choice((0.02, 0.1, 0.5)),
            commit_after=rng.choice((1, 7, 10_000)),
            commit_timeout=commit,
            drain_timeout=drain,
            isolation=rng.choice(("context", "context", "task")),
            when_map_is_full=rng.choice(("continue", "block")),
            offset_map_formats=rng.choice(("all", "java")),
            session_timeout=2.0,
            heartbeat_interval=0.1,
            rebalance_timeout=drain + commit + 1.5,
            connect_timeout=2.0,
        )
        self.order_by = self.options["ordering"] is Ordering.KEY and rng.random() < 0.25
        self.dead_letter = rng.choice(("", "", "topic", "function"))
        self.give_up = "skip" if not self.dead_letter and rng.random() < 0.6 else "stop"
        attempts = rng.choice((None, 1, 2, 4))
        if not self.dead_letter and self.give_up == "stop":
            attempts = rng.choice((None, None, 4))
        self.retry = RetryPolicy(
            first_delay=rng.choice((0.0, 0.02, 0.2)), multiplier=2, max_delay=0.5, jitter=0.5, max_attempts=attempts
        )
        self.delivery_timeout = rng.choice((1.0, 3.0))
        self.max_unacknowledged_bytes = rng.choice((1, 600, 3_000, 32 * 1024 * 1024))

    def describe(self) -> str:
        """For the story."""
        shown = {name: value for name, value in vars(self).items() if name not in ("options", "behaviours", "faults")}
        lines = [f"  {name} = {value}" for name, value in shown.items()]
        lines.extend(f"  {name} = {value}" for name, value in self.options.items())
        tempers = sorted(self.behaviours.items(), key=lambda item: -item[1])
        lines.append("  handlers: " + ", ".join(f"{name} {weight:.2g}" for name, weight in tempers if weight))
        lines.append("  faults: " + ", ".join(f"{request.value} {p:.2g}" for request, p in self.faults.items()))
        return "\n".join(lines)
