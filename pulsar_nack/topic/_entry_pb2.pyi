from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Property(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("payload", "key", "properties", "event_time", "is_null")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    EVENT_TIME_FIELD_NUMBER: _ClassVar[int]
    IS_NULL_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    key: str
    properties: _containers.RepeatedCompositeFieldContainer[Property]
    event_time: int
    is_null: bool
    def __init__(self, payload: _Optional[bytes] = ..., key: _Optional[str] = ..., properties: _Optional[_Iterable[_Union[Property, _Mapping]]] = ..., event_time: _Optional[int] = ..., is_null: bool = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("publish_time", "deliver_at", "is_batch", "messages")
    PUBLISH_TIME_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    IS_BATCH_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    publish_time: int
    deliver_at: int
    is_batch: bool
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, publish_time: _Optional[int] = ..., deliver_at: _Optional[int] = ..., is_batch: bool = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...
