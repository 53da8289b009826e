"""The beginning of a connection: who we are, and what we can do; also the answers when the broker asks who again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ..._version import __version__
from ...errors import ProtocolError
from .. import _pulsar_pb2 as pb
from .._protocol._frames import encode_command
from ._authentication import Authentication

PROTOCOL_VERSION: Final = 21
_MOST_CHALLENGES: Final = 10
_LEAST_SECRET: Final = 4
"""A shorter secret is not replaced in texts, because it may be part of any word."""
CLIENT_VERSION: Final = f"pulsar-nack-{__version__}"


class Introduction:
    """Of one connection. ``is_over`` when the broker has let us in.

    :param send: writes bytes to the broker
    :param give_up: closes the connection, with the reason
    """

    def __init__(
        self,
        authentication: Authentication,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[bytes], None],
        give_up: Callable[[BaseException], None],
    ) -> None:
        self.answer = pb.CommandConnected()
        self.is_over = False
        self._authentication = authentication
        self._send = send
        self._give_up = give_up
        self._let_in: asyncio.Future[None] = loop.create_future()
        self._tasks: set[asyncio.Task[None]] = set()
        self._secrets: tuple[str, ...] = ()

    async def introduce(self, proxy_to: str | None) -> None:
        """Tell who we are, and wait until the broker has let us in.

        :raises BrokerError: what the connection was closed with
        """
        data = await self._data(None)
        self._send(encode_command(_connect(self._authentication.method, data, proxy_to)))
        await self._let_in

    def let_in(self, answer: pb.CommandConnected) -> None:
        """Take the broker's word that we are in.

        :raises ProtocolError: it has said so before
        """
        if self._let_in.done():
            raise ProtocolError("a command CONNECTED on a connection that is open")
        self.answer.CopyFrom(answer)
        self.is_over = True
        self._let_in.set_result(None)

    def challenged(self, challenge: pb.CommandAuthChallenge) -> None:
        """Answer an authentication challenge, during the handshake or later.

        :raises ProtocolError: too many challenges are unanswered
        """
        if len(self._tasks) >= _MOST_CHALLENGES:
            raise ProtocolError(f"a command AUTH_CHALLENGE, while {len(self._tasks)} others are not answered")
        task = asyncio.create_task(self._answer(challenge), name="pulsar_nack.wire answer to a challenge")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, challenge: pb.CommandAuthChallenge) -> None:
        try:
            data = await self._data(challenge.challenge.auth_data)
            method = challenge.challenge.auth_method_name or self._authentication.method
            self._send(encode_command(_auth_response(method, data)))
        except Exception as error:  # noqa: BLE001 - the connection is closed with it
            self._give_up(error)

    async def _data(self, challenge: bytes | None) -> bytes:
        data = await self._authentication.data(challenge)
        text = data.decode(errors="replace")
        self._secrets = tuple(each for each in (text, text.rpartition(":")[2]) if len(each) >= _LEAST_SECRET)
        return data

    def without_secrets(self, text: str) -> str:
        """Return the broker's words, with the credentials that it got last replaced."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def stop(self, error: Exception) -> None:
        """End with the connection."""
        if not self._let_in.done():
            self._let_in.set_exception(error)
            self._let_in.exception()  # nobody waits for it where dialling failed already
        for task in self._tasks:
            if task is not asyncio.current_task():
                task.cancel()

    async def ended(self) -> None:
        """Wait for what :meth:`stop` has cancelled."""
        tasks = self._tasks - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks)


def _connect(method: str, data: bytes, proxy_to: str | None) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    connect = command.connect
    connect.client_version = CLIENT_VERSION
    connect.protocol_version = PROTOCOL_VERSION
    if method != "none":
        connect.auth_method_name = method
        connect.auth_data = data
    if proxy_to is not None:
        connect.proxy_to_broker_url = proxy_to
    connect.feature_flags.supports_auth_refresh = True
    connect.feature_flags.supports_broker_entry_metadata = True
    connect.feature_flags.supports_partial_producer = True
    return command


def _auth_response(method: str, data: bytes) -> pb.BaseCommand:
    command = pb.BaseCommand(type=pb.BaseCommand.AUTH_RESPONSE)
    command.authResponse.client_version = CLIENT_VERSION
    command.authResponse.protocol_version = PROTOCOL_VERSION
    command.authResponse.response.auth_method_name = method
    command.authResponse.response.auth_data = data
    return command
