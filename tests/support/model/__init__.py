"""What the sync core should do, in plain lists and sets, and what may happen to it.

::

    model.py      records, lanes and maps, recounted each time
    group.py      logs with gaps, and a coordinator that refuses or forgets commits
    assignments.py   partitions that come and go
    moves.py      all that may happen to both
    core.py       the sync core beside the model
    batch_kinds.py, gathered.py, batches.py
                  batch handlers; what is gathered and started together; how calls end
"""
