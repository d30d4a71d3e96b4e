"""Text of a trace file, plain or compressed with gzip, or one sentence on why there is none."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from schedulers.errors import InputError

_GZIP_MAGIC = b"\x1f\x8b"


def read_text(path: str) -> str:
    """The whole text of `path`, without a byte-order mark. Compression is told by content, not by name.

    Raises:
        InputError: the file is absent, a folder, unreadable, empty, a damaged gzip file, or not UTF-8 text.
    """
    try:
        data = Path(path).expanduser().read_bytes()
    except FileNotFoundError:
        raise InputError(f"workload.path={path}: there is no such file") from None
    except IsADirectoryError:
        raise InputError(f"workload.path={path}: this is a folder; name the trace file in it") from None
    except (OSError, ValueError) as error:
        raise InputError(f"workload.path={path}: the file cannot be read ({error})") from None
    if data.startswith(_GZIP_MAGIC):
        data = _decompressed(path, data)
    if not data.strip():
        raise InputError(f"{path}: the file is empty")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line}: byte 0x{data[error.start]:02x} is not UTF-8; a trace is text, plain or gzip"
        ) from None


def _decompressed(path: str, data: bytes) -> bytes:
    try:
        return gzip.decompress(data)
    except EOFError:
        raise InputError(f"{path}: the gzip file is truncated; copy or download it again") from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path}: the gzip file is damaged ({error}); copy or download it again") from None
