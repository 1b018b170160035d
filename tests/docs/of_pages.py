"""What a reader of each page has around its blocks. A block that is not here needs nothing."""

from __future__ import annotations

from collections.abc import Mapping

from aioparallel import Outgoing

from .given import Given

__all__ = ["GIVEN"]


def _orders(*customers: str) -> list[Outgoing]:
    return [Outgoing("orders", b'{"customer": "%s"}' % one.encode(), key=one.encode()) for one in customers]


_FLIGHTS = [Outgoing("flights", b'{"carrier": "UA", "number": %d}' % n, key=b"N%d" % (n % 3)) for n in range(10)]
_PAYMENTS = [Outgoing("payments", b"100", key=b"k%d" % (n % 3)) for n in range(30)]
_WORK = [
    Outgoing("work", b"v", b"k%d" % n, [("src-topic", b"raw"), ("src-partition", b"0"), ("src-offset", b"%d" % n)])
    for n in (*range(10), *range(4))
]
_RUN = """
async with consumer:
    await consumer.run(handle)
    print(consumer.stats().succeeded, consumer.stats().dead_lettered)
"""
_HANDLE = """
from aioparallel import FailurePolicy, ParallelConsumer, RetryPolicy
from aioparallel.testing.memory import InMemoryBroker, InMemoryClient

async def handle(record):
    if record.value == b"poison":
        raise ValueError("no such customer")
"""
_IN_MEMORY = """
broker = InMemoryBroker()
broker.create_topic("orders")
for number in range(10):
    broker.append("orders", b"%d" % number)
"""
_CONNECT = """
from aioparallel.clients.aiokafka.admin import Admin

async with Admin("kafka:9093", security.client_options()) as admin:
    await admin.topics()
    print("connected")
"""
_FETCH = """
async def fetch(url):
    if "broken" in url:
        raise ConnectionError("broken")
    return len(url)

def host_of(url):
    return url.split("/")[0]

urls = ["a/1", "a/22", "b/broken"]
"""
_DATABASE = """
from aioparallel import Batch, ParallelConsumer, batches

class Database:
    rows = 0

    async def executemany(self, statement, rows):
        self.rows += len(rows)

database, INSERT = Database(), "INSERT"
consumer = ParallelConsumer("flights", bootstrap_servers="localhost:9092", group_id="database", until="end")
await consumer.__aenter__()
"""

_DATABASE_ALONE = """
class database:
    async def executemany(statement, rows):
        pass
"""
_SERVICE = """
from aioparallel import Batch, Record
from types import SimpleNamespace

class service:
    async def send(values):
        return [SimpleNamespace(status=503 if number == 0 else 200) for number, _ in enumerate(values)]

_batch = Batch.of([Record("t", 0, 0), Record("t", 0, 1)])
"""

_ASK = """
from aioparallel.http import Request
def ask(item):
    return Request("GET", "/")
"""
_CUSTOMERS = """
from types import SimpleNamespace

class customers:
    locked = {"c7"}

    async def find(name):
        is_locked = name in customers.locked
        customers.locked.discard(name)
        return None if name == "nobody" else SimpleNamespace(is_locked=is_locked, as_json=lambda: b"{}")
"""

_CONSUMER = "from aioparallel import ParallelConsumer\n"
_SERVICE_PARTS = """
from aioparallel import ParallelConsumer

def make_consumer():
    return ParallelConsumer("orders", bootstrap_servers="localhost:9092", group_id="embedded")

async def handle(record):
    pass
"""

_JOBS = {"jobs": [Outgoing("jobs", b"%d" % n) for n in range(10)], "jobs-markers": [], "jobs__undelivered": []}
_WORKS = """
from aioparallel.queues.kmq import KmqConsumer, RedeliveryTracker

async def work(record):
    print("worked", flush=True)
    if consumer.stats().succeeded == 9:
        consumer.stop()
"""
_FROM_THE_BEGINNING = """
import asyncio
from aioparallel.clients.aiokafka.share_admin import ShareAdmin

async def configure(group):
    async with ShareAdmin("localhost:9092") as admin:
        await admin.set_group_configs(group, {"share.auto.offset.reset": "earliest"})

asyncio.run(configure("workers"))
"""
_SHARED = {"shared": [Outgoing("shared", b"%d" % n) for n in range(10)]}
_MAIL: dict[str, list[Outgoing]] = {f"mail-{priority}": [] for priority in range(3)}
_PRIORITIES: dict[str, list[Outgoing]] = {"jobs-0": [], "jobs-1": [], "jobs-2": [Outgoing("jobs-2", b"v")]}
_MAILS = """
from aioparallel.queues.priority import PriorityConsumer

async def work(record):
    print("worked", flush=True)
    one.stop()
"""
_ONCE_READY = """
import asyncio

async def stop_once_ready():
    while "tracker" not in globals() or not tracker.health().ready:
        await asyncio.sleep(0.02)
    tracker.stop()

stopping = asyncio.ensure_future(stop_once_ready())
"""

_TABLES = (
    "import sqlite3\nfrom aioparallel.stores.sql import schema_statements\n"
    "made = sqlite3.connect('flights.db')\nmade.execute('CREATE TABLE flights (number TEXT)')\n"
    "for statement in schema_statements('sqlite'):\n    made.execute(statement)\nmade.commit()\nmade.close()\n"
)

_ENDED_BY_SIGTERM = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
_TO_THE_END = {'group_id="billing",': 'group_id="billing", until="end",'}
_WORKER = (
    _SERVICE_PARTS
    + """
import asyncio
from aiohttp import web
from aioparallel.web.aiohttp import running

consumers = running(make_consumer, handle, name="billing")
app = web.Application()
"""
)
_ASKED = """
async with consumers:
    while "work" not in (await metrics(None)).text:
        await asyncio.sleep(0.02)
    print((await metrics(None)).text, end="")
"""

GIVEN: Mapping[str, Given] = {
    "docs/autoscaling.md: What to use": Given(
        before=_WORKER,
        after=_ASKED,
        topics={"orders": []},
        says="aioparallel_parked 0\naioparallel_work 0\n",
    ),
    "docs/autoscaling.md: A tool that resets offsets deletes the map": Given(
        after='for offset in (37, 38):\n    print(retry(Record("orders", 0, offset), ValueError(), 3))\n',
        says="dead_letter\n8.0\n",
    ),
    "docs/coming-from/aiokafka.md: The same program": Given(
        before=_ENDED_BY_SIGTERM, topics={"orders": _orders("c1", "c2")}, lines=2, says=r"(b'c\d' .*\n){2}"
    ),
    "docs/coming-from/aiokafka.md: The same program 2": Given(
        topics={"orders": _orders("c1", "c2")}, lines=2, says=r"(b'c\d' .*\n){2}"
    ),
    "docs/coming-from/celery.md: The same program": Given(
        instead=_TO_THE_END,
        topics={"bills": [Outgoing("bills", b"anna", b"anna")], "bills.dlq": []},
        says="anna\n",
    ),
    "docs/coming-from/confluent-kafka.md: The same program": Given(
        before=_ENDED_BY_SIGTERM, topics={"orders": _orders("c1", "c2")}, lines=2, says=r"(b'c\d' .*\n){2}"
    ),
    # Two threads print, so what they print may be mixed.
    "docs/coming-from/confluent-kafka.md: The same program 2": Given(
        topics={"orders": _orders("c1", "c2")}, lines=2, says=r"(?s)(?=.*b'c1')(?=.*b'c2').*"
    ),
    "docs/coming-from/faststream.md: The same program": Given(
        instead=_TO_THE_END,
        after="print(consumer.stats().succeeded)",
        topics={"orders": _orders("c1", "c2"), "invoices": []},
        says="2\n",
    ),
    "docs/coming-from/parallel-consumer.md: The same program": Given(
        instead=_TO_THE_END, topics={"orders": _orders("c1", "c2")}, says=r"(c\d .*\n){2}"
    ),
    "docs/kubernetes.md: The worker": Given(
        instead={'"8000"': '"0"'},
        topics={"orders": _orders("c1", "c2"), "orders.dlq": []},
        lines=2,
        says=r"=+ Running on .* =+\n\(Press .*\)\n",
    ),
    "docs/kubernetes.md: Static membership": Given(
        after="print(make_consumer())", topics={"orders": []}, says=".*ParallelConsumer.*\n"
    ),
    "aioparallel.queues.kmq.consumer.KmqConsumer": Given(before=_WORKS, topics=_JOBS, says=r"(worked\n){10}"),
    "aioparallel.queues.kmq.tracker.RedeliveryTracker": Given(before=_WORKS + _ONCE_READY, topics=_JOBS),
    "aioparallel.config.state.State": Given(before="from aioparallel import ParallelConsumer, Record, State\n"),
    "docs/exactly-once.md: Exactly once: Kafka transactions": Given(
        instead={"commits=Transactions(),": 'commits=Transactions(), until="end",'},
        after="print(consumer.stats().transactions.waiting_outputs)\n",
        topics={"flights": _FLIGHTS, "delays": []},
        starts_kafka=True,
        says="0\n",
    ),
    "docs/stores.md: Positions in a database": Given(
        before=_TABLES,
        instead={
            'postgresql+asyncpg://app@db/app", pool_size=51': 'sqlite+aiosqlite:///flights.db"',
            "max_concurrency=50": 'max_concurrency=50, until="end"',
        },
        after="print(consumer.stats().positions_in, sqlite3.connect('flights.db').execute("
        "'SELECT count(*) FROM flights').fetchone())\n",
        topics={"flights": _FLIGHTS},
        says=r"sqlite: aioparallel_position \(\d+,\)\n",
    ),
    "docs/stores.md: SQLite": Given(
        before=_TABLES.replace("flights.db", "results.db"),
        instead={"commits=store": 'commits=store, until="end"'},
        after="print(consumer.stats().positions_in, sqlite3.connect('results.db').execute("
        "'SELECT count(*) FROM flights').fetchone())\n",
        topics={"flights": _FLIGHTS},
        says=r"sqlite: aioparallel_position \(10,\)\n",
    ),
    "docs/state.md: State for each key": Given(
        instead={"commits=Transactions()": 'commits=Transactions(), until="end"'},
        after="print(consumer.stats().state.restored)\n",
        topics={"payments": _PAYMENTS, "large": []},
        compacted=["totals-state", "totals-snapshots"],
        starts_kafka=True,
        says="2\n",
    ),
    "docs/rebalancing.md: Rebalances: the two group protocols": Given(
        before=_HANDLE,
        instead={'"orders"': '"rebalanced"'},  # others have a topic orders there
        after=_RUN,
        topics={"rebalanced": [Outgoing("rebalanced", b"v", key) for key in (b"c1", b"c2")]},
        starts_kafka=True,
        ends=2,
        says="2 0\n",
    ),
    "docs/queues.md: Share groups": Given(
        before=_FROM_THE_BEGINNING,
        instead={'"jobs"': '"shared"'},
        topics=_SHARED,
        starts_kafka=True,
        lines=10,
        says=r"(working on b'\d' delivery 1\n){10}",
    ),
    "docs/queues.md: Dead letters of a share group": Given(
        after="print(consumer)\n", topics={"jobs": []}, says=r".*ShareConsumer.*\n"
    ),
    "aioparallel.queues.share.consumer.ShareConsumer": Given(
        before="from aioparallel.queues.share import ShareConsumer\n"
        "async def work(record):\n    print(record.value, flush=True)\n    consumer.stop()\n"
        + _FROM_THE_BEGINNING.replace('asyncio.run(configure("workers"))', 'await configure("workers-once")'),
        instead={'"jobs"': '"shared-once"', '"workers"': '"workers-once"'},
        topics={"shared-once": [Outgoing("shared-once", b"v")]},
        starts_kafka=True,
        says="b'v'\n",
    ),
    "docs/queues.md: Acknowledge single records (KMQ)": Given(
        topics=_JOBS, lines=10, says=r"(working on b'\d' for the 1 time\n){10}"
    ),
    "docs/queues.md: Trackers": Given(
        instead={
            "tracker.run_sync()": "import signal\nsignal.setitimer(signal.ITIMER_REAL, 1)\n"
            "signal.signal(signal.SIGALRM, lambda *_: tracker.stop())\ntracker.run_sync()"
        },
        topics=_JOBS,
    ),
    "docs/queues.md: Topics of several priorities": Given(
        topics=_MAIL, lines=2, says=r"(priority 0 b'newsletter'\n|priority 2 b'reset'\n){2}"
    ),
    "aioparallel.queues.priority.consumer.PriorityConsumer": Given(before=_MAILS, topics=_PRIORITIES, says="worked\n"),
    "aioparallel.queues.priority.producer.PriorityProducer": Given(
        before="from aioparallel.queues.priority import PriorityProducer\n", topics=_PRIORITIES
    ),
    "aioparallel.web.aiohttp": Given(before=_SERVICE_PARTS),
    "aioparallel.web.fastapi": Given(before=_SERVICE_PARTS),
    "aioparallel.web.starlette": Given(before=_SERVICE_PARTS),
    "aioparallel.web.service.ConsumerService": Given(
        before=_SERVICE_PARTS + "from aioparallel.web import ConsumerService\n", topics={"orders": []}, says="True\n"
    ),
    "docs/index.md: A first program": Given(topics={"flights": _FLIGHTS}, lines=10, says=r"(\d \d+ b'N\d'\n){10}"),
    "README.md: A first program": Given(
        topics={"flights": _FLIGHTS}, lines=10, says=r"(flights \d \d+ b'N\d' .*\n){10}"
    ),
    "README.md: A first program 2": Given(
        before=_HANDLE
        + 'consumer = ParallelConsumer("flights", bootstrap_servers="localhost:9092", group_id="application")\n',
        after="await consume()\n",
        topics={"flights": _FLIGHTS},
        ends=10,
    ),
    "README.md: HTTP enrichment": Given(
        instead={"http://customers": "{service}"},
        after='consumer = ParallelConsumer("orders", bootstrap_servers="localhost:9092", group_id="g")'
        + _RUN.replace("handle)", "handler)"),
        before="from aioparallel import ParallelConsumer\n",
        topics={
            "orders": [Outgoing("orders", b"{}", f"c{number}".encode()) for number in range(5)],
            "orders.enriched": [],
        },
        ends=5,
        says="5 0\n",
    ),
    "docs/http.md: HTTP enrichment: `http_handler`": Given(
        instead={"https://customers.example": "{service}"},
        after=_RUN.replace("handle)", "handler)"),
        topics={"orders": _orders("c1", "c2", "nobody", "c7"), "orders.enriched": [], "orders.dlq": []},
        ends=4,
        says="3 1\n",  # nobody is a dead letter; c7 is throttled at first
    ),
    "docs/http.md: Without Kafka, and in Spark": Given(
        instead={"https://customers.example": "{service}"}, says=r"(?s).*c2 \{'order': 2\}.*"
    ),
    "docs/http.md: In your own handler": Given(
        before="class service:\n    async def put(value):\n"
        "        return httpx.Response(429, headers={'Retry-After': '7'})\n\n",
        after='try:\n    await handle(Record("t", 0, 0))\nexcept RetryLater as error:\n    print(error.delay)\n',
        says="7.0\n",
    ),
    "docs/http.md: Your own client": Given(before=_ASK, after="print(handler)", says="<http_handler of ask>\n"),
    "docs/http.md: Test it": Given(before=_ASK, says="200\n"),
    "README.md: Process and produce; failures": Given(
        before=_CUSTOMERS,
        after=_RUN.replace("handle)", "handle)\n    assert not consumer.health().problems"),
        instead={"RetryLater(5)": "RetryLater(0.05)"},
        topics={"orders": _orders("c1", "c2", "nobody", "c7", "c7"), "orders.enriched": [], "orders.dlq": []},
        ends=5,
        says="4 1\n",  # c7 is locked at first; nobody is not found
    ),
    "README.md: Testing your handlers": Given(
        before="async def handle(record):\n    print(record.key, record.value)\n",
        after=_RUN,
        says=r"b'N14228' b'...'\n1 0\n",
    ),
    "README.md: Without Kafka": Given(says=r"(http://a/1 10\n|http://a/22 11\n|http://b/3 10\n){3}"),
    "docs/traces.md: Traces: OpenTelemetry": Given(
        after=_RUN,
        topics={"orders": _orders("c1", "c2"), "orders.enriched": []},
        ends=2,
        says="2 0\n",
    ),
    "aioparallel.observe.traces.opentelemetry.OpenTelemetryTraces": Given(
        before="from aioparallel import ParallelConsumer\nfrom aioparallel.observe.traces import OpenTelemetryTraces\n"
    ),
    "docs/extensions.md: Extensions": Given(
        topics={"orders": _orders("c1", "c2", "c1")},
        ends=3,
        after="print(Path('usage.json').read_text())",
        says=r'(?s).*\{"(c1|c2|nobody)": .*\n',
    ),
    "docs/batches.md: Batches: `batches`": Given(
        before=_DATABASE_ALONE,
        instead={"max_concurrency=4": 'max_concurrency=4, until="end"'},
        topics={"flights": _FLIGHTS},
    ),
    "docs/batches.md: Failures in a batch": Given(
        before=_SERVICE,
        after="await handler(_batch)\nprint(_batch.failures)",
        says=r".*0: ConnectionError\('status 503'\).*\n",
    ),
    "docs/batches.md: Return values": Given(says="1700\n"),
    "docs/batches.md: Test a batch handler": Given(says=r"\{1: ValueError\('empty'\)\}\n"),
    "README.md: Batches and blocking functions": Given(
        before=_DATABASE_ALONE + "class picture:\n    resize = staticmethod(len)\n\n",
        after='for record in (Record("t", 0, 0, value=b"v"),):\n    await handlers["pictures"](record)\n',
    ),
    "docs/health.md: Monitoring: `health()` and `stats()`": Given(topics={"orders": _orders("c1")}, says="ready\n"),
    "docs/metrics.md: Metrics: Prometheus and OpenTelemetry": Given(
        instead={"9400": "0", '"0.0.0.0"': '"127.0.0.1"', 'group_id="billing"': 'group_id="billing", until="end"'},
        topics={"orders": _orders("c1")},
    ),
    "docs/metrics.md: Other ways to serve them": Given(
        instead={"9400": "0", '-{topic}",': '-{topic}", until="end",'},
        topics={"orders": _orders("c1"), "refunds": [Outgoing("refunds", b"1", b"c1")]},
    ),
    "docs/metrics.md: OpenTelemetry": Given(topics={"orders": []}),
    "aioparallel.observe.metrics": Given(before=_CONSUMER),
    "aioparallel.control.offsets_endpoint.OffsetsEndpoint": Given(
        before=_CONSUMER + "from aioparallel.control import OffsetsEndpoint\n"
    ),
    "aioparallel.observe.metrics.prometheus.PrometheusMetrics": Given(
        before=_CONSUMER + "from aioparallel.observe.metrics import PrometheusMetrics\n"
    ),
    "aioparallel.observe.metrics.opentelemetry.OpenTelemetryMetrics": Given(
        before=_CONSUMER + "from aioparallel.observe.metrics import OpenTelemetryMetrics\n"
    ),
    "aioparallel.observe.metrics.serving.serve_metrics": Given(
        before=_HANDLE + 'from aioparallel.observe.metrics import serve_metrics\nconsumer = ParallelConsumer("orders", '
        'bootstrap_servers="localhost:9092", group_id="g", until="end")\n',
        instead={"9400": "0", '"0.0.0.0"': '"127.0.0.1"'},
        topics={"orders": []},
    ),
    "docs/health.md: Logging": Given(topics={"orders": _orders("c1", "c2")}, ends=2),
    "docs/blocking.md: In threads": Given(says="50 threads\n"),
    "docs/blocking.md: In threads 2": Given(
        topics={"orders": _orders("c1", "c2", "c3")},
        ends=3,
        says="(?s).*c3.*",  # of threads that print at once
    ),
    "docs/blocking.md: In processes 2": Given(
        before="from pathlib import Path\n"
        'Path("prices.py").write_text("def total(numbers):\\n    return sum(n * n % 7 for n in numbers)\\n")\n',
        says="done\n",
    ),
    "docs/deduplicate.md: Deduplication: handle each record once": Given(
        instead={'"work"': '"docs-copies"'},  # others have a topic work there
        topics={"docs-copies": _WORK},
        compacted=["enrich-seen"],
        says=r"(b'k\d' b'v'\n){10}4 copies left out\n",
    ),
    "docs/deduplicate.md: How copies are recognised": Given(
        after='made = await clean(Record("raw", 0, 5, b"k", b"v"))\nprint(made.topic, *made.headers)\n',
        says=r"work \('src-topic', b'raw'\) \('src-partition', b'0'\) \('src-offset', b'5'\)\n",
    ),
    "docs/deserializers.md: Deserializers: keys and values as Python objects": Given(
        topics={"flights": _FLIGHTS}, after=_RUN, ends=10, says=r"(N\d UA\n){10}10 0\n"
    ),
    "docs/deserializers.md: Your own": Given(after='print(price(b"12.50"))', says="12.50\n"),
    "docs/failures.md: Failures and outputs": Given(
        before=_HANDLE,
        instead={"max_attempts=5": "max_attempts=5, first_delay=0.01"},
        after=_RUN,
        topics={"orders": [Outgoing("orders", b"poison"), Outgoing("orders", b"good")], "orders.dlq": []},
        ends=2,
        says="1 1\n",
    ),
    "docs/failures.md: Check output topics at the start": Given(
        after="""
try:
    async with consumer:
        print("open")
except TopicNotFound as error:
    print(error)
""",
        topics={"orders": []},
        says=r"topic not found at \S+: orders\.enriched \(an output\); create it first, .*\n",
    ),
    "docs/failures.md: Unreadable records and batches": Given(
        before=_HANDLE,
        after=_RUN,
        topics={"orders": [Outgoing("orders", b"good")]},
        ends=1,
        says="1 0\n",
    ),
    "docs/failures.md: Retry topics": Given(
        before=_HANDLE,
        instead={"5s": "short", ": 5,": ": 0.01,", "1m": "long", ": 60}": ": 0.01}"},
        after='servers = "localhost:9092"\n'
        'consumer = ParallelConsumer("orders", bootstrap_servers=servers, group_id="g", failures=failures)' + _RUN,
        topics={
            "orders": [Outgoing("orders", b"poison"), Outgoing("orders", b"good")],
            "orders.retry.short": [],
            "orders.retry.long": [],
            "orders.dlq": [],
        },
        ends=4,  # the bad one in each of its three topics
        says="1 3\n",
    ),
    "docs/parallel-map.md: Without Kafka: `parallel_map`": Given(says=r"(1 2\n|2 4\n|3 6\n){3}"),
    "docs/parallel-map.md: An async generator to a file": Given(
        after="""
rows = [json.loads(line) for line in open("rooms.jsonl")]
assert len(rows) + len(open("failed.jsonl").readlines()) == 1_000
for sensor in range(7):
    values = [row["value"] for row in rows if row["sensor"] == sensor]
    assert values == sorted(values)
""",
    ),
    "docs/parallel-map.md: Keyed calls over HTTP, in input order": Given(
        instead={"https://api.example.com": "{service}"},
        after='await main([(f"c{number % 3}", number) for number in range(20)])\n',
        says="".join(rf".*'order': {number}\}}\n" for number in range(20)),
    ),
    "docs/parallel-map.md: A blocking source": Given(says="2\n4\n6\n"),
    "docs/parallel-map.md: Middleware": Given(
        before=_FETCH
        + "from aioparallel import parallel_map\n"
        + "class histogram:\n    observe = staticmethod(lambda seconds: print(seconds >= 0))\n\n",
        after='[one async for one in parallel_map(fetch, ["a", "b"], middleware=[timed])]\n',
        says="True\nTrue\n",
    ),
    "docs/parallel-map.md: From programs that are not asynchronous": Given(says=f"{sum(range(100_000)) * 2}\n"),
    "docs/security.md: Security: TLS, SASL and ACLs": Given(
        listener="SSL",
        before=_HANDLE,
        after=_RUN,
        topics={"orders": _orders("c1", "c2")},
        ends=2,
        says="2 0\n",
    ),
    "docs/security.md: Examples": Given(listener="MUTUAL_SSL", after=_CONNECT, says="connected\n"),
    "docs/security.md: Examples 2": Given(listener="SASL_SSL", after=_CONNECT, says="connected\n"),
    "docs/security.md: Examples 3": Given(
        listener="SASL_SSL",
        instead={"https://login.example.org/token": "{service}token"},
        after=_CONNECT,
        says="connected\n",
    ),
    "docs/security.md: Examples 4": Given(
        listener="SASL_SSL", instead={'"orders"': '"listed"'}, topics={"listed": []}, says="True\n"
    ),
    "docs/security.md: A secured broker for tests": Given(
        listener="SASL_SSL",
        after="print(security)",
        says=r"Security\('SASL_SSL', ca_file=.*, mechanism='OAUTHBEARER', token=<function>\)\n",
    ),
    "docs/testing.md: Apache Kafka as a process": Given(
        starts_kafka=True, instead={"await asyncio.sleep(20)": "await asyncio.sleep(0.5)"}
    ),
    "docs/testing.md: Several brokers": Given(starts_kafka=True, says=r"\{0: frozenset\(.*\n"),
    "docs/testing.md: Checkers": Given(
        instead={
            "# where the test produces: delivery.produced(number)\n": """
for offset, number in enumerate((42, 43)):
    delivery.produced(number)
    await handle(Record("numbers", 0, offset, b"k", b"%d" % number))
assert not delivery.lost()
"""
        },
    ),
    "aioparallel": Given(topics={"flights": _FLIGHTS}, ends=10),
    "aioparallel.handlers.batches": Given(
        before=_DATABASE,
        after="await consumer.__aexit__(None, None, None)\nprint(database.rows)",
        topics={"flights": _FLIGHTS},
        says="10\n",
    ),
    "aioparallel.consumer.ParallelConsumer": Given(before=_HANDLE, topics={"flights": _FLIGHTS}, ends=10),
    "aioparallel.mapping.parallel_map": Given(
        before=_FETCH + "from aioparallel import parallel_map\nurls.pop()\n", says=r"(a/1 3\n|a/22 4\n){2}"
    ),
    "aioparallel.testing.memory.broker.InMemoryBroker": Given(
        before=_HANDLE,
        after='consumer = ParallelConsumer("orders", group_id="billing", client=client)' + _RUN,
        ends=1,
        says="1 0\n",
    ),
    "aioparallel.testing.memory.client.InMemoryClient": Given(before=_HANDLE + _IN_MEMORY, ends=10),
}
