"""An Apache Kafka set otherwise: it asks for logins and permissions, creates topics by itself, keeps short texts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from aioparallel.testing.brokers.local import LocalKafka

__all__ = ["PROPERTIES", "allow", "login"]

PROPERTIES = {
    "listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.plaintext.plain.sasl.jaas.config": (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="admin" password="admin-secret" user_admin="admin-secret" user_alice="alice-secret";'
    ),
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",
    "auto.create.topics.enable": "true",
    "offset.metadata.max.bytes": "10",
}


def login(user: str, password: str | None = None) -> dict[str, object]:
    """The client options of a user."""
    return {
        "metadata_max_age_ms": 200,
        "sasl_plain_password": password or f"{user}-secret",
        "sasl_plain_username": user,
        "security_protocol": "SASL_PLAINTEXT",
    }


def allow(strict: LocalKafka, kind: ResourceType, name: str, operation: AclOperation) -> None:
    """Give alice a permission."""
    config = {
        "bootstrap.servers": strict.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": "admin-secret",
    }
    pattern, permission = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    binding = AclBinding(kind, name, pattern, "User:alice", "*", operation, permission)
    admin = AdminClient(config)
    created: Mapping[object, asyncio.Future[None]] = admin.create_acls([binding])
    for result in created.values():
        result.result()
