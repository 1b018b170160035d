"""Consumers inside web applications: started and stopped with them, restarted if asked, with routes for probes.

::

    fastapi.py, starlette.py, aiohttp.py   running(): the lifespan; health_router(), health_routes()

    service.py    ConsumerService: one consumer, kept running for the length of a block
    services.py   Consumers: several of them
    lives.py      services that begin and end together
    keeper.py     one life of a service: made, opened, run, closed, made anew
    restarts.py   RestartPolicy
    signals.py    the signals that end a server
    answers.py    what the routes answer

Nothing here imports a web framework but the module of that name. How to: ``docs/embedding.md``.
"""

from aioparallel.web.restarts import RestartPolicy
from aioparallel.web.service import ConsumerService, OnFailure
from aioparallel.web.services import Consumers

__all__ = ["ConsumerService", "Consumers", "OnFailure", "RestartPolicy"]
