"""What Java programs need: a Java runtime, and jars fetched once with Maven."""
