"""Two commits side by side: ``python -m benchmarks compare``."""
