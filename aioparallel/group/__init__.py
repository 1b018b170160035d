"""One member of a consumer group: it reads partitions and feeds them to the engine, and commits what has ended."""
