"""Files and folders in memory that know what of them is durable, and what a crash may leave of the rest.

A file has its live content, its synced content, and the writes and cuts since; a folder likewise with its names. After
a crash a file is its synced content with all, none, the first part, or any blocks of what came later, and a folder has
its synced names with a first part of the later changes (a journal keeps their order; a rename is one change). A file's
content and its name are independent: a name may be durable before the content is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

_BLOCK: Final = 16


class Write(NamedTuple):
    """Some bytes at an offset."""

    offset: int
    data: bytes

    def apply(self, content: bytearray) -> None:
        """Change the content."""
        content.extend(bytes(max(self.offset - len(content), 0)))
        content[self.offset : self.offset + len(self.data)] = self.data


class Cut(NamedTuple):
    """A new size."""

    size: int

    def apply(self, content: bytearray) -> None:
        """Change the content."""
        del content[self.size :]
        content.extend(bytes(self.size - len(content)))


@dataclass(slots=True)
class File:
    """A file's live and synced content, and the changes between them."""

    live: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    unsynced: list[Write | Cut] = field(default_factory=list)

    def change(self, change: Write | Cut) -> None:
        """Change what is live."""
        change.apply(self.live)
        self.unsynced.append(change)

    def sync(self) -> None:
        """Make what is live durable, as far as the changes that are kept tell."""
        content = bytearray(self.synced)
        for change in self.unsynced:
            change.apply(content)
        self.synced = bytes(content)
        self.unsynced.clear()

    def copy(self) -> File:
        """Return the same, which may change differently."""
        return File(self.live[:], self.synced, self.unsynced[:])

    def left(self, random: Random) -> bytes:
        """Return what may be on disk."""
        content = bytearray(self.synced)
        way = random.choice(("none", "all", "torn", "blocks"))
        if way == "none":
            return self.synced
        stop = random.randint(0, len(self.unsynced)) if way == "torn" else len(self.unsynced)
        for change in self.unsynced[:stop]:
            for part in _blocks(change, random) if way == "blocks" else [change]:
                part.apply(content)
        if stop < len(self.unsynced):
            _torn(self.unsynced[stop], random).apply(content)
        if way == "blocks" and random.random() < 0.5:
            content.extend(bytes(max(len(self.live) - len(content), 0)))
        return bytes(content)


@dataclass(slots=True)
class Folder:
    """A folder's live and synced names, and the changes between them."""

    live: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)
    unsynced: list[dict[str, File | Folder | None]] = field(default_factory=list)

    def change(self, change: dict[str, File | Folder | None]) -> None:
        """Change what is live."""
        _apply(change, self.live)
        self.unsynced.append(change)

    def sync(self) -> None:
        """Make what is live durable, as far as the changes that are kept tell."""
        self.synced = dict(self.live)
        self.unsynced.clear()

    def copy(self, copies: dict[int, File | Folder]) -> Folder:
        """Return the same, which may change differently; a node has one copy under all its names."""
        found = Folder()
        for names, copied in ((self.live, found.live), (self.synced, found.synced)):
            copied.update((name, _copy(node, copies)) for name, node in names.items())
        for change in self.unsynced:
            found.unsynced.append({name: node and _copy(node, copies) for name, node in change.items()})
        return found

    def left(self, random: Random) -> Folder:
        """Return what may be on disk, all of it synced."""
        names = dict(self.synced)
        for change in self.unsynced[: random.randint(0, len(self.unsynced))]:
            _apply(change, names)
        nodes: dict[str, File | Folder] = {}
        for name, node in names.items():
            if isinstance(node, Folder):
                nodes[name] = node.left(random)
            else:
                content = node.left(random)
                nodes[name] = File(bytearray(content), content)
        return Folder(nodes, dict(nodes))


def _copy(node: File | Folder, copies: dict[int, File | Folder]) -> File | Folder:
    copied = copies.get(id(node))
    if copied is None:
        copied = copies[id(node)] = node.copy(copies) if isinstance(node, Folder) else node.copy()
    return copied


def _apply(change: dict[str, File | Folder | None], names: dict[str, File | Folder]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _torn(change: Write | Cut, random: Random) -> Write | Cut:
    if isinstance(change, Cut):
        return change
    return Write(change.offset, change.data[: random.randint(0, len(change.data))])


def _blocks(change: Write | Cut, random: Random) -> list[Write | Cut]:
    if isinstance(change, Cut):
        return [change] if random.random() < 0.5 else []
    starts = range(0, len(change.data), _BLOCK)
    blocks = [Write(change.offset + start, change.data[start : start + _BLOCK]) for start in starts]
    return [block for block in blocks if random.random() < 0.5]
