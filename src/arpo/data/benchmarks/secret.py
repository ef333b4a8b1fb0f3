"""Rows that are published encrypted, so that crawlers cannot read questions and answers beside one another.

xbench: base64 of the UTF-8 text, XORed with the UTF-8 bytes of the row's `canary`, repeated (xbench-evals, the code
published with the set). This keeps no secret from anybody; what it asks of readers is that the plain text is not put
on the web. Nothing here writes a decrypted row to disk.
"""

import base64
import binascii

from arpo.data.benchmarks.base import RowError


def decrypt(text: str, key: str) -> str:
    """The plain text of one column. Raises RowError when it is not base64, or the key does not fit."""
    if not key:
        raise RowError("the canary is empty, and it is the key of the encrypted columns")
    try:
        return xored(base64.b64decode(text, validate=True), key.encode()).decode()
    except binascii.Error as error:
        raise RowError(
            f"an encrypted column is base64, not {text!r:.60}; in plain files it is named question"
        ) from error
    except UnicodeDecodeError as error:
        raise RowError(
            "the canary does not decrypt this row; it is the row's own, copied to the last character"
        ) from error


def encrypt(text: str, key: str) -> str:
    """What `decrypt` undoes."""
    return base64.b64encode(xored(text.encode(), key.encode())).decode()


def xored(data: bytes, key: bytes) -> bytes:
    """`data` XOR `key`, the key repeated to its length."""
    return bytes(byte ^ key[place % len(key)] for place, byte in enumerate(data))
