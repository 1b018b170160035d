"""What the pages name is there: files, methods, fields, commands, and the places that they refer to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from aioparallel.delivery import letters
from aioparallel.observe.metrics import INSTRUMENTS
from docs.instruments import ALERTS

from .blocks import ROOT, pages
from .names import files, members, module_file, targets, words, words_of

PAGES = pytest.mark.parametrize("page", [*pages()], ids=lambda page: str(page.relative_to(ROOT)))

# Of others: aiostream, hypothesis, Spark.
FOREIGN = frozenset({"hide_parameters", "task_limit", "reproduce_failure", "INVALID_HANDLE", "SESSION_CLOSED"})

# Of the libraries that a page compares: those that are installed here, and names of the others.
OTHERS = {
    "docs/coming-from/aiokafka.md": ("aiokafka",),
    "docs/coming-from/confluent-kafka.md": ("confluent_kafka", "aiokafka"),
}
NAMED: dict[str, set[str]] = {
    "docs/metrics.md": {
        "PROMETHEUS_MULTIPROC_DIR",
        "OTEL_SEMCONV_STABILITY_OPT_IN",
        "make_asgi_app",
        "rule_files",
        "min_over_time",
        *(one.prometheus_name for one in INSTRUMENTS),
        *(one.otel_name.rpartition(".")[2] for one in INSTRUMENTS),
        *(f"{one.prometheus_name}_{suffix}" for one in INSTRUMENTS for suffix in ("bucket", "count", "sum")),
        *(f"Aioparallel{one.name}" for one in ALERTS),
    },
    "docs/autoscaling.md": {
        "aioparallel_work",  # a figure that the page makes
        "KEDA_HTTP_DEFAULT_TIMEOUT",
        *(one.prometheus_name for one in INSTRUMENTS),
    },
    "docs/queues.md": {f"Aioparallel{one.name}" for one in ALERTS},
    "docs/failures.md": {f"Aioparallel{one.name}" for one in ALERTS},
    "docs/kubernetes.md": {"AlwaysAllow", "kube_pod_status_ready", *(f"Aioparallel{one.name}" for one in ALERTS)},
    "docs/groups.md": {"DESCRIBE_CONFIGS"},  # a right of Kafka
    "docs/traces.md": {"OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG", "parentbased_traceidratio"},
    "docs/coming-from/celery.md": {
        "AsyncResult",
        "acks_late",
        "apply_async",
        "autoretry_for",
        "max_retries",
        "rate_limit",
        "retry_backoff_max",
        "retry_jitter",
        "soft_time_limit",
        "task_always_eager",
        "task_routes",
        "time_limit",
        "visibility_timeout",
        "worker_prefetch_multiplier",
    },
    "docs/coming-from/confluent-kafka.md": {"consistent_random"},
    "docs/coming-from/faststream.md": {
        "graceful_timeout",
        "NACK_ON_ERROR",
        "NackMessage",
        "REJECT_ON_ERROR",
        "RejectMessage",
        "TestKafkaBroker",
        "make_ping_asgi",
    },
    "docs/coming-from/parallel-consumer.md": {
        "CooperativeStickyAssignor",
        "PERIODIC_CONSUMER_ASYNCHRONOUS",
        "PERIODIC_CONSUMER_SYNC",
        "PERIODIC_TRANSACTIONAL_PRODUCER",
    },
}

# Programs that a page lets its reader save.
SAVED = {
    "docs/autoscaling.md": {"worker.py"},
    "docs/kubernetes.md": {"worker.py"},
    "docs/tutorial.md": {f"step{number}.py" for number in range(1, 7)},
}

# What pages call by the name of a variable.
CALLED = {
    "broker": ("InMemoryBroker",),
    "consumer": ("ParallelConsumer",),
    "faults": ("Faults",),
    "listener": ("ProgressListener",),
    "order": ("OrderChecker",),
    "outcomes": ("ParallelMap",),
    "record": ("Record",),
    "stats()": ("Stats", "FlowStats"),
}

FILE = re.compile(r"[\w.*/-]+\.(py|md|toml|json|yml)|[\w.-]+/(?:[\w.*-]+/)*[\w.*-]*")


def prose(page: Path) -> str:
    """Without its blocks."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def code(page: Path) -> Iterator[str]:
    """What stands between backticks in its prose."""
    yield from re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))


@PAGES
def test_identifiers(page: Path) -> None:
    """Each that has an underscore, or capitals within, is a word of the code, or a part of one."""
    named = {word for text in code(page) if not FILE.fullmatch(text) for word in re.findall(r"\b[A-Za-z_]\w+", text)}
    own = {word for word in named - FOREIGN if "_" in word or re.match(r"[A-Z][a-z]+[A-Z]", word)}
    name = str(page.relative_to(ROOT))
    known = words().union(NAMED.get(name, ()), *(words_of(module) for module in OTHERS.get(name, ())))
    assert {one for one in own if not any(one in word for word in known)} == set()


@PAGES
def test_attributes(page: Path) -> None:
    """``Session.state``, wherever it stands, is one of Session; ``.epoch`` after it, in the same line, too."""
    wrong = [
        f"{owner}.{name}"
        for owner, name in re.findall(r"\b([A-Z]\w+)\.(\w+)", page.read_text())
        if not has((owner,), name)
    ]
    for line in prose(page).splitlines():
        owners: tuple[str, ...] = ()
        for text in re.findall(r"`([^`]+)`", line):
            if found := re.match(r"(\w+(?:\(\))?)\.(\w+)\b(?!\.\w+\.)", text):
                owners = CALLED.get(found[1], (found[1],))
            elif not (found := re.fullmatch(r"()\.(\w+)", text)):
                continue
            if not FILE.fullmatch(text) and not has(owners, found[2]):
                wrong.append(text)
    assert wrong == []


def has(owners: tuple[str, ...], name: str) -> bool:
    """Whether one of these classes does, or none of them is ours."""
    known = frozenset().union(*(members().get(owner, ()) for owner in owners))
    return not known or name in known


@PAGES
def test_files(page: Path) -> None:
    """Each that is named, whole or by its last parts, exists; patterns fit one at least."""
    named = {text.rstrip("/") for text in code(page) if FILE.fullmatch(text)}
    named -= SAVED.get(str(page.relative_to(ROOT)), set())
    assert {one for one in named if not any(fnmatch(f"/{path}".rstrip("/"), f"*/{one}") for path in files())} == set()


def test_headers() -> None:
    """The page about dead letters has each header that the library writes into them."""
    page = (ROOT / "docs/dead-letters.md").read_text()
    written = re.findall(r"``(aioparallel\.\w[\w.]*)``", letters.__doc__ or "")
    assert len(written) > 10
    assert {name for name in written if f"`{name}`" not in page} == set()


@PAGES
def test_tests(page: Path) -> None:
    """Each that stands behind a link to a file is in that file."""
    named = re.findall(r"\]\(([^)\s]+\.py)\) `(test_\w+)`", page.read_text())
    assert [test for path, test in named if f"def {test}(" not in (page.parent / path).read_text()] == []


@PAGES
def test_commands(page: Path) -> None:
    """``make`` has the targets, and ``python -m`` finds the modules."""
    text = page.read_text()
    made = set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.MULTILINE))
    families = {name for name in made if name.endswith("-")}  # load-...
    assert made - families - targets() == set()
    assert {name for name in families if not any(one.startswith(name) for one in targets())} == set()
    run = re.findall(r"python -m ((?:aioparallel|benchmarks|examples|tests)[\w.]*\w)", text)
    assert [module for module in run if not module_file(module).exists()] == []


@PAGES
def test_links(page: Path) -> None:
    """Each leads to a file, and to a heading in it."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        name, _, heading = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (heading and heading not in _anchors(file)):
            wrong.append(target)
    assert wrong == []


def _anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
