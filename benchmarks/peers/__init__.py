"""Contestants outside this checkout: the Java Parallel Consumer, and Python libraries in environments of their own."""
