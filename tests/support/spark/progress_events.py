"""What Spark 4.2.0 has sent to a listener: progress of queries as JSON, as it was captured, and exceptions.

A topic ``raw`` of three partitions with 1,000 records, read by 400 a batch; without a limit; a rate source; real-time
mode in batches of 5 s; Kafka and rate in one query.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

FIRST = json.loads(
    '{"id":"001af46d-a51c-428d-9c4d-9596f2b75330","runId":"96683193-05a7-4a92-8d0c-4ebf8e2e18a6","name":"'
    'flights","timestamp":"2026-11-22T08:54:25.464Z","batchId":0,"batchDuration":4480,"numInputRows":400,'
    '"inputRowsPerSecond":0.0,"processedRowsPerSecond":89.3,"durationMs":{"addBatch":2758,"commitOffsets"'
    ':151,"getBatch":36,"latestOffset":843,"queryPlanning":548,"triggerExecution":4473,"walCommit":96},"s'
    'tateOperators":[],"sources":[{"description":"KafkaV2[Subscribe[raw]]","startOffset":null,"endOffset"'
    ':{"raw":{"0":176,"1":136,"2":88}},"latestOffset":{"raw":{"0":440,"1":340,"2":220}},"numInputRows":40'
    '0,"inputRowsPerSecond":0.0,"processedRowsPerSecond":89.3,"metrics":{"avgOffsetsBehindLatest":"200.0"'
    ',"maxOffsetsBehindLatest":"264","minOffsetsBehindLatest":"132"}}],"sink":{"description":"NoopTable",'
    '"numOutputRows":400}}'
)
SECOND = json.loads(
    '{"id":"001af46d-a51c-428d-9c4d-9596f2b75330","runId":"96683193-05a7-4a92-8d0c-4ebf8e2e18a6","name":"'
    'flights","timestamp":"2026-11-22T08:54:30.023Z","batchId":1,"batchDuration":484,"numInputRows":400,"'
    'inputRowsPerSecond":87.7,"processedRowsPerSecond":826.4,"durationMs":{"addBatch":239,"commitOffsets"'
    ':76,"getBatch":2,"latestOffset":3,"queryPlanning":61,"triggerExecution":483,"walCommit":100},"stateO'
    'perators":[],"sources":[{"description":"KafkaV2[Subscribe[raw]]","startOffset":{"raw":{"0":176,"1":1'
    '36,"2":88}},"endOffset":{"raw":{"0":352,"1":272,"2":176}},"latestOffset":{"raw":{"0":440,"1":340,"2"'
    ':220}},"numInputRows":400,"inputRowsPerSecond":87.7,"processedRowsPerSecond":826.4,"metrics":{"avgOf'
    'fsetsBehindLatest":"66.7","maxOffsetsBehindLatest":"88","minOffsetsBehindLatest":"44"}}],"sink":{"de'
    'scription":"NoopTable","numOutputRows":400}}'
)
THIRD = json.loads(
    '{"id":"001af46d-a51c-428d-9c4d-9596f2b75330","runId":"96683193-05a7-4a92-8d0c-4ebf8e2e18a6","name":"'
    'flights","timestamp":"2026-11-22T08:54:30.513Z","batchId":2,"batchDuration":399,"numInputRows":200,"'
    'inputRowsPerSecond":408.2,"processedRowsPerSecond":501.3,"durationMs":{"addBatch":190,"commitOffsets'
    '":102,"getBatch":1,"latestOffset":3,"queryPlanning":18,"triggerExecution":397,"walCommit":79},"state'
    'Operators":[],"sources":[{"description":"KafkaV2[Subscribe[raw]]","startOffset":{"raw":{"0":352,"1":'
    '272,"2":176}},"endOffset":{"raw":{"0":440,"1":340,"2":220}},"latestOffset":{"raw":{"0":440,"1":340,"'
    '2":220}},"numInputRows":200,"inputRowsPerSecond":408.2,"processedRowsPerSecond":501.3,"metrics":{"av'
    'gOffsetsBehindLatest":"0.0","maxOffsetsBehindLatest":"0","minOffsetsBehindLatest":"0"}}],"sink":{"de'
    'scription":"NoopTable","numOutputRows":200}}'
)
UNNAMED = json.loads(
    '{"id":"477c2fee-f170-4db6-a721-6899ff9783c9","runId":"5e193cbe-7f87-483b-a533-4ed8daf1a7de","name":n'
    'ull,"timestamp":"2026-11-22T08:54:32.179Z","batchId":0,"batchDuration":1085,"numInputRows":1000,"inp'
    'utRowsPerSecond":0.0,"processedRowsPerSecond":921.7,"durationMs":{"addBatch":739,"commitOffsets":85,'
    '"getBatch":4,"latestOffset":145,"queryPlanning":16,"triggerExecution":1085,"walCommit":94},"stateOpe'
    'rators":[],"sources":[{"description":"KafkaV2[Subscribe[raw]]","startOffset":null,"endOffset":{"raw"'
    ':{"0":440,"1":340,"2":220}},"latestOffset":{"raw":{"0":440,"1":340,"2":220}},"numInputRows":1000,"in'
    'putRowsPerSecond":0.0,"processedRowsPerSecond":921.7,"metrics":{"avgOffsetsBehindLatest":"0.0","maxO'
    'ffsetsBehindLatest":"0","minOffsetsBehindLatest":"0"}}],"sink":{"description":"NoopTable","numOutput'
    'Rows":1000}}'
)
RATE = json.loads(
    '{"id":"0c4dcaed-0e0d-4c7f-aa1c-c3c1ad844b2b","runId":"f4f6732f-1e77-4368-9533-f819f1562452","name":"'
    'rate","timestamp":"2026-11-22T08:54:42.910Z","batchId":1,"batchDuration":269,"numInputRows":1,"input'
    'RowsPerSecond":83.3,"processedRowsPerSecond":3.7,"durationMs":{"addBatch":120,"commitOffsets":67,"ge'
    'tBatch":0,"latestOffset":0,"queryPlanning":17,"triggerExecution":269,"walCommit":63},"stateOperators'
    '":[],"sources":[{"description":"RateStreamV2[rowsPerSecond=1, rampUpTimeSeconds=0, numPartitions=def'
    'ault","startOffset":0,"endOffset":1,"latestOffset":1,"numInputRows":1,"inputRowsPerSecond":83.3,"pro'
    'cessedRowsPerSecond":3.7}],"sink":{"description":"NoopTable","numOutputRows":1}}'
)
REAL_TIME = json.loads(
    '{"id":"3b148904-009f-4c37-a937-e92c0bf22570","runId":"038a2077-4281-4057-9e3e-c7ed37e167a2","name":"'
    'rtm","timestamp":"2026-11-22T08:54:50.080Z","batchId":0,"batchDuration":5353,"numInputRows":1700,"in'
    'putRowsPerSecond":0.0,"processedRowsPerSecond":317.6,"durationMs":{"addBatch":5053,"commitOffsets":7'
    '3,"getBatch":3,"latestOffset":115,"queryPlanning":24,"triggerExecution":5351,"walCommit":75},"stateO'
    'perators":[],"sources":[{"description":"KafkaV2[Subscribe[raw]]","startOffset":null,"endOffset":{"ra'
    'w":{"0":748,"1":578,"2":374}},"latestOffset":{"raw":{"0":528,"1":408,"2":264}},"numInputRows":1700,"'
    'inputRowsPerSecond":0.0,"processedRowsPerSecond":317.6,"metrics":{"avgOffsetsBehindLatest":"0.0","ma'
    'xOffsetsBehindLatest":"0","minOffsetsBehindLatest":"0"}}],"sink":{"description":"org.apache.spark.sq'
    'l.kafka010.KafkaSourceProvider$KafkaTable@7e9ffd3c","numOutputRows":1700}}'
)
TWO_SOURCES = json.loads(
    '{"id":"7521a799-e858-49b6-a813-986f46095fd9","runId":"5200ecae-d36d-4b08-8548-b91d4249741c","name":"'
    'two","timestamp":"2026-11-22T08:55:03.802Z","batchId":0,"batchDuration":1198,"numInputRows":2300,"in'
    'putRowsPerSecond":0.0,"processedRowsPerSecond":1919.9,"durationMs":{"addBatch":841,"commitOffsets":7'
    '4,"getBatch":4,"latestOffset":112,"queryPlanning":68,"triggerExecution":1197,"walCommit":92},"stateO'
    'perators":[],"sources":[{"description":"KafkaV2[Subscribe[raw]]","startOffset":null,"endOffset":{"ra'
    'w":{"0":1012,"1":782,"2":506}},"latestOffset":{"raw":{"0":1012,"1":782,"2":506}},"numInputRows":2300'
    ',"inputRowsPerSecond":0.0,"processedRowsPerSecond":1919.9,"metrics":{"avgOffsetsBehindLatest":"0.0",'
    '"maxOffsetsBehindLatest":"0","minOffsetsBehindLatest":"0"}},{"description":"RateStreamV2[rowsPerSeco'
    'nd=1, rampUpTimeSeconds=0, numPartitions=default","startOffset":null,"endOffset":0,"latestOffset":0,'
    '"numInputRows":0,"inputRowsPerSecond":0.0,"processedRowsPerSecond":0.0}],"sink":{"description":"Noop'
    'Table","numOutputRows":2300}}'
)

JAVA_ERROR = (
    "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] boom\nsecond line SQLSTATE: P0001\n"
    "\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:2987)\n"
    "\tat org.apache.spark.sql.errors.QueryExecutionErrors.raiseError(QueryExecutionErrors.scala)\n"
)
PYTHON_ERROR = (
    "org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
    'Traceback (most recent call last):\n  File "job.py", line 41, in bad\n    raise ValueError("row 7: no tail number'
    '\\nmore")\nValueError: row 7: no tail number\nmore\n SQLSTATE: 38000\n'
    "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:665)\n"
)
FOREACH_BATCH_ERROR = (
    "py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call "
    'last):\n  File "py4j/clientserver.py", line 644, in _call_proxy\n    return_value = getattr(self.pool[obj_id], '
    'method)(*params)\n                   ^^^^^^^^^^^^\n  File "job.py", line 47, in fb\n    def fb(df, i): raise '
    'ValueError("in foreachBatch")\n                   ^^^^^^^^^^^\nValueError: in foreachBatch\n\n'
    "\tat py4j.Protocol.getReturnValue(Protocol.java:476)\n"
)


def progress(event: dict[str, Any], **changes: object) -> QueryProgressEvent:
    """As Spark Connect makes it of such JSON."""
    return QueryProgressEvent.fromJson({"progress": {**event, **changes}})


def started(event: dict[str, Any]) -> QueryStartedEvent:
    """The start of the query that this progress is of."""
    return QueryStartedEvent.fromJson({name: event[name] for name in ("id", "runId", "name", "timestamp")})


def idle(event: dict[str, Any]) -> QueryIdleEvent:
    """The query of this progress has found nothing new."""
    return QueryIdleEvent.fromJson({name: event[name] for name in ("id", "runId", "timestamp")})


def terminated(event: dict[str, Any], exception: str | None = None) -> QueryTerminatedEvent:
    """The end of the query that this progress is of."""
    ids = {name: event[name] for name in ("id", "runId")}
    return QueryTerminatedEvent.fromJson({**ids, "exception": exception, "errorClassOnException": None})
