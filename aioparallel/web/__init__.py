"""Consumers inside web applications: they start and stop with the application, may be restarted, and have probes.

::

    fastapi.py, starlette.py, aiohttp.py   running(): the lifespan; health_router(), health_routes()

    service.py      ConsumerService: one consumer, running for the length of a block
    services.py     Consumers: several of them
    supervisor.py   makes, runs, closes and restarts the consumer of a service
    restarts.py     RestartPolicy
    answers.py      responses of the routes

Only the modules named after a web framework import one. How to: ``docs/embedding.md``.
"""

from aioparallel.web.restarts import RestartPolicy
from aioparallel.web.service import ConsumerService, OnFailure
from aioparallel.web.services import Consumers

__all__ = ["ConsumerService", "Consumers", "OnFailure", "RestartPolicy"]
