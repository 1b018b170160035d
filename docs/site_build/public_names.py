"""The pages of the Python reference. Each public name is on exactly one of them."""

from __future__ import annotations

import importlib
import inspect
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import aioparallel
from aioparallel import AioparallelError

__all__ = ["PAGES", "ApiPage", "Unlisted", "page_text", "paths_on", "public_paths"]


class Unlisted(Exception):
    """A public name is on no page of the reference, on two, or no longer exists."""


class ApiPage(NamedTuple):
    """One page of the reference."""

    uri: str
    title: str
    module: str
    intro: str
    names: tuple[str, ...] = ()
    """Names of the module. Empty: all names of its ``__all__``."""
    shows_bases: bool = False


def _errors() -> tuple[str, ...]:
    """Names of exceptions, each below its base class."""
    found = [one for name in aioparallel.__all__ if isinstance(one := getattr(aioparallel, name), type)]
    errors = [one for one in found if issubclass(one, BaseException)]
    errors.sort(key=lambda one: (len(one.__mro__) > len(AioparallelError.__mro__), inspect.getsourcelines(one)[1]))
    return tuple(one.__name__ for one in errors)


_TOP = "aioparallel"

PAGES = (
    ApiPage(
        "api/consumer.md",
        "Consumer",
        _TOP,
        "The consumer, its options, and how it hands results to your code.",
        ("ParallelConsumer", "Options", "Handling", "Ordering", "Result", "CallNext"),
    ),
    ApiPage(
        "api/records.md",
        "Records and outputs",
        _TOP,
        "What a handler gets, what it returns, and what the broker stored.",
        (
            "Record",
            "Outgoing",
            "Produced",
            "TopicPartition",
            "Origin",
            "Failure",
            "source_headers",
            "name_records",
            "RecordFilter",
            "Skipped",
        ),
    ),
    ApiPage(
        "api/policies.md",
        "Policies",
        _TOP,
        "Values for the options of a consumer. [Failures and outputs](../failures.md) shows them in use.",
        (
            "FailurePolicy",
            "RetryPolicy",
            "Producing",
            "Transactions",
            "State",
            "Deduplicate",
            "Security",
            "Token",
        ),
    ),
    ApiPage(
        "api/handlers.md",
        "Handlers",
        _TOP,
        "Functions that make handlers, and what a handler can call.",
        ("batches", "Batch", "in_threads", "in_processes", "resource", "Deferral"),
    ),
    ApiPage(
        "api/parallel-map.md",
        "parallel_map",
        _TOP,
        "The engine without Kafka. [Without Kafka](../parallel-map.md) shows it in use.",
        ("parallel_map", "ParallelMap", "Outcome", "OnError", "Work", "FlowStats", "LoopThread", "ThreadedFlow"),
    ),
    ApiPage(
        "api/monitoring.md",
        "Health and statistics",
        _TOP,
        "What `health()` and `stats()` return. [Monitoring](../health.md) shows what to do with it.",
        ("Health", "Problem", "ProblemKind", "Stats", "PartitionStats", "LongestLane", "Paused", "BrokerOutputs"),
    ),
    ApiPage(
        "api/extensions.md",
        "Extensions",
        _TOP,
        "The interface for what you add to a consumer. [Extensions](../extensions.md) has an example, and a list of "
        "[when each hook is called](../extensions.md#when-hooks-are-called).",
        ("Extension", "PartitionState", "ConsumerContext", "Committed", "CommitFault"),
    ),
    ApiPage(
        "api/errors.md",
        "Errors",
        _TOP,
        "What `aioparallel` raises, and what a handler can raise. All errors are `AioparallelError`.",
        _errors(),
        shows_bases=True,
    ),
    ApiPage("api/metrics.md", "aioparallel.observe.metrics", "aioparallel.observe.metrics", ""),
    ApiPage("api/control.md", "aioparallel.control", "aioparallel.control", ""),
    ApiPage("api/http.md", "aioparallel.http", "aioparallel.http", ""),
    ApiPage("api/deserializers.md", "aioparallel.deserializers", "aioparallel.deserializers", ""),
    ApiPage("api/web.md", "aioparallel.web", "aioparallel.web", ""),
    ApiPage("api/web-fastapi.md", "aioparallel.web.fastapi", "aioparallel.web.fastapi", ""),
    ApiPage("api/web-starlette.md", "aioparallel.web.starlette", "aioparallel.web.starlette", ""),
    ApiPage("api/web-aiohttp.md", "aioparallel.web.aiohttp", "aioparallel.web.aiohttp", ""),
    ApiPage("api/stores-sql.md", "aioparallel.stores.sql", "aioparallel.stores.sql", ""),
    ApiPage("api/observe-traces.md", "aioparallel.observe.traces", "aioparallel.observe.traces", ""),
    ApiPage("api/offsets.md", "aioparallel.offsets", "aioparallel.offsets", ""),
    ApiPage("api/queues-kmq.md", "aioparallel.queues.kmq", "aioparallel.queues.kmq", ""),
    ApiPage("api/queues-priority.md", "aioparallel.queues.priority", "aioparallel.queues.priority", ""),
    ApiPage("api/queues-share.md", "aioparallel.queues.share", "aioparallel.queues.share", ""),
    ApiPage("api/spark.md", "aioparallel.spark", "aioparallel.spark", ""),
    ApiPage("api/spark-backfill.md", "aioparallel.spark.backfill", "aioparallel.spark.backfill", ""),
    ApiPage("api/testing.md", "aioparallel.testing", "aioparallel.testing", ""),
    ApiPage("api/testing-memory.md", "aioparallel.testing.memory", "aioparallel.testing.memory", ""),
    ApiPage("api/testing-processes.md", "aioparallel.testing.processes", "aioparallel.testing.processes", ""),
    ApiPage("api/testing-event-log.md", "aioparallel.testing.event_log", "aioparallel.testing.event_log", ""),
    ApiPage("api/testing-filling.md", "aioparallel.testing.filling", "aioparallel.testing.filling", ""),
    ApiPage("api/testing-loop-holds.md", "aioparallel.testing.loop_holds", "aioparallel.testing.loop_holds", ""),
)


def paths_on(page: ApiPage) -> list[str]:
    """The names of a page, with their module."""
    return [f"{page.module}.{name}" for name in page.names or _exported(page.module)]


def public_paths() -> list[str]:
    """All names of the reference, with their modules.

    Raises Unlisted if a public name is on no page, or on two.
    """
    found = [path for page in PAGES for path in paths_on(page)]
    wanted = {f"{page.module}.{name}" for page in PAGES for name in _exported(page.module)}
    repeated = [path for path, count in Counter(found).items() if count > 1]
    if wrong := sorted({*repeated, *wanted.symmetric_difference(found)}):
        raise Unlisted(f"PAGES in {Path(__file__).name}: not once each: {', '.join(wrong)}")
    return found


def page_text(page: ApiPage) -> str:
    """A page as Markdown with the directives of mkdocstrings."""
    parts = [f"# {page.title}\n"]
    if page.intro:
        parts.append(f"{page.intro}\n")
    else:
        parts.append(
            _directive(page.module, "members: false", "show_root_heading: false", "show_root_toc_entry: false")
        )
    options = ["show_bases: true"] if page.shows_bases else []
    return "\n".join(parts + [_directive(path, *options) for path in paths_on(page)])


def _directive(path: str, *options: str) -> str:
    lines = [f"::: {path}", *(["    options:"] if options else []), *(f"      {one}" for one in options)]
    return "\n".join(lines) + "\n"


def _exported(module: str) -> list[str]:
    return [name for name in importlib.import_module(module).__all__ if name != "__version__"]
