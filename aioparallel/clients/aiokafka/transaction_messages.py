"""Requests of Kafka transactions that aiokafka lacks, for ``transaction.version`` 2.

Newer versions of Produce and OffsetFetch identify topics by ids, which aiokafka does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from io import BytesIO
from typing import cast

from aiokafka.protocol.api import ResponseHeader_v0
from aiokafka.protocol.types import CompactArray, CompactString, Int16, TaggedFields

from aioparallel.clients.aiokafka.message_classes import OneVersion, request_class

__all__ = ["ApiVersions", "EndTxn", "InitProducerId", "OffsetFetch", "Produce", "TxnOffsetCommit", "finalized_features"]

_PRODUCER_ID = "throttle_time_ms:int32 error_code:int16 producer_id:int64 producer_epoch:int16"
_POSITION = "partition:int32 offset:int64 leader_epoch:int32 metadata:string"

Produce = partial(
    OneVersion,
    request_class(
        "Produce",
        0,
        12,
        request=(
            "transactional_id:string acks:int16 timeout_ms:int32 "
            "topics:[ topic:string partitions:[ partition:int32 records:bytes ] ]"
        ),
        response=(
            "topics:[ topic:string partitions:[ partition:int32 error_code:int16 offset:int64 timestamp:int64 "
            "log_start_offset:int64 record_errors:[ batch_index:int32 message:string ] error_message:string ] ] "
            "throttle_time_ms:int32"
        ),
    ),
)
InitProducerId = partial(
    OneVersion,
    request_class(
        "InitProducerId",
        22,
        5,
        request="transactional_id:string transaction_timeout_ms:int32 producer_id:int64 producer_epoch:int16",
        response=_PRODUCER_ID,
    ),
)
TxnOffsetCommit = partial(
    OneVersion,
    request_class(
        "TxnOffsetCommit",
        28,
        5,
        request=(
            "transactional_id:string group_id:string producer_id:int64 producer_epoch:int16 generation_id:int32 "
            f"member_id:string group_instance_id:string topics:[ topic:string partitions:[ {_POSITION} ] ]"
        ),
        response="throttle_time_ms:int32 topics:[ topic:string partitions:[ partition:int32 error_code:int16 ] ]",
    ),
)
EndTxn = partial(
    OneVersion,
    request_class(
        "EndTxn",
        26,
        5,
        request="transactional_id:string producer_id:int64 producer_epoch:int16 committed:bool",
        response=_PRODUCER_ID,
    ),
)
OffsetFetch = partial(
    OneVersion,
    request_class(
        "OffsetFetch",
        9,
        7,
        request="group_id:string topics:[ topic:string partitions:[]int32 ] require_stable:bool",
        response=(
            f"throttle_time_ms:int32 topics:[ topic:string partitions:[ {_POSITION} error_code:int16 ] ] "
            "error_code:int16"
        ),
    ),
)

_ApiVersions = request_class(
    "ApiVersions",
    18,
    3,
    request="software_name:string software_version:string",
    response="error_code:int16 api_keys:[ api_key:int16 least:int16 most:int16 ] throttle_time_ms:int32",
)
# The response's header has version 0 in every version, because a client may not know flexible ones.
_ApiVersions.parse_response_header = lambda _request, data: ResponseHeader_v0.decode(data)
ApiVersions = partial(OneVersion, _ApiVersions, "aioparallel", "1")

_FEATURES = CompactArray(("name", CompactString("utf-8")), ("most", Int16), ("least", Int16), ("tags", TaggedFields))


def finalized_features(tags: Mapping[int, bytes]) -> dict[str, int]:
    """The finalized features of the cluster with their levels, from the tagged fields of an ApiVersions answer."""
    if 2 not in tags:
        return {}
    found = cast("list[tuple[str, int, int, object]]", _FEATURES.decode(BytesIO(tags[2])) or [])
    return {name: most for name, most, _least, _tags in found}
