package aioparallel.bench;

/** A line of the benchmark: one round, for a new group. {@code evidence} is an existing folder. */
record Order(int round, String group, String evidence) {}
