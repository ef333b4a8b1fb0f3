"""Rows that are published encrypted, so that crawlers cannot read questions and answers beside one another.

xbench: base64 of the UTF-8 text, XORed with the UTF-8 bytes of the row's `canary`, repeated (xbench-evals, the code
published with the set). This keeps no secret from anybody; what it asks of readers is that the plain text is not put
on the web. Nothing here writes a decrypted row to disk.
"""

import base64

from arpo.data.columns import UnusableError


def decrypt(text: str, key: str) -> str:
    """The plain text of one column. Raises UnusableError when it is not base64, or the key does not fit."""
    if not key:
        raise UnusableError("the canary is empty, and it is the key of the encrypted columns")
    try:
        return xored(base64.b64decode(text, validate=True), key.encode()).decode()
    except UnicodeDecodeError as error:
        raise UnusableError("the canary does not decrypt this row: it must be its own, to the last letter") from error
    except ValueError as error:
        raise UnusableError(f"not base64, so not encrypted: {text!r:.60}; plain files name it question") from error


def encrypt(text: str, key: str) -> str:
    """What `decrypt` undoes."""
    return base64.b64encode(xored(text.encode(), key.encode())).decode()


def xored(data: bytes, key: bytes) -> bytes:
    """`data` XOR `key`, the key repeated to its length."""
    return bytes(byte ^ key[place % len(key)] for place, byte in enumerate(data))
