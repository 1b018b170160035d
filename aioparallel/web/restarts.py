"""When a consumer that has failed is started again, and when no more."""

from __future__ import annotations

from dataclasses import dataclass

from aioparallel.errors import ClusterChanged, ConfigurationError, ConsumerStateError, InstanceFenced
from aioparallel.option_docs import documented
from aioparallel.policies import RetryPolicy

__all__ = ["RestartPolicy", "Restarts"]

_MOST_SECONDS = 1e7  # more is a mistake
_STAYS = (ClusterChanged, ConfigurationError, ConsumerStateError, InstanceFenced)


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """When a consumer whose run has ended with an error, or that could not be started, is made anew.

    The delay doubles with each failure in a row, varied by ten percent. What would fail again in the same way is never
    tried again: a wrong option (ConfigurationError, ConsumerStateError), and what ``make_consumer`` itself raises. Nor
    is a consumer whose ``group_instance_id`` another process has (InstanceFenced): it would throw that one out; nor
    one that has met another cluster (ClusterChanged): anew, it would take that for its own.
    """

    first_delay: float = 1.0
    """Seconds after the first failure."""
    max_delay: float = 60.0
    """Seconds, the longest delay."""
    max_restarts: int | None = None
    """Restarts in a row, after which the consumer has failed for good; None: any number."""
    reset_after: float = 60.0
    """Seconds of a run after which its failure counts as the first one again."""

    def __post_init__(self) -> None:
        for name in ("first_delay", "max_delay", "reset_after"):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_SECONDS:
                raise ConfigurationError(f"RestartPolicy {name}", value, "must be seconds, from 0 to 10,000,000")
        most: object = self.max_restarts
        if most is not None and (type(most) is not int or most < 1):
            raise ConfigurationError("RestartPolicy max_restarts", most, "must be None, or 1 or more")


class Restarts:
    """Counts them. Time is passed in: ``ran`` is for how many seconds the consumer has run; 0 where it did not."""

    def __init__(self, policy: RestartPolicy | None) -> None:
        self._policy = policy
        self.total = 0
        """All of them."""
        self.in_a_row = 0
        """Since it last ran for ``reset_after`` seconds."""

    def are_left(self, ran: float) -> bool:
        """Whether a failure now would be followed by one, if it is of a kind that can pass."""
        policy = self._policy
        if policy is None:
            return False
        return policy.max_restarts is None or self._before(ran, policy) < policy.max_restarts

    def delay(self, error: BaseException, ran: float) -> float | None:
        """Take note of a failure. Seconds until the next start; None: there is none."""
        policy = self._policy
        if policy is None or not can_pass(error) or not self.are_left(ran):
            return None
        self.in_a_row = self._before(ran, policy) + 1
        self.total += 1
        backing_off = RetryPolicy(first_delay=policy.first_delay, max_delay=policy.max_delay)
        return backing_off.delay(Exception(), self.in_a_row, 0)

    def _before(self, ran: float, policy: RestartPolicy) -> int:
        return 0 if ran and ran >= policy.reset_after else self.in_a_row


def can_pass(error: BaseException) -> bool:
    """Whether the same might go well another time."""
    return not ends_the_process(error) and not isinstance(error, _STAYS)


def ends_the_process(error: BaseException | None) -> bool:
    """Whether it means the whole process: Ctrl-C, or ``sys.exit()``; also within a group of errors."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((KeyboardInterrupt, SystemExit)) is not None
    return isinstance(error, KeyboardInterrupt | SystemExit)
