"""What the benchmark still has of the demo, which is in examples/flights; it goes with it."""
