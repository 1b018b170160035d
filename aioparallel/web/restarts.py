"""When a failed consumer is started again."""

from __future__ import annotations

from dataclasses import dataclass

from aioparallel.config.handling import check_count, check_time
from aioparallel.config.option_docs import documented
from aioparallel.config.policies import RetryPolicy
from aioparallel.records.errors import ClusterChanged, ConfigurationError, ConsumerStateError, InstanceFenced

__all__ = ["RestartPolicy", "Restarts"]

_FINAL = (ClusterChanged, ConfigurationError, ConsumerStateError, InstanceFenced)


@documented
@dataclass(frozen=True, kw_only=True, slots=True)
class RestartPolicy:
    """When a consumer that could not start, or whose run ended with an error, is replaced by a new one.

    The delay doubles with each failure in a row and varies by ten percent. Some failures are final: a wrong option or
    state (ConfigurationError, ConsumerStateError) and any error of ``make_consumer`` would repeat. InstanceFenced is
    final, as a restart would in turn fence the process that uses the ``group_instance_id`` now. ClusterChanged is
    final, as a new consumer would accept the other cluster as its own.
    """

    first_delay: float = 1.0
    """Seconds after the first failure."""
    max_delay: float = 60.0
    """Longest delay in seconds."""
    max_restarts: int | None = None
    """Most restarts in a row; the next failure is final. None: no limit."""
    reset_after: float = 60.0
    """A failure after a run of so many seconds counts as the first one again."""

    def __post_init__(self) -> None:
        for name in ("first_delay", "max_delay", "reset_after"):
            check_time(f"RestartPolicy {name}", getattr(self, name), zero=True)
        if self.max_restarts is not None:
            check_count("RestartPolicy max_restarts", self.max_restarts)


class Restarts:
    """Counts restarts. ``ran``: for how many seconds the consumer has run; 0 if it did not."""

    def __init__(self, policy: RestartPolicy | None) -> None:
        self._policy = policy
        self.total = 0
        self.in_a_row = 0
        """Restarts since a run of ``reset_after`` seconds."""

    def are_left(self, ran: float) -> bool:
        """Whether a restart would follow a failure now, unless its error is final."""
        policy = self._policy
        if policy is None:
            return False
        return policy.max_restarts is None or self._before(ran, policy) < policy.max_restarts

    def delay(self, error: BaseException, ran: float) -> float | None:
        """Count a failure. Returns the seconds until the restart; None if there is none."""
        policy = self._policy
        if policy is None or not can_pass(error) or not self.are_left(ran):
            return None
        self.in_a_row = self._before(ran, policy) + 1
        self.total += 1
        backoff = RetryPolicy(first_delay=policy.first_delay, max_delay=policy.max_delay)
        return backoff.delay(Exception(), self.in_a_row, 0)

    def _before(self, ran: float, policy: RestartPolicy) -> int:
        return 0 if ran and ran >= policy.reset_after else self.in_a_row


def can_pass(error: BaseException) -> bool:
    """Whether a restart may help."""
    return not ends_the_process(error) and not isinstance(error, _FINAL)


def ends_the_process(error: BaseException | None) -> bool:
    """Whether it is Ctrl-C or ``sys.exit()``, also within an exception group."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((KeyboardInterrupt, SystemExit)) is not None
    return isinstance(error, KeyboardInterrupt | SystemExit)
