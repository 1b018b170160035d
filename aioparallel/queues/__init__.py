"""Queues on Kafka: records that are acknowledged one by one, and topics of different urgency."""
