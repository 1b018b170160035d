"""``aioparallel bench``: this library and its peers on the same records, in one run, with the promises checked."""
