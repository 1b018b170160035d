"""``aioparallel store``: the tables in which positions are kept beside results."""
