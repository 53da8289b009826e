"""One test for many values, where a test for each would take longer to collect than to run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any


def for_each(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test with each of these values in turn, as one test; a failure names the value.

    Used like ``pytest.mark.parametrize``, but fixtures are made once, for all values together.
    """
    keys = names if isinstance(names, tuple) else (names,)
    chosen = [dict(zip(keys, value if isinstance(names, tuple) else [value], strict=True)) for value in values]
    assert chosen, "no values"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            async def with_each_awaited(**others: Any) -> None:
                for value in chosen:
                    with named(**value):
                        await test(**others, **value)

            return _without(keys, test, with_each_awaited)

        def with_each(**others: Any) -> None:
            for value in chosen:
                with named(**value):
                    test(**others, **value)

        return _without(keys, test, with_each)

    return decorate


def _without(keys: tuple[str, ...], test: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    """Give ``run`` the test's name and signature, without the parameters that get these values."""
    functools.update_wrapper(run, test)
    signature = inspect.signature(test)
    others = [parameter for name, parameter in signature.parameters.items() if name not in keys]
    run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    return run


@contextmanager
def named(**values: Any) -> Iterator[None]:
    """Add these values as a note to an exception that is raised in the block."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"with {', '.join(f'{name}={_shown(one)}' for name, one in values.items())}")
        raise


def _shown(value: object) -> str:
    try:
        return repr(value)[:200]
    except Exception:  # noqa: BLE001 - some values are there because they cannot be shown
        return f"a value of {type(value).__name__}"
