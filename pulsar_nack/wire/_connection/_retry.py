"""Calls that are retried or run concurrently, and errors as text."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, TypeVar

from ..._foreign import shown
from ...errors import (
    BrokerError,
    ClosedError,
    ConnectionLostError,
    PulsarNackError,
    RequestTimeoutError,
)
from ._requests import is_busy, is_transient, with_text

if TYPE_CHECKING:
    from ._context import ClientContext

T = TypeVar("T")
MAX_AT_ONCE: Final = 32
_LOG: Final = logging.getLogger("pulsar_nack.wire")
_BUSY_S: Final = 1.0
_MIN_TRIES: Final = 15
"""A pause between tries is at most this fraction of a request's time, so that a late recovery is not missed."""


# --- errors ----------------------------------------------------------------------------------------------------------


def as_text(error: BaseException) -> str:
    """Return an error as text for a log line; foreign errors with their type, because their text may be empty."""
    return str(error) if isinstance(error, PulsarNackError) else shown(repr(error))


def with_context(operation: str, error: BrokerError) -> BrokerError:
    """Return a copy of the error whose text begins with the failed operation; other callers may get the original."""
    return with_text(error, f"{operation}: {error}")


# --- concurrent calls ------------------------------------------------------------------------------------------------


async def gather_or_cancel(calls: Iterable[Awaitable[T]], most: int = MAX_AT_ONCE) -> list[T]:
    """Await all calls, at most ``most`` at a time, and return their results in order.

    The first failure cancels the other calls and is raised.
    """
    waiting = list(calls)
    if len(waiting) == 1:
        return [await waiting[0]]
    slots = asyncio.Semaphore(most)

    async def one(call: Awaitable[T]) -> T:
        async with slots:
            return await call

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(call)) for call in waiting]
    except BaseExceptionGroup as errors:
        raise _first(errors) from None
    finally:
        for call in waiting:
            if asyncio.iscoroutine(call):
                call.close()  # no effect on those that ran
    return [task.result() for task in tasks]


async def gather_settled(calls: Iterable[Awaitable[object]]) -> BaseException | None:
    """Complete all calls, even if some fail or this one is cancelled; return the first error."""
    results = await asyncio.shield(asyncio.gather(*calls, return_exceptions=True))
    return next((result for result in results if isinstance(result, BaseException)), None)


def _first(errors: BaseException) -> BaseException:
    while isinstance(errors, BaseExceptionGroup):
        errors = errors.exceptions[0]
    return errors


# --- retries ---------------------------------------------------------------------------------------------------------


async def retry_transient(
    context: ClientContext, call: Callable[[], Awaitable[T]], *, ends_at: float | None = None, may_wait: bool = False
) -> T:
    """Return the result of a call that is repeated until ``ends_at`` while its errors are transient.

    "Consumer busy" and "producer busy" are retried only briefly: the holder may be our own broken connection.

    :param ends_at: loop time; None: ``request_timeout`` from now
    :param may_wait: a call whose requests are answered in time may take longer, and is not ended
    :raises BrokerError: the last error, with the number of tries and the time they took
    """
    loop, limit = context.loop, context.options.request_timeout.total_seconds()
    began_at = loop.time()
    ends_at = began_at + limit if ends_at is None else ends_at
    backoff = context.options.backoff()
    last: BrokerError | None = None
    tries = 0
    while True:
        tries += 1
        try:
            async with asyncio.timeout_at(None if may_wait else ends_at) as time_left:
                return await call()
        except BrokerError as error:
            last, may_pass = error, is_transient(error)
            pause = min(float(backoff(tries - 1)), limit / _MIN_TRIES)
            gives_up_at = ends_at if may_pass else min(began_at + _BUSY_S, ends_at) if is_busy(error) else 0.0
            if loop.time() + pause > gives_up_at:
                if not may_pass or tries == 1:
                    raise
                raise _with_tries(error, tries, loop.time() - began_at) from error.__cause__
            if may_pass and tries == 1:
                _LOG.warning("%s; trying again for up to %.3g s", error, ends_at - loop.time())
        except TimeoutError as error:
            if not time_left.expired():
                raise
            raise _with_tries(last or _no_answer(context), tries, loop.time() - began_at) from error
        await asyncio.sleep(pause)


async def reconnect(
    context: ClientContext,
    connect: Callable[[], Awaitable[None]],
    is_over: Callable[[], bool],
    on_failure: Callable[[Exception], None],
    *,
    attempt: int,
    at_once: bool,
) -> None:
    """Repeat ``connect`` until ``is_over``, at growing intervals; any error except cancellation is a failed attempt.

    :param is_over: whether it is connected, or need not connect any more
    :param on_failure: called with the error of each attempt, including those of the user's authentication
    :param attempt: number of the first attempt; a higher one waits longer
    :param at_once: whether attempt 0 starts without a pause
    :raises ClosedError: the client is closed
    """
    backoff = context.options.backoff()
    while not is_over():
        if attempt or not at_once:
            await asyncio.sleep(float(backoff(attempt)))
        attempt += 1
        try:
            await connect()
        except Exception as error:
            if context.pool.is_closed:
                raise ClosedError("the client") from error
            if not is_over():
                on_failure(error)


def _no_answer(context: ClientContext) -> BrokerError:
    if context.pool.connections():
        return RequestTimeoutError("no answer")
    return ConnectionLostError(f"{context.pool}: not connected")


def _with_tries(error: BrokerError, tries: int, seconds: float) -> BrokerError:
    return with_text(error, f"{error} (tried {'once' if tries == 1 else f'{tries} times'} in {seconds:.3g} s)")
