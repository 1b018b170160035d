"""Limits of concurrent calls for a task or a job, and the default of retries."""

from __future__ import annotations

import dataclasses
import logging
from typing import Final

from aioparallel.config.handling import check_count
from aioparallel.config.policies import RetryPolicy
from aioparallel.records.errors import ConfigurationError

__all__ = ["DEFAULT_RETRY", "MAX_BUFFERED_BYTES", "calls_per_task", "log_limits", "with_waits_counted"]

logger = logging.getLogger(__name__)

_DEFAULT: Final = 100
DEFAULT_RETRY: Final = RetryPolicy(max_attempts=3, count_waits=True)
"""Three attempts, one second after the first failure and two after the second. RetryLater counts as an attempt and sets
its own delay. A job that never gives up would never end."""
MAX_BUFFERED_BYTES: Final = 64 << 20
"""For each task; the default of a consumer as well."""


def with_waits_counted(retry: RetryPolicy | None) -> RetryPolicy | None:
    """The policy with ``RetryLater`` counted as an attempt, unless it limits waiting itself (``max_wait``)."""
    if retry is None:
        return RetryPolicy(max_attempts=1, count_waits=True)
    given: object = retry
    if isinstance(given, RetryPolicy) and given.max_wait is None:
        return dataclasses.replace(given, count_waits=True)
    return retry


def calls_per_task(max_concurrency: int | None, job_concurrency: int | None, tasks: int | None) -> int:
    """Concurrent handlers in each task: ``max_concurrency``, or ``job_concurrency`` divided by ``tasks``.

    A task cannot know how many others run, so a limit for the job needs ``tasks``. Raises ConfigurationError.
    """
    if tasks is not None:
        check_count("tasks", tasks)
    if job_concurrency is None:
        if max_concurrency is None:
            return _DEFAULT
        check_count("max_concurrency", max_concurrency)
        return max_concurrency
    check_count("job_concurrency", job_concurrency)
    if max_concurrency is not None:
        raise ConfigurationError(
            "max_concurrency", max_concurrency, "is each task's limit; give it, or job_concurrency and tasks"
        )
    if tasks is None:
        raise ConfigurationError(
            "job_concurrency",
            job_concurrency,
            "is divided by the tasks that run at once, which no task can know: say how many, with tasks=... (cores of "
            "all executors, or partitions if they are fewer)",
        )
    if job_concurrency < tasks:
        raise ConfigurationError("job_concurrency", job_concurrency, f"is less than one call for each of {tasks} tasks")
    return job_concurrency // tasks


def log_limits(name: str, per_task: int, tasks: int | None) -> None:
    """Log the limits, on the driver, once for each use."""
    if tasks is None:
        calls = f"{per_task} calls at once in each task, times the tasks that run at once"
    else:
        calls = f"{tasks * per_task} calls at once ({tasks} tasks, {per_task} each)"
    given = {} if tasks is None else {"tasks": tasks}
    logger.info("%s: at most %s", name, calls, extra={"action": "spark_limits", "per_task": per_task, **given})
