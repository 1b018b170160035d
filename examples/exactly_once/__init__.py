"""Exactly once: statistics of delays, made while members are killed, equal those computed from the file."""
