"""Exactly once: statistics of delays, made while members are killed, equal to those computed from the file."""
