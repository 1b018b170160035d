"""aioparallel inside Apache Spark (extra ``[spark]``): async handlers on the rows of a DataFrame, in order of key."""
