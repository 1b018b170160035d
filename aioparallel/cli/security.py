"""The fields of Security as options. Secrets come from files or environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Annotated, Final, Literal

from cyclopts import Group, Parameter

from aioparallel.cli.meanings import means, of_dataclass
from aioparallel.config.security import Security
from aioparallel.records.errors import ConfigurationError

__all__ = ["Secure"]

SECURITY: Final = Group("Security", sort_key=4)

PASSWORD: Final = "AIOPARALLEL_PASSWORD"
KEY_PASSWORD: Final = "AIOPARALLEL_KEY_PASSWORD"
"""Secrets are not options: command lines are visible to other users of the machine."""


def _in(variable: str) -> Parameter:
    return Parameter(env_var=f"AIOPARALLEL_{variable}")


@Parameter(name="*", group=SECURITY)
@means(of_dataclass(Security), security_protocol="protocol")
@dataclass(frozen=True, kw_only=True, slots=True)
class Secure:
    """Options for TLS and SASL."""

    security_protocol: Annotated[Literal["SSL", "SASL_SSL", "SASL_PLAINTEXT"] | None, _in("SECURITY_PROTOCOL")] = None
    mechanism: Annotated[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None, _in("MECHANISM")] = (
        None
    )
    username: Annotated[str | None, _in("USERNAME")] = None
    """The user, with PLAIN and SCRAM. The password is in `--password-file`, or in the variable
    `AIOPARALLEL_PASSWORD`: other users of the machine can see a command line."""
    password_file: Annotated[str | None, _in("PASSWORD_FILE")] = None
    token_file: Annotated[str | None, _in("TOKEN_FILE")] = None
    ca_file: Annotated[str | None, _in("CA_FILE")] = None
    certificate_file: Annotated[str | None, _in("CERTIFICATE_FILE")] = None
    key_file: Annotated[str | None, _in("KEY_FILE")] = None
    """Its key, if it is not in the same file. The password of an encrypted key is in the variable
    `AIOPARALLEL_KEY_PASSWORD`."""

    def security(self) -> Security | None:
        """The Security made from these options, or None. Raises ConfigurationError."""
        given = {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}
        protocol = given.pop("security_protocol", None)
        if protocol is None:
            for name, value in given.items():
                raise ConfigurationError(name, value, "needs security_protocol as well")
            return None
        if self.username is not None and self.password_file is None and (password := os.environ.get(PASSWORD)):
            given["password"] = password
        if self.certificate_file is not None and (key_password := os.environ.get(KEY_PASSWORD)):
            given["key_password"] = key_password
        try:
            return Security(protocol, **given)
        except ConfigurationError as error:
            # Report the option by its name here, if it has one.
            option = error.option.rpartition(" ")[2]
            allowed = error.allowed.replace("protocol=", "security_protocol=")
            if option == "password" and error.value is None:
                option, allowed = "password_file", f"give it, or put the password into the variable {PASSWORD}"
            raise ConfigurationError(option, error.value, allowed) from None
