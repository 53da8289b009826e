"""The list of all logs: a chain of numbered versions, each made by a put that must create it; blocking.

A version is complete: the names, the folder of each, and its epoch, which grows with every opening for writing. Making
version n + 1 is the commit point of a change; a process that was slower reads that version and tries again. Older
versions are deleted, the newest one never is. So a put in place of a deleted version, by a process that was suspended,
is detected: a higher version exists, whose recent changes do not include this one. Such a version never counts, and the
change is decided again. It recognizes its own mark if it was made after all, so long ago that it is no longer recent.

*Owners.* A version also has a token for each name that an owner took. A change under a claim is refused by the same put
that would make it, if the token has changed. So there is no moment between the check and the change, and an owner that
was cut off for hours changes nothing when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final, NamedTuple

from ..errors import LedgerError, LogFencedError, LogStorageError
from ._object_format import CATALOG, ObjectLocation, decode_whole, encode, new_token, slot_name, slot_number
from ._object_requests import RetryingClient
from .files import as_storage_error

_RECENT: Final = 64
_TRIES: Final = 50


class CatalogEntry(NamedTuple):
    """A log in the catalog: the unique part of its folder's name, its epoch, and the token of its writer."""

    instance: str
    epoch: int
    writer: str


class Claim(NamedTuple):
    """A name that was taken, and the token that the catalog has for it until another process takes the name."""

    name: str
    token: str


class _Version(NamedTuple):
    number: int
    logs: Mapping[str, CatalogEntry]
    owners: Mapping[str, str]
    recent: tuple[tuple[int, str], ...]


_EMPTY: Final = _Version(-1, {}, {}, ())


class Catalog:
    """The catalog of a store of logs, for any thread; changes through one object are made one after the other."""

    def __init__(self, client: RetryingClient) -> None:
        self._client = client
        self._lock = Lock()
        self._version = _EMPTY
        self._is_fresh = False

    def logs(self) -> Mapping[str, CatalogEntry]:
        """Return the logs by name, as they are now: one request, two after a change.

        :raises OSError: the catalog could not be read
        """
        with self._lock:
            return self._load().logs

    def change(
        self,
        name: str,
        action: str,
        decide: Callable[[CatalogEntry | None], CatalogEntry | None],
        claim: Claim | None = None,
    ) -> CatalogEntry | None:
        """Set or remove the entry of a name.

        :param decide: returns the new entry for the old one, which may be one that it returned before; its errors end
            the change
        :param claim: refuse the change once another owner has taken the claimed name
        :raises LogFencedError: another owner has taken it
        :raises LogStorageError: it is not known whether the change was made, or will be
        """
        entry: CatalogEntry | None = None

        def edit(version: _Version) -> _Version:
            nonlocal entry
            if claim is not None:
                _check_claim(version, name, claim)
            entry = decide(version.logs.get(name))
            logs = {other: kept for other, kept in version.logs.items() if other != name}
            return version._replace(logs=logs if entry is None else {**logs, name: entry})

        self._change(name, action, edit)
        return entry

    def check(self, name: str, claim: Claim) -> None:
        """Raise LogFencedError for a log if another process has taken the claimed name.

        :raises OSError: the catalog could not be read
        """
        with self._lock:
            _check_claim(self._load(), name, claim)

    def take_ownership(self, name: str, check: Callable[[], None]) -> Claim:
        """Become the owner of a name.

        :param check: raises if the call was abandoned meanwhile
        :raises LogStorageError: it is not known whether that was done, or will be
        """
        claim = Claim(name, new_token())

        def edit(version: _Version) -> _Version:
            check()
            return version._replace(owners={**version.owners, name: claim.token})

        self._change(name, "take it", edit)
        return claim

    def sweep(self) -> None:
        """Delete the versions that no longer count."""
        with self._lock:
            numbers = self._numbers()
            self._delete_before(max(numbers, default=-1), numbers)

    def _change(self, name: str, action: str, edit: Callable[[_Version], _Version]) -> None:
        with self._lock:
            try:
                for count in range(_TRIES):
                    if self._try(edit):
                        return
                    self._client.pause(count)
            except OSError as error:
                self._is_fresh = False
                raise as_storage_error(error, name, action) from error
        raise LogStorageError(name, action, "others changed the catalog all the time")

    def _try(self, edit: Callable[[_Version], _Version]) -> bool:
        """Make the next version, or find that another process was faster; check a refusal on the newest version."""
        if self._is_fresh:
            self._is_fresh = False
            with suppress(LedgerError):
                return self._put(_next_version(self._version, edit))
        return self._put(_next_version(self._load(), edit))

    def _put(self, version: _Version) -> bool:
        """Make a version; return whether it counts, or did until others followed."""
        logs = {name: list(entry) for name, entry in version.logs.items()}
        data = encode("catalog", version.number, {"logs": logs, "owners": version.owners, "recent": version.recent})
        if not self._client.create(self._key(version.number), data):
            return False
        numbers = self._numbers()
        if max(numbers, default=-1) == version.number:
            self._version, self._is_fresh = version, True
            with suppress(OSError):
                self._delete_before(version.number, numbers)
            return True
        return version.recent[-1] in self._load().recent

    def _load(self) -> _Version:
        for count in range(_TRIES):
            newest = max(self._numbers(), default=-1)
            if newest != self._version.number:
                try:
                    self._version = self._read(newest)
                except FileNotFoundError:
                    self._client.pause(count)
                    continue
            return self._version
        raise OSError("the catalog changed all the time")

    def _read(self, number: int) -> _Version:
        if number < 0:
            return _EMPTY
        location = ObjectLocation(self._client.url, self._key(number))
        fields = decode_whole(self._client.get(location.key), location, number, "catalog").fields
        try:
            logs = {str(name): _as_entry(entry) for name, entry in fields["logs"].items()}
            owners = {str(name): str(owner) for name, owner in fields.get("owners", {}).items()}
            recent = tuple((int(at), str(change)) for at, change in fields["recent"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise location.damage(0, f"a catalog that cannot be read: {error!r}") from error
        return _Version(number, logs, owners, recent)

    def _numbers(self) -> list[int]:
        names = self._client.list(CATALOG)
        return [number for name in names if (number := slot_number(name)) is not None]

    def _delete_before(self, newest: int, numbers: list[int]) -> None:
        self._client.delete([self._key(number) for number in numbers if number < newest])

    def _key(self, number: int) -> str:
        return f"{CATALOG}/{slot_name(number)}"


def _check_claim(version: _Version, log: str, claim: Claim) -> None:
    if version.owners.get(claim.name) != claim.token:
        raise LogFencedError(log)


def _next_version(version: _Version, edit: Callable[[_Version], _Version]) -> _Version:
    number = version.number + 1
    return edit(version)._replace(number=number, recent=(*version.recent, (number, new_token()))[-_RECENT:])


def _as_entry(value: Any) -> CatalogEntry:
    instance, epoch, writer = value
    return CatalogEntry(str(instance), int(epoch), str(writer))
