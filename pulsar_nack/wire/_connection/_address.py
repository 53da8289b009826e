"""Service URLs with one or several addresses of brokers or proxies."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, Self

from ..._foreign import quoted, without_credentials
from ...errors import InvalidArgumentError

PLAIN_SCHEME: Final = "pulsar"
SECURE_SCHEME: Final = "pulsar+ssl"
_DEFAULT_PORTS: Final = {PLAIN_SCHEME: 6650, SECURE_SCHEME: 6651}
_HOST: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<name>[^\s\[\]:/@?#,]+))(?::(?P<port>[0-9]{1,5}))?")
_MAX_LETTERS: Final = 300  # of a host with its port; a host name has at most 253
_EXPECTED: Final = "a URL as pulsar://host:6650 or pulsar+ssl://host:6651, with several hosts separated by commas"


class Address(NamedTuple):
    """One broker or proxy: its host without brackets, its port, and whether it speaks TLS."""

    host: str
    port: int
    is_secure: bool = False

    @classmethod
    def parse(cls, url: str) -> Self:
        """Parse a URL with exactly one address.

        :raises InvalidArgumentError: not such a URL
        """
        addresses = parse_service_url(url)
        if len(addresses) != 1:
            raise InvalidArgumentError("url", url, "a URL with one address")
        return cls(*addresses[0])

    @property
    def url(self) -> str:
        """Return the address as a URL, always with the port."""
        return f"{SECURE_SCHEME if self.is_secure else PLAIN_SCHEME}://{self.host_and_port}"

    @property
    def host_and_port(self) -> str:
        """Return ``host:port``, an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return self.url


def parse_service_url(url: str) -> tuple[Address, ...]:
    """Return the addresses of a service URL, in its order and without duplicates.

    :raises InvalidArgumentError: not a service URL; says what is wrong with it
    """
    text = str(url)
    url = without_credentials(text)  # for error messages
    if text != text.strip():
        raise InvalidArgumentError("url", url, f"no spaces around it: {_EXPECTED}")
    scheme, _, rest = text.partition("://")
    if scheme in {"http", "https"}:
        raise InvalidArgumentError("url", url, f"the broker's own protocol, not its admin address: {_EXPECTED}")
    if scheme not in _DEFAULT_PORTS or not rest.rstrip("/"):
        raise InvalidArgumentError("url", url, _EXPECTED)
    if "@" in rest:
        raise InvalidArgumentError("url", url, f"no user or password in it, which authentication= takes: {_EXPECTED}")
    found = [_parse_host(host, scheme, url) for host in rest.rstrip("/").split(",")]
    return tuple(dict.fromkeys(found))


def _parse_host(text: str, scheme: str, url: str) -> Address:
    match = _HOST.fullmatch(text.strip())
    if match is None or len(text) > _MAX_LETTERS or not text.isprintable():
        raise InvalidArgumentError(
            "url", url, f"hosts as name:port, not {quoted(without_credentials(text))}: {_EXPECTED}"
        )
    port = int(match["port"]) if match["port"] else _DEFAULT_PORTS[scheme]
    if not 0 < port < 65_536:
        raise InvalidArgumentError("url", url, f"ports from 1 to 65535, not {port}")
    return Address(match["six"] or match["name"], port, scheme == SECURE_SCHEME)
