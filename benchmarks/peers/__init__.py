"""Contestants outside this checkout: the Java Parallel Consumer, and Python libraries in virtual environments."""
