"""The tests, and the programs of their children; ``GROUP_PROTOCOL=consumer`` makes all of them members of the new group
protocol."""

import os

if os.environ.get("GROUP_PROTOCOL") == "consumer":
    from tests.support.kafka.group_protocol import play_consumer_protocol

    play_consumer_protocol()
