"""Compares two commits: ``python -m benchmarks compare``."""
