"""Which logs there are: a chain of numbered versions, each made by a put that must not find one; blocking.

A version is whole: the names, the folder of each, and its epoch, which grows with every opening for writing. Making
version n + 1 is the commit point of a change, and whoever was slower reads it and tries again. Older versions are
deleted, the newest one never is. So a put into the place of a deleted version, by somebody who slept since, is found
out: a higher one is there, which does not name the change among the last ones. Such a version never counts, and the
change is decided anew, knowing its own mark if it was made after all, so long ago that it is not among the last ones.

*Owners.* A version also has a token for each name that an owner took. A change that is made under a claim is refused
once the token is another one, in the same put that would have made it: so there is no moment between looking whether
one still owns something and changing it, and an owner that was cut off for hours changes nothing when it is back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final, NamedTuple

from ..errors import LedgerError, LogFencedError, LogStorageError
from ._home import explain
from ._object_format import Place, decode_whole, encode
from ._object_names import CATALOG, slot_name, slot_number, token
from ._object_retry import Requests

_RECENT: Final = 64
_TRIES: Final = 50


class Entry(NamedTuple):
    """A log: the unique part of its folder's name, its epoch, and whose that is."""

    instance: str
    epoch: int
    writer: str


class Claim(NamedTuple):
    """What was taken, and the token that the catalog has for it for as long as nobody else takes it."""

    name: str
    token: str


class _Version(NamedTuple):
    number: int
    logs: Mapping[str, Entry]
    owners: Mapping[str, str]
    recent: tuple[tuple[int, str], ...]


_NONE: Final = _Version(-1, {}, {}, ())


class Catalog:
    """The catalog of a store of logs, for any thread; changes of one store wait for each other."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._lock = Lock()
        self._version = _NONE
        self._is_fresh = False

    def logs(self) -> Mapping[str, Entry]:
        """Return the logs by name, as they are now: one request, two after a change.

        :raises OSError: it could not be read
        """
        with self._lock:
            return self._load().logs

    def change(
        self, name: str, action: str, decide: Callable[[Entry | None], Entry | None], claim: Claim | None = None
    ) -> Entry | None:
        """Set what there is under a name, or remove it.

        :param decide: returns the new entry for the old one, which may be one that it returned before; its errors end
            the change
        :param claim: nothing is changed once another owner took the name
        :raises LogFencedError: another owner took it
        :raises LogStorageError: it is not known whether it was changed, or will be yet
        """
        entry: Entry | None = None

        def edit(version: _Version) -> _Version:
            nonlocal entry
            if claim is not None:
                _check(version, name, claim)
            entry = decide(version.logs.get(name))
            logs = {other: kept for other, kept in version.logs.items() if other != name}
            return version._replace(logs=logs if entry is None else {**logs, name: entry})

        self._change(name, action, edit)
        return entry

    def check(self, name: str, claim: Claim) -> None:
        """Raise LogFencedError for a log when somebody else took what the claim says.

        :raises OSError: it could not be read
        """
        with self._lock:
            _check(self._load(), name, claim)

    def take(self, name: str, check: Callable[[], None]) -> Claim:
        """Become the owner of what is called this.

        :param check: raises when that is not wanted any more
        :raises LogStorageError: it is not known whether that was done, or will be yet
        """
        claim = Claim(name, token())

        def edit(version: _Version) -> _Version:
            check()
            return version._replace(owners={**version.owners, name: claim.token})

        self._change(name, "take it", edit)
        return claim

    def sweep(self) -> None:
        """Delete the versions that do not count any more."""
        with self._lock:
            numbers = self._numbers()
            self._delete_before(max(numbers, default=-1), numbers)

    def _change(self, name: str, action: str, edit: Callable[[_Version], _Version]) -> None:
        with self._lock:
            try:
                for count in range(_TRIES):
                    if self._try(edit):
                        return
                    self._requests.pause(count)
            except OSError as error:
                self._is_fresh = False
                raise explain(error, name, action) from error
        raise LogStorageError(name, action, "others changed the catalog all the time")

    def _try(self, edit: Callable[[_Version], _Version]) -> bool:
        """Make the next version, or find that somebody else was faster; what refuses it is asked of the newest one."""
        if self._is_fresh:
            self._is_fresh = False
            with suppress(LedgerError):
                return self._put(_next(self._version, edit))
        return self._put(_next(self._load(), edit))

    def _put(self, version: _Version) -> bool:
        """Make a version; return whether it counts, or did until others followed."""
        logs = {name: list(entry) for name, entry in version.logs.items()}
        data = encode("catalog", version.number, {"logs": logs, "owners": version.owners, "recent": version.recent})
        if not self._requests.create(self._key(version.number), data):
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
                    self._requests.pause(count)
                    continue
            return self._version
        raise OSError("the catalog changed all the time")

    def _read(self, number: int) -> _Version:
        if number < 0:
            return _NONE
        place = Place(self._requests.url, self._key(number))
        fields = decode_whole(self._requests.get(place.key), place, number, "catalog").fields
        try:
            logs = {str(name): _as_entry(entry) for name, entry in fields["logs"].items()}
            owners = {str(name): str(owner) for name, owner in fields.get("owners", {}).items()}
            recent = tuple((int(at), str(change)) for at, change in fields["recent"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise place.damage(0, f"a catalog that cannot be read: {error!r}") from error
        return _Version(number, logs, owners, recent)

    def _numbers(self) -> list[int]:
        names = self._requests.list(CATALOG)
        return [number for name in names if (number := slot_number(name)) is not None]

    def _delete_before(self, newest: int, numbers: list[int]) -> None:
        self._requests.delete([self._key(number) for number in numbers if number < newest])

    def _key(self, number: int) -> str:
        return f"{CATALOG}/{slot_name(number)}"


def _check(version: _Version, log: str, claim: Claim) -> None:
    if version.owners.get(claim.name) != claim.token:
        raise LogFencedError(log)


def _next(version: _Version, edit: Callable[[_Version], _Version]) -> _Version:
    number = version.number + 1
    return edit(version)._replace(number=number, recent=(*version.recent, (number, token()))[-_RECENT:])


def _as_entry(value: Any) -> Entry:
    instance, epoch, writer = value
    return Entry(str(instance), int(epoch), str(writer))
