"""``aioparallel store``: tables that keep positions in the database of the results."""
