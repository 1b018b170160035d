"""Messages of Kafka's protocol that aiokafka lacks, independent of any client.

::

    wire.py             primitives: numbers, and what ends a message early
    codecs.py           fields
    schema.py           whole messages, made from dataclasses
    api.py              a request and its response, with their versions
    configs.py          IncrementalAlterConfigs
    consumer_groups.py  ConsumerGroupHeartbeat, ConsumerGroupDescribe (KIP-848)
    share_groups.py     ShareGroupHeartbeat, ShareGroupDescribe (KIP-932)
    share_records.py    ShareFetch, ShareAcknowledge
    share_offsets.py    DescribeShareGroupOffsets, AlterShareGroupOffsets, DeleteShareGroupOffsets
    assignments.py      partitions in assignments, ids of members

``aiokafka/typed_requests.py`` sends them. Names, types and defaults are those of Kafka's message definitions.
"""

from typing import Any, Final

from aioparallel.clients.messages.api import Api
from aioparallel.clients.messages.configs import INCREMENTAL_ALTER_CONFIGS
from aioparallel.clients.messages.consumer_groups import CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_HEARTBEAT
from aioparallel.clients.messages.schema import decode, encode
from aioparallel.clients.messages.share_groups import SHARE_GROUP_DESCRIBE, SHARE_GROUP_HEARTBEAT
from aioparallel.clients.messages.share_offsets import (
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
    DESCRIBE_SHARE_GROUP_OFFSETS,
)
from aioparallel.clients.messages.share_records import SHARE_ACKNOWLEDGE, SHARE_FETCH
from aioparallel.clients.messages.wire import MalformedMessage, UnencodableMessage

__all__ = ["APIS", "Api", "MalformedMessage", "UnencodableMessage", "decode", "encode"]

APIS: Final[tuple[Api[Any, Any], ...]] = (
    INCREMENTAL_ALTER_CONFIGS,
    CONSUMER_GROUP_HEARTBEAT,
    CONSUMER_GROUP_DESCRIBE,
    SHARE_GROUP_HEARTBEAT,
    SHARE_GROUP_DESCRIBE,
    SHARE_FETCH,
    SHARE_ACKNOWLEDGE,
    DESCRIBE_SHARE_GROUP_OFFSETS,
    ALTER_SHARE_GROUP_OFFSETS,
    DELETE_SHARE_GROUP_OFFSETS,
)
"""All of them, by their numbers in the protocol."""
