"""What the next poll asks of each priority: its part of the budget, as far as its part of the buffer has room."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aioparallel.engine.scheduler import Scheduler
from aioparallel.group.intake import Intake, Plan
from aioparallel.group.sessions import Session
from aioparallel.options import Options
from aioparallel.queues.priority.budget import PollBudget, shares
from aioparallel.queues.priority.client import PriorityClient

__all__ = ["PollPlanner"]


class PollPlanner:
    """Plans for each priority as for a consumer of its own, with a part of the buffer that no other takes: so what is
    urgent finds room whatever has been read of the rest. A burst takes room beside the parts.
    """

    def __init__(
        self,
        options: Options,
        scheduler: Scheduler,
        beside: Callable[[], tuple[int, int]],
        *,
        client: PriorityClient,
        budget: PollBudget,
        weights: Sequence[float],
    ) -> None:
        self._client = client
        self._budget = budget
        # A burst is never more than the budget, so the buffer holds all parts and a burst.
        self._rooms = shares(weights, options.max_buffered - sum(budget.parts))
        sizes = [int(options.max_buffered_bytes * weight / sum(weights)) for weight in weights]
        self._intakes = [Intake(options, scheduler, beside) for _ in weights]
        for intake, room, size in zip(self._intakes, self._rooms, sizes, strict=True):
            intake.max_buffered, intake.max_buffered_bytes = room, max(1, size)

    def saw(self, records: int, size: int) -> None:
        """See :class:`~aioparallel.group.ranking.Planner`."""
        for intake in self._intakes:
            intake.saw(records, size)

    def plan(self, sessions: Sequence[Session]) -> Plan:
        """See :class:`~aioparallel.group.ranking.Planner`."""
        bursting, burst = self._budget.burst()
        plans: list[Plan] = []
        limits: list[int | None] = []
        for priority, intake in enumerate(self._intakes):
            more = burst if priority == bursting else 0
            intake.max_buffered = self._rooms[priority] + more
            plan = intake.plan([session for session in sessions if session.rank == priority])
            plans.append(plan)
            limits.append(
                None if _has_enough(plan) else min(plan.most, self._budget.parts[priority] + more) if plan.quotas else 0
            )
        self._client.next_poll(limits)
        return Plan(
            {partition: quota for plan in plans for partition, quota in plan.quotas.items()},
            sum(limit or 0 for limit in limits),
            min([plan.starts_until_next for plan in plans if plan.starts_until_next], default=0),
            _state_of(plans),
        )


def _has_enough(plan: Plan) -> bool:
    """Whether there is more of it than has room: its part of the budget is used, though it brings nothing now."""
    return not plan.quotas and (plan.is_full or plan.state == "enough ready")


def _state_of(plans: Sequence[Plan]) -> str:
    """Of the highest priority that says more than that it has nothing to do."""
    states = [plan.state for plan in reversed(plans)]
    if "fetching" in states:
        return "fetching"
    told = [state for state in states if state not in ("at the end", "nothing assigned")]
    return told[0] if told else states[0]
