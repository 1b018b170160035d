"""Makes aiokafka's classes for requests in versions that aiokafka lacks, from Kafka's message definitions."""

from __future__ import annotations

from typing import Any

from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import Schema

__all__ = ["request_class"]


def request_class(
    name: str, *, api_key: int, version: int, request: Schema, response: Schema, is_flexible: bool = True
) -> Any:
    """A class for the request, whose ``RESPONSE_TYPE`` is one for the response."""
    common = {"API_KEY": api_key, "API_VERSION": version}
    answer = type(f"{name}Response_v{version}", (Response,), {**common, "SCHEMA": response})
    attributes = {**common, "FLEXIBLE_VERSION": is_flexible, "RESPONSE_TYPE": answer, "SCHEMA": request}
    return type(f"{name}Request_v{version}", (RequestStruct,), attributes)
