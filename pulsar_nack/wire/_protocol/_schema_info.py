"""A schema as the broker keeps it; pulsar-nack passes it on, and encodes and decodes nothing by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from ...errors import InvalidArgumentError
from .. import _pulsar_pb2 as pb
from .._consumer._subscribe_options import check_strings, is_text

_TYPES: Final = {"string": 1, "json": 2, "protobuf": 3, "avro": 4, "key_value": 15, "protobuf_native": 20}
_NAMES: Final = {number: name for name, number in _TYPES.items()}


@dataclass(frozen=True, slots=True)
class SchemaInfo:
    """The schema of a topic, of one version.

    :param type: ``"avro"``, ``"json"``, ``"protobuf"``, ``"protobuf_native"``, ``"string"``, ``"key_value"``, or the
        protocol's number of another type
    :param data: the definition, for instance the JSON of an Avro schema
    :param name: as the broker shows it
    :param properties: of the schema
    :raises InvalidArgumentError: names the argument
    """

    type: str | int
    data: bytes = b""
    name: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_number = type(self.type) is int and abs(self.type) < 1 << 31
        if not is_number and not (isinstance(self.type, str) and self.type in _TYPES):
            raise InvalidArgumentError("type", self.type, f"one of {', '.join(_TYPES)}, or a number of the protocol")
        if not isinstance(self.data, bytes):
            raise InvalidArgumentError("data", self.data, "bytes")
        if not is_text(self.name):
            raise InvalidArgumentError("name", self.name, "a str without lone surrogates")
        check_strings("properties", self.properties)

    def fill(self, schema: pb.Schema) -> None:
        """Write this schema into the broker's form."""
        schema.name, schema.schema_data = self.name, self.data
        schema.type = self.type if isinstance(self.type, int) else _TYPES[self.type]
        for key, value in self.properties.items():
            schema.properties.add(key=key, value=value)

    @classmethod
    def of(cls, schema: pb.Schema) -> Self:
        """Return the schema that the broker sent."""
        properties = {pair.key: pair.value for pair in schema.properties}
        return cls(_NAMES.get(schema.type, schema.type), schema.schema_data, schema.name, properties)
