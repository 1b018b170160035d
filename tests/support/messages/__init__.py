"""Messages of Kafka's protocol, for tests of ``aioparallel.clients.messages``.

::

    definitions.py  random messages as Kafka's definitions allow them, as JSON
    as_json.py      our messages as the JSON of Kafka's converters
    random.py       strategies of Hypothesis for our messages
"""
