"""The body of an answer, decompressed as it comes and never beyond a limit.

A kilobyte may stand for a megabyte, and compression may be stacked, so nothing is decompressed but into a buffer of
known size: what would exceed the limit is never made. Raw bytes are limited, too, since there are compressed streams
that go on for ever and yield nothing. One layer of compression is understood; who stacks more wants something else.
"""

import importlib
import zlib
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from arpo.tools.browser.errors import PageError

_PIECE = 1 << 16


class _Decoder(Protocol):
    def pieces(self, data: bytes) -> Iterator[bytes]:
        """`data` decoded, in pieces of bounded size. Raises ValueError for what cannot be decoded."""
        ...


class _Identity:
    def pieces(self, data: bytes) -> Iterator[bytes]:
        yield data


class _Zlib:
    """gzip with any number of members, and deflate with and without zlib's frame."""

    def __init__(self, kind: str) -> None:
        self._wbits = 31 if kind == "gzip" else None
        self._open = zlib.decompressobj(31)

    def pieces(self, data: bytes) -> Iterator[bytes]:
        if self._wbits is None:
            self._wbits = 15 if data[:1] and data[0] & 0x0F == 8 else -15
            self._open = zlib.decompressobj(self._wbits)
        while data:
            if self._open.eof:
                if self._wbits != 31 or not data.startswith(b"\x1f"):
                    return  # padding behind the end
                self._open = zlib.decompressobj(self._wbits)
            try:
                yield self._open.decompress(data, _PIECE)
            except zlib.error as error:
                raise ValueError(str(error)) from error
            data = self._open.unconsumed_tail or self._open.unused_data


class _Brotli:
    def __init__(self) -> None:
        self._open = importlib.import_module("brotli").Decompressor()

    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            yield self._open.process(data, output_buffer_limit=_PIECE)
            while not (self._open.can_accept_more_data() or self._open.is_finished()):
                yield self._open.process(b"", output_buffer_limit=_PIECE)
        except Exception as error:
            raise ValueError(str(error)) from error


def _brotli_is_bounded() -> bool:
    """True if a brotli is installed that can be told how much to yield."""
    try:
        return hasattr(importlib.import_module("brotli").Decompressor, "can_accept_more_data")
    except ImportError:
        return False


ACCEPT = "gzip, deflate, br" if _brotli_is_bounded() else "gzip, deflate"
"""The Accept-Encoding header."""


def _decoder(encoding: str) -> _Decoder:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return _Identity()
    if name in ("gzip", "x-gzip", "deflate"):
        return _Zlib(name.removeprefix("x-"))
    if name == "br" and "br" in ACCEPT:
        return _Brotli()
    raise PageError("encoding", "The page is compressed in a way that cannot be read here.")


async def read(body: AsyncIterator[bytes], encoding: str, limit: int) -> tuple[bytes, bool]:
    """The first `limit` bytes of the decoded body, and whether there was more. Raises PageError."""
    decoder, kept, raw = _decoder(encoding), bytearray(), 0
    async for data in body:
        raw += len(data)
        try:
            for piece in decoder.pieces(data):
                kept += piece
                if len(kept) > limit:
                    return bytes(kept[:limit]), True
        except ValueError as error:
            raise PageError("encoding", "The page is compressed in a broken way.") from error
        if raw > limit:
            return bytes(kept), True
    return bytes(kept), False
