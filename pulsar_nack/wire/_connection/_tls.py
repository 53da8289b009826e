"""TLS settings, and the SSL context made from them."""

from __future__ import annotations

import asyncio
import ssl
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, ConfigDict, InstanceOf, ValidationInfo, model_validator

from ..._check import path_of
from ...config import _Settings
from ...errors import InvalidArgumentError


def _as_file(value: Any, info: ValidationInfo) -> Path | None:
    if value is None:
        return None
    path = path_of(value)
    if path is None:
        raise InvalidArgumentError(info.field_name or "file", value, "the path of a file in PEM form")
    return path


FileField = Annotated[Path | None, BeforeValidator(_as_file)]


class TlsOptions(_Settings):
    """How to verify brokers at ``pulsar+ssl://``, and the client's certificate.

    By default the system's trusted certificates are used, and host names are checked.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    trust_certs_file: FileField = None
    """Certificates of authorities to trust instead of the system's."""
    certificate_file: FileField = None
    """The client's certificate, with its chain."""
    key_file: FileField = None
    """The key of the client's certificate; None: it is in the same file."""
    validate_hostname: bool = True
    """Whether the broker's certificate must match its host name."""
    allow_insecure: bool = False
    """Whether to accept any certificate. Then an attacker on the network can read and change everything."""
    context: InstanceOf[ssl.SSLContext] | None = None
    """An SSL context to use instead of all other settings."""

    if TYPE_CHECKING:  # paths as text are accepted too, which a type checker cannot derive

        def __init__(self, **settings: Any) -> None: ...

    @model_validator(mode="after")
    def _complete(self) -> TlsOptions:
        if self.key_file is not None and self.certificate_file is None:
            raise InvalidArgumentError("key_file", str(self.key_file), "a certificate_file with it")
        return self


async def make_context(options: TlsOptions, certificate: tuple[Path, Path | None] | None = None) -> ssl.SSLContext:
    """Return a context for one connection; the files are read each time, so renewed certificates are used.

    :param certificate: paths of a certificate and key from the authentication; those of the settings take precedence
    :raises InvalidArgumentError: a file is missing or invalid
    """
    if options.context is not None:
        return options.context
    return await asyncio.get_running_loop().run_in_executor(None, partial(_make, options, certificate))


def _make(options: TlsOptions, certificate: tuple[Path, Path | None] | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.allow_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    else:
        context.check_hostname = options.validate_hostname
        _trust(context, options.trust_certs_file)
    if options.certificate_file is not None:
        certificate = options.certificate_file, options.key_file
    if certificate is not None:
        _load_own(context, *certificate)
    return context


def _trust(context: ssl.SSLContext, file: Path | None) -> None:
    if file is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(file)
    except OSError as error:  # an SSLError is one
        raise InvalidArgumentError("trust_certs_file", str(file), f"certificates in PEM form ({error})") from error


def _load_own(context: ssl.SSLContext, file: Path, key: Path | None) -> None:
    try:
        context.load_cert_chain(file, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise InvalidArgumentError(
            "certificate_file", str(file), f"a certificate and its key in PEM form, key without password ({error})"
        ) from error


def _no_password() -> str:
    """Keep OpenSSL from asking on the terminal."""
    return ""
