"""Full names of topics; and patterns: their namespace, what they match, and their form for the official client.

A pattern names a namespace as the name of a topic does, ``persistent://tenant/namespace/...`` or
``tenant/namespace/...``. Without one it is for ``public/default``, and matches the last part of names.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ._check import is_text
from .errors import InvalidArgumentError

_EXPECTED: Final = (
    "a pattern as 'orders-.*', 'tenant/namespace/orders-.*' or 'persistent://tenant/namespace/orders-.*', with one"
    " namespace that is written out in each alternative"
)
_FLAGS: Final = re.compile(r"\s*\(\?[aiLmsux]+\)")
_START: Final = re.compile(r"(?:\^|\\A)*")
_PART: Final = r"((?:[\w=.:-]|\\[-.])+)"
_PREFIX: Final = re.compile(rf"(?:(persistent|non-persistent)://)?{_PART}/{_PART}/")
_PIECE: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\\\]])*\]|.", re.DOTALL)

_TOKEN: Final = re.compile(
    r"(?:(?P<open>\(\?[:=!]|\((?!\?))|(?P<close>\))|(?P<or>\|)|(?P<edge>\$|\\[bB])"
    r"|(?P<atom>\.|\\[dDsSwW]|\\[^a-zA-Z0-9\x80-\U0010ffff]|\[\^?(?P<items>(?:\\[^a-zA-Z0-9]|\\[dDsSwW]|[^][\\])+)\]"
    r"|[^][(){}\\|^$*+?.]))"
    r"(?P<times>(?:[*+?]|\{(?P<least>\d{1,4})(?:,(?P<most>\d{0,4}))?\})\??)?"
)
_ITEM: Final = re.compile(r"(?:\\.|[^-])-(?:\\.|[^-])|\\.|.", re.DOTALL)
_MAX_STATES: Final = 20_000
"""The library has room for five times as many; a repeated part counts as often as it is repeated."""


def full_name(topic: str) -> str:
    """Return a topic's name as brokers write it: ``orders`` is ``persistent://public/default/orders``.

    As in Pulsar's clients, a short name has one part or three. Anything else is returned unchanged: it is a full name,
    or none.
    """
    parts = topic.split("/")
    if not all(parts) or len(parts) not in {1, 3}:
        return topic
    return f"persistent://{topic if len(parts) == 3 else f'public/default/{topic}'}"


class TopicPattern(NamedTuple):
    """A parsed pattern.

    :param domain: ``persistent`` or ``non-persistent``, None: the pattern matches names without a domain
    :param namespace: ``tenant/namespace``, None: the default one, and the pattern matches the last part of names
    :param alternatives: for the last part of a name
    """

    domain: str | None
    namespace: str | None
    alternatives: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> TopicPattern:
        """Parse a pattern.

        :raises InvalidArgumentError: it has several namespaces, or one that cannot be read
        """
        flags = _FLAGS.match(text)
        found = [_parse_one(each) for each in _alternatives(text if flags is None else text[flags.end() :])]
        domain, namespace, _ = found[0]
        if any(each[:2] != (domain, namespace) or "/" in _outside_of_classes(each[2]) for each in found):
            raise InvalidArgumentError("topic", text, _EXPECTED)
        return cls(domain, namespace, tuple(local for _, _, local in found))

    def subject(self, domain: str, namespace: str, local: str) -> str:
        """Return the part of a topic's name that the pattern has to match."""
        if self.namespace is None:
            return local
        return f"{namespace}/{local}" if self.domain is None else f"{domain}://{namespace}/{local}"


def _parse_one(text: str) -> tuple[str | None, str | None, str]:
    text = text[_START.match(text).end() :]  # type: ignore[union-attr]
    found = _PREFIX.match(text)
    if found is None:
        return None, None, text
    return found[1], f"{found[2]}/{found[3]}".replace("\\", ""), text[found.end() :]


def _alternatives(text: str) -> list[str]:
    """Split a pattern at the bars outside of groups."""
    depth, parts = 0, [""]
    for piece in _PIECE.findall(text):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and not depth:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def _outside_of_classes(text: str) -> str:
    return "".join(piece for piece in _PIECE.findall(text) if piece[0] != "[" or len(piece) == 1)


# --- the official client ----------------------------------------------------------------------------------------------


def pattern_text(topic: object) -> str:
    """Return the text of a pattern for the official client, which has no flags.

    :raises InvalidArgumentError: neither text nor a pattern of text, or it has flags
    """
    text = topic.pattern if isinstance(topic, re.Pattern) else topic
    if not is_text(text) or not text:
        raise InvalidArgumentError("topic", topic, "a pattern, by re.compile or as text with is_pattern_topic=True")
    if isinstance(topic, re.Pattern) and topic.flags & ~re.UNICODE:
        raise _refused(text, "flags")
    return text


def for_official_client(text: str) -> str:
    """Return the equivalent pattern for the official client, complete and without anchors.

    A pattern that its C++ library cannot parse ends the process, in a thread of that library. So this accepts only the
    common part of the regular expressions of ECMAScript and Python.

    :raises InvalidArgumentError: it uses something else, or is not for one namespace
    """
    pattern = TopicPattern.parse(text)
    local = "|".join(pattern.alternatives)
    if _FLAGS.match(text):
        raise _refused(text, "flags")
    _check_common(text, local)
    domain, namespace = pattern.domain or "persistent", pattern.namespace or "public/default"
    return f"{domain}://{namespace}/{local if len(pattern.alternatives) == 1 else f'(?:{local})'}"


def _check_common(text: str, local: str) -> None:
    """Raise if part of a pattern is not in both languages, or has two meanings."""
    if not local.isprintable():
        raise _refused(text, "invisible characters")
    if len(local) > _MAX_STATES:
        raise _refused(text, "a pattern of this size")
    at, times, groups = 0, 1, [""]
    while at < len(local):
        found = _TOKEN.match(local, at)
        if found is None or not _is_common(found, groups):
            raise _refused(text, repr(local[at:]) if found is None else repr(found[0]))
        times *= max(int(found["most"] or found["least"] or 1), 1)
        at = found.end()
    if len(groups) > 1:
        raise _refused(text, f"an unclosed {groups[-1]!r}")
    if len(local) * times > _MAX_STATES:
        raise _refused(text, "a pattern of this size")
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise _refused(text, str(error)) from error


def _is_common(found: re.Match[str], groups: list[str]) -> bool:
    """Return whether a piece is the same in both languages; update the list of open groups."""
    can_repeat = found["atom"] is not None and found["atom"].isascii()
    if found["open"] is not None:
        groups.append(found["open"])
    elif found["close"] is not None:
        if len(groups) == 1:
            return False
        can_repeat = groups.pop() in {"(", "(?:"}
    if found["times"] is not None and not can_repeat:
        return False
    if found["least"] is not None and found["most"] and int(found["least"]) > int(found["most"]):
        return False
    return found["items"] is None or _is_class(found["items"])


def _is_class(items: str) -> bool:
    pieces = _ITEM.findall(items)
    inner = [piece for piece in pieces[1:-1] if piece == "-"]
    ranges = [piece for piece in pieces if len(piece) > 2]
    is_right = all(len(each) == 3 and each[0].isalnum() and each[2].isalnum() and each[0] <= each[2] for each in ranges)
    return items.isascii() and is_right and not inner


def _refused(text: str, what: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        "topic", text, f"a pattern that the official client's library accepts (refused: {what})"
    )
