"""Reads a ``.proto`` text into the descriptor that protobuf makes message classes of.

It knows proto3 as far as ``messaging.proto`` uses it: messages and enums, one in another, ``optional``, ``repeated``,
``map``, ``oneof``, and a service with streams. Anything else is refused with its line. protoc would do the same and
leave generated modules behind, which somebody would have to keep up to date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

_TOKEN = re.compile(r"\s+|//[^\n]*|(?P<token>[A-Za-z_][\w.]*|\d+|\"[^\"\n]*\"|[{}()<>=;,])")
_SCALARS = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in ("double", "float", "int32", "int64", "uint32", "uint64", "bool", "string", "bytes")
}


def read_proto(text: str, file_name: str) -> FileDescriptorProto:
    """Returns the descriptor of a file; ``ValueError`` names the line of what is not understood."""
    return _Reader(text, file_name).file()


class _Reader:
    """One walk over the tokens of a text."""

    def __init__(self, text: str, file_name: str) -> None:
        self._tokens = list(_tokens(text))
        self._at = 0
        self._file = FileDescriptorProto(name=file_name)
        self._enums: set[str] = set()
        self._fields: list[tuple[FieldDescriptorProto, str, str]] = []  # with the scope and the name of its type

    def file(self) -> FileDescriptorProto:
        while self._at < len(self._tokens):
            match self._next():
                case "syntax":
                    self._expect("=")
                    self._file.syntax = self._next().strip('"')
                    self._expect(";")
                case "package":
                    self._file.package = self._next()
                    self._expect(";")
                case "import":
                    self._file.dependency.append(self._next().strip('"'))
                    self._expect(";")
                case "enum":
                    self._enum(self._file.enum_type.add(), "")
                case "message":
                    self._message(self._file.message_type.add(), "")
                case "service":
                    self._service()
                case other:
                    self._refuse(other)
        for field, scope, name in self._fields:
            self._resolve(field, scope, name)
        return self._file

    # parts of a file

    def _enum(self, enum: EnumDescriptorProto, scope: str) -> None:
        enum.name = self._next()
        self._enums.add(scope + enum.name)
        self._expect("{")
        while not self._is_next("}"):
            value = enum.value.add(name=self._next())
            self._expect("=")
            value.number = int(self._next())
            self._expect(";")

    def _message(self, message: DescriptorProto, scope: str) -> None:
        message.name = self._next()
        inside = f"{scope}{message.name}."
        optional: list[FieldDescriptorProto] = []
        self._expect("{")
        while not self._is_next("}"):
            match self._next():
                case "enum":
                    self._enum(message.enum_type.add(), inside)
                case "message":
                    self._message(message.nested_type.add(), inside)
                case "oneof":
                    message.oneof_decl.add(name=self._next())
                    self._expect("{")
                    while not self._is_next("}"):
                        self._field(message, inside, self._next()).oneof_index = len(message.oneof_decl) - 1
                case "optional":
                    optional.append(self._field(message, inside, self._next()))
                case "repeated":
                    self._field(message, inside, self._next()).label = FieldDescriptorProto.LABEL_REPEATED
                case "map":
                    self._map(message, inside)
                case type_name:
                    self._field(message, inside, type_name)
        for field in optional:  # each alone in a oneof that nobody wrote, after those that somebody did
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _field(self, message: DescriptorProto, scope: str, type_name: str) -> FieldDescriptorProto:
        field = message.field.add(name=self._next(), label=FieldDescriptorProto.LABEL_OPTIONAL)
        field.json_name = _camel(field.name)
        self._expect("=")
        field.number = int(self._next())
        self._expect(";")
        self._fields.append((field, scope, type_name))
        return field

    def _map(self, message: DescriptorProto, scope: str) -> None:
        self._expect("<")
        key = self._next()
        self._expect(",")
        value = self._next()
        self._expect(">")
        name = self._tokens[self._at][0]
        entry = message.nested_type.add(name=_camel(f"_{name}_entry"))
        entry.options.map_entry = True
        for number, (part, type_name) in enumerate((("key", key), ("value", value)), 1):
            field = entry.field.add(name=part, json_name=part, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            self._fields.append((field, scope, type_name))
        self._field(message, scope, scope + entry.name).label = FieldDescriptorProto.LABEL_REPEATED

    def _service(self) -> None:
        service = self._file.service.add(name=self._next())
        self._expect("{")
        while not self._is_next("}"):
            self._expect("rpc")
            method = service.method.add(name=self._next())
            method.client_streaming, method.input_type = self._rpc_side()
            self._expect("returns")
            method.server_streaming, method.output_type = self._rpc_side()
            self._expect(";")

    def _rpc_side(self) -> tuple[bool, str]:
        self._expect("(")
        name = self._next()
        is_stream = name == "stream"
        if is_stream:
            name = self._next()
        self._expect(")")
        return is_stream, f".{self._file.package}.{name}"

    def _resolve(self, field: FieldDescriptorProto, scope: str, name: str) -> None:
        """Gives a field its type, once all are known: of the same message, of the file, or of another package."""
        if name in _SCALARS:
            field.type = _SCALARS[name]
        elif name.startswith("google."):
            field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{name}"
        else:
            found = scope + name if scope + name in self._enums else name
            is_enum = found in self._enums
            field.type = FieldDescriptorProto.TYPE_ENUM if is_enum else FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{self._file.package}.{found}"

    # tokens

    def _next(self) -> str:
        token, _ = self._tokens[self._at]
        self._at += 1
        return token

    def _is_next(self, token: str) -> bool:
        """Steps over ``token`` if it is next."""
        is_next = self._tokens[self._at][0] == token
        self._at += is_next
        return is_next

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            self._refuse(found)

    def _refuse(self, token: str) -> None:
        raise ValueError(f"{self._file.name}, line {self._tokens[self._at - 1][1]}: {token!r} is not understood")


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    at, line = 0, 1
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"line {line}: {text[at]!r} is not understood")
        if found["token"] is not None:
            yield found["token"], line
        line += text.count("\n", at, found.end())
        at = found.end()


def _camel(name: str) -> str:
    """``a_b`` as ``aB``."""
    return re.sub(r"_(.)", lambda found: found[1].upper(), name)
