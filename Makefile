# `make demo`, `make pipeline`, `make bench` and `make test` install what they need and are quick the second time.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help demo exactly-once pipeline bench bench-tests bench-all test more-tests test-groups docs site spark-jars lint format unit unit-newer spark-older explore chaos mutations load-memory load-hot load-long-handler load-partitions load-brokers load-rebalances load-failures load-exactly-once load-sql load-state load-upgrade load-group-protocol load-kmq load-share-kills load-map load-spark load-spark-ends load-pipeline load-rows load-metrics clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /	/' | expand -t 20

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install it, or set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade pip

$(VENV)/.examples: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable '.[examples]'
	@touch $@

$(VENV)/.pipeline: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable '.[examples,spark]'
	@touch $@

$(VENV)/.bench: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable '.[benchmarks]'
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/.examples $(VENV)/.pipeline $(VENV)/.bench

$(VENV)/.mutations: $(VENV)/bin/python pyproject.toml
	$(PIP) --editable '.[mutations]'
	@touch $@ $(VENV)/.dev $(VENV)/.examples $(VENV)/.pipeline $(VENV)/.bench

demo: $(VENV)/.examples  ## enrich 20,000 real flights over HTTP: a plain loop against aioparallel
	$(BIN)/python -m examples.flights $(ARGS)

exactly-once: $(VENV)/.examples  ## 40,000 flights through Kafka transactions with killed members; totals must equal the file's (1 minute)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m examples.exactly_once $(ARGS)

pipeline: $(VENV)/.pipeline  ## 336,776 flights: Kafka, Spark, aioparallel, Spark, a plot (5 minutes; ARGS="--flights 20000")
	@$(BIN)/python -m aioparallel.jvm kafka --directory
	@$(BIN)/python -m aioparallel.jvm --directory
	$(BIN)/python -m examples.flights_pipeline $(ARGS)

bench: $(VENV)/.bench  ## benchmark aioparallel and other libraries (an hour; ARGS=--quick: a few minutes)
	$(BIN)/python -m benchmarks $(ARGS)

bench-tests: $(VENV)/.bench  ## tests of the benchmark that compare whole runs, and most programs with wrong answers (10 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -m slow tests/benchmarks $(ARGS)

# As in benchmarks/blocks.py; a test compares them.
PROGRAMS := deserializers parallel_map kmq share priority transactions sql_store database http_clients blocking spark spark_latency spark_tuning
bench-all: $(VENV)/.dev  ## the full run: bench and all other benchmark programs; updates the figures on the pages (two hours)
	trap 'exit 130' INT; $(BIN)/python -m benchmarks; \
	failed=$$?; \
	for name in $(PROGRAMS); do $(BIN)/python -m benchmarks.$$name || failed=1; done; \
	exit $$failed

# What Apache Kafka and Spark need.
PREPARE := $(BIN)/python -m aioparallel.testing.local_kafka --prepare && \
	$(BIN)/python -m aioparallel.jvm spark --directory && \
	$(BIN)/python -m tests.support.spark.class_archive

# Hundreds of processes import the same modules. Compile these once, even if the environment forbids bytecode files. And
# collect first: without bytecode each of the four processes would compile all tests.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.dev  ## all tests, also on Apache Kafka 4.3.1 and Spark 4.3.0 (Maven fetches the jars the first time)
	$(BIN)/python -m pytest --collect-only -qq >/dev/null & $(PREPARE) && wait
	$(BIN)/python -m pytest -m "not slow" -n 4 --dist loadfile --no-loadscope-reorder $(ARGS)

more-tests: $(VENV)/.dev  ## tests that take too long for `make test` and have no other target (10 minutes)
	$(PREPARE)
	$(BIN)/python -m pytest -m slow -n 4 --dist loadfile --no-loadscope-reorder \
		tests/contract tests/docs tests/examples tests/integration tests/interop tests/unit \
		$(addprefix tests/spark/test_,backfill_output.py exploded.py flights_pipeline.py workers.py) $(ARGS)

test-groups: export GROUP_PROTOCOL := consumer
test-groups: $(VENV)/.dev  ## the tests of consumers on Apache Kafka, as members of the new group protocol (10 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -m "real and not classic_protocol" -n 3 --dist loadfile --no-loadscope-reorder \
		--ignore-glob "*/brokers" --ignore-glob "*/messages" --ignore-glob "*/share" tests/integration $(ARGS)
	$(BIN)/python -m pytest -m "real and not slow and not classic_protocol" -n 3 --dist loadfile --no-loadscope-reorder \
		tests/load $(ARGS)

spark-jars: $(VENV)/.dev  ## fetch the jars of Spark's Kafka connector with Maven, and print their paths
	@$(BIN)/python -m aioparallel.jvm spark --directory

unit: $(VENV)/.dev  ## the tests without a broker
	$(BIN)/python -m pytest tests/unit $(ARGS)

NEWER ?= python3.13
NEWER_VENV := .venv-newer
unit-newer:  ## the unit tests and some chaos on a newer Python (NEWER=python3.13), in a separate environment
	$(NEWER) -m venv $(NEWER_VENV)
	$(NEWER_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(NEWER_VENV)/bin/python -m pytest tests/unit tests/simulation/test_chaos.py $(ARGS)

OLDER_SPARK ?= 4.2.0
SPARK_VENV := .venv-spark
spark-older:  ## the Spark tests on an older PySpark (OLDER_SPARK=4.2.0), in a separate environment; JAVA_HOME selects another Java
	test -x $(SPARK_VENV)/bin/python || $(PYTHON) -m venv $(SPARK_VENV)
	$(SPARK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(SPARK_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'pyspark[pipelines]==$(OLDER_SPARK)'
	$(SPARK_VENV)/bin/python -m aioparallel.jvm spark --directory
	$(SPARK_VENV)/bin/python -m pytest tests/spark tests/unit/spark $(ARGS)

SEED ?= $(shell od -An -N4 -tu4 /dev/urandom | tr -d ' ')
explore: SEED := $(SEED)
explore: $(VENV)/.dev  ## property tests with 15 times the examples, new ones each time (SEED=n repeats seed n; 30 minutes)
	@echo "to repeat this run: make explore SEED=$(SEED)"
	$(BIN)/python -m pytest tests/unit tests/integration/stores -m hypothesis --hypothesis-profile=explore --hypothesis-seed=$(SEED) $(ARGS)

SEEDS ?= 10000
chaos: $(VENV)/.dev  ## whole groups under seeded faults, in virtual time (SEEDS=10000: 12 minutes on 2 cores)
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(ARGS)

ROOM ?= engine
mutations: $(VENV)/.mutations  ## mutation tests of a package: changes that no test detects (ROOM=engine SAMPLE=200 SEED=1; 10 minutes)
	$(BIN)/python -m tests.mutations $(ROOM) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(filter file,$(origin SEED)),,--seed $(SEED)) $(ARGS)

docs: $(VENV)/.dev  ## write docs/reference.md from the code, and the picture of docs/index.md
	$(BIN)/python -m docs.reference
	$(BIN)/python -m docs.picture

site: export NO_MKDOCS_2_WARNING := 1
site: $(VENV)/.dev  ## build the pages as a site, in the folder site, and check its links (half a minute)
	$(BIN)/python -m mkdocs build --strict

lint: $(VENV)/.dev  ## ruff, strict types, import direction
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

load-memory: $(VENV)/.dev  ## 2,000,000 records behind a slow handler: memory stays flat (2 minutes)
	$(BIN)/python -m pytest tests/load/test_memory.py $(ARGS)

load-map: $(VENV)/.dev  ## 10,000,000 items through parallel_map: memory stays flat (2 minutes)
	$(BIN)/python -m pytest -s tests/load/test_parallel_map.py $(ARGS)

load-spark: $(VENV)/.dev  ## 2,000,000 rows through the Spark operator, and rows and results of 100 kB: the workers' memory stays flat (5 minutes)
	$(BIN)/python -m aioparallel.jvm
	$(BIN)/python -m pytest -s tests/spark/test_memory.py $(ARGS)

load-spark-ends: $(VENV)/.dev  ## tasks that Spark ends early, twenty times in each way: counts calls that start after the end (8 minutes)
	$(BIN)/python -m aioparallel.jvm spark --directory
	$(BIN)/python -m pytest -s tests/load/test_spark_ends.py $(ARGS)
	$(BIN)/python -m pytest -m slow tests/spark/test_connect.py tests/spark/test_operator_connect.py $(ARGS)

load-pipeline: $(VENV)/.dev  ## the flights pipeline with Spark and the consumer killed five times each: each flight once, in order (6 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m aioparallel.jvm
	$(BIN)/python -m pytest -s tests/load/test_flights_kills.py $(ARGS)

load-rows: $(VENV)/.dev  ## Spark's driver killed at ten random moments, with sink and topic: each row once (SEED=1; 10 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m aioparallel.jvm
	$(BIN)/python -m pytest -s tests/load/test_rows_kills.py $(ARGS)
	$(BIN)/python -m pytest -m slow tests/spark/test_backfill_output.py $(ARGS)

load-metrics: $(VENV)/.dev  ## metrics of a worker through load, retries, a rebalance and a dead broker against what its handlers counted; remaining work after kills (10 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -m slow tests/load/test_metrics.py tests/load/test_remaining.py $(ARGS)

load-hot: $(VENV)/.dev  ## a hot key and a hot partition: no other key or partition starves (2 minutes)
	$(BIN)/python -m pytest tests/load/test_hot_key.py tests/load/test_hot_partition.py $(ARGS)

load-long-handler: $(VENV)/.dev  ## a handler of 3 minutes with a session timeout of 10 s: no rebalance, no repeated record
	$(BIN)/python -m pytest -s tests/load/test_long_handlers.py $(ARGS)

load-kmq: $(VENV)/.dev  ## a queue of 200,000 records with members and trackers killed every 5 s: no record lost (5 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -s tests/load/test_kmq_kills.py $(ARGS)

load-share-kills: $(VENV)/.dev  ## a share group of 200,000 records with members killed and frozen every 5 s, and another one whose brokers are killed, too (SEED=1; 6 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -s tests/load/test_share_kills.py $(ARGS)

load-exactly-once: $(VENV)/.dev  ## 200,000 records in transactions with members killed, frozen, joining and leaving: each once (3 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -s tests/load/test_exactly_once.py $(ARGS)

load-sql: $(VENV)/.dev  ## 100,000 records into PostgreSQL with their positions, with killed members and a restarted server: each once (8 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -s tests/load/test_sql_store.py $(ARGS)

load-state: $(VENV)/.dev  ## sums of 200,000 records with killed members, and a million keys killed and restored (5 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -s tests/load/test_state.py $(ARGS)

FROM ?= 2698a47
load-upgrade: export UPGRADE_FROM := $(FROM)
load-upgrade: $(VENV)/.dev  ## members of an older revision and of this one in one group, and back: no record lost (FROM=2698a47; 5 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -s tests/load/test_upgrade.py $(ARGS)

load-group-protocol: $(VENV)/.dev  ## members change from the classic group protocol to the new one under load, and back (5 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest -s tests/load/test_group_protocol_upgrade.py $(ARGS)

load-partitions: $(VENV)/.dev  ## 500 partitions, also with full maps: the event loop is never blocked for long (1 minute)
	$(BIN)/python -m pytest tests/load/test_partitions.py $(ARGS)

load-brokers: $(VENV)/.dev  ## three brokers killed, frozen and restarted during process and produce, and failing followers (17 minutes)
	$(BIN)/python -m pytest tests/load/test_three_brokers.py tests/load/test_unclean_election.py tests/load/test_followers.py $(ARGS)

SECONDS ?= 300
load-rebalances: export SECONDS := $(SECONDS)
load-rebalances: $(VENV)/.dev  ## members of both group protocols come and go, and the coordinator is killed: only what moves pauses (SECONDS=300; 9 minutes)
	$(BIN)/python -m aioparallel.testing.local_kafka --prepare
	$(BIN)/python -m pytest tests/load/test_rebalances.py $(ARGS)

load-failures: $(VENV)/.dev  ## poison records, hanging handlers, dead brokers, outputs, at full size (8 minutes)
	$(BIN)/python -m pytest tests/load/test_process_and_produce.py tests/load/test_poison.py tests/load/test_hanging.py tests/load/test_parked.py $(ARGS)

format: $(VENV)/.dev  ## format the code with ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environments, the caches and the site of this folder
	rm -rf $(VENV) $(NEWER_VENV) $(SPARK_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .mutations site
