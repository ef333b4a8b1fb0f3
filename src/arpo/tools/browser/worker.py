"""The process that takes the text out of documents. Run as a script; it imports nothing of ours.

Parsers of hostile documents hang, grow and crash, so they do it here: under a limit of address space, unable to write
files, and dead as soon as whoever started it is. Standard input is a socket. A message is its header's length (four
bytes, big-endian), a header in JSON and, if the header has a `size`, so many bytes. After a first message that says
"ready", each request (`kind`, `charset`, `plain`, `max_chars`, `max_pages`, body) gets one answer: `text`, `title`,
`method`, `truncated`, `pages`; or `error`, one word; and `rss`, the most memory used so far, in MiB.
"""

import codecs
import ctypes
import io
import json
import os
import re
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterator
from typing import Any

_PR_SET_PDEATHSIG = 1
_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([a-zA-Z0-9_:.-]{1,40})""", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_WIDER = {"ascii": "cp1252", "iso8859-1": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
"""What browsers read where a page names the narrower one."""
_NO_TEXT = {"utf-7", "idna", "punycode", "unicode_escape", "raw_unicode_escape", "undefined", "mbcs", "oem"}
_SKIPPED = {"script", "style", "noscript", "template", "svg", "head", "iframe", "object", "select", "nav", "footer"}
_BLOCKS = {"p", "div", "br", "li", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "section", "article", "table", "ul", "ol"}
_BLOCKS |= {"dl", "dt", "dd", "blockquote", "pre", "hr", "title", "item", "entry"}
_TAG = re.compile(
    r"<(script|style)\b.{0,200000}?</\1\s*>|<!--.{0,200000}?-->|<[^<>]{0,2000}>", re.DOTALL | re.IGNORECASE
)


# --- characters ------------------------------------------------------------------------------------------------------


def decoded(body: bytes, charset: str, *, markup: bool = False) -> str:
    """`body` as text. In this order: a byte-order mark, UTF-8 if it is that and not just ASCII, what the header and
    then a <meta> says, UTF-8 with replacements. A name of no charset is passed over.
    """
    for mark, name in _BOMS:
        if body.startswith(mark):
            return _lenient(body[len(mark) :], name)
    names = [_codec(charset)]
    if markup and (found := _META.search(body[:4096])):
        names.append(_codec(found[1].decode("ascii")))
    declared = [name for name in names if name]
    if not body.isascii() and not any(name.startswith(("utf-16", "utf-32")) for name in declared):
        declared.insert(0, "utf-8")
    for name in declared:
        try:
            return codecs.getincrementaldecoder(name)("strict").decode(body)  # its last character may be cut short
        except (UnicodeError, ValueError):
            continue
    return _lenient(body, declared[-1] if declared else "utf-8")


def _codec(label: str) -> str:
    """Python's name for a charset, "" if it is none that pages are written in."""
    try:
        info = codecs.lookup(label)
    except (LookupError, ValueError):
        return ""
    if not info._is_text_encoding or info.name in _NO_TEXT:
        return ""
    return _WIDER.get(info.name, info.name)


def _lenient(body: bytes, name: str) -> str:
    return body.decode(name, "replace")


# --- documents -------------------------------------------------------------------------------------------------------


def html(text: str) -> dict[str, Any]:
    """Title and main text of a page, as Markdown; everything on it if no main text is found."""
    import trafilatura

    tree = _tree(text)
    if tree is None:
        return plain(text)
    title = _title(tree)  # what follows takes the tree apart
    found = trafilatura.extract(
        tree,
        output_format="markdown",
        include_comments=False,
        include_tables=True,
        include_images=False,
        include_links=False,
    )
    if not found:
        return plain(text)
    return {"title": title, "text": found, "method": "trafilatura"}


def plain(text: str) -> dict[str, Any]:
    """Title and all visible text; without a parser if even that fails."""
    tree = _tree(text)
    visible = "" if tree is None else "".join(_visible(tree))
    if not visible.strip():
        return {"title": "", "text": _TAG.sub(" ", text), "method": "stripped"}
    return {"title": _title(tree), "text": visible, "method": "plain"}


def _tree(text: str) -> Any:
    import lxml.etree
    import lxml.html

    try:
        parser = lxml.html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
        return lxml.html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except (lxml.etree.LxmlError, ValueError, AssertionError):
        return None


def _title(tree: Any) -> str:
    for path in ("//head//title", "//title", "//h1"):
        for element in tree.xpath(path)[:1]:
            text = " ".join("".join(element.itertext()).split())
            if text:
                return text[:500]
    return ""


def _visible(tree: Any) -> Iterator[str]:
    """The text nodes outside what no reader sees, blocks apart from each other."""
    import lxml.etree

    walk = lxml.etree.iterwalk(tree, events=("start", "end"))
    for event, element in walk:
        tag = element.tag if isinstance(element.tag, str) else ""
        if event == "start":
            if tag in _SKIPPED:
                walk.skip_subtree()
            else:
                yield "\n" if tag in _BLOCKS else ""
                yield element.text or ""
        else:
            yield "\n" if tag in _BLOCKS else " " if tag in ("td", "th") else ""
            yield element.tail or "" if element is not tree else ""


def pdf(body: bytes, max_pages: int, max_chars: int) -> dict[str, Any]:
    """Title and text of the first pages."""
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(body), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        return {"error": "encrypted"}
    texts: list[str] = []
    total = len(reader.pages)
    for number in range(min(total, max_pages)):
        texts.append(reader.pages[number].extract_text())
        if sum(map(len, texts)) > max_chars:
            break
    title = " ".join(str(reader.metadata.title or "").split())[:500] if reader.metadata else ""
    if not any(text.strip() for text in texts):
        return {"error": "no_text"}
    return {
        "title": title,
        "text": "\n\n".join(texts),
        "method": "pypdf",
        "pages": len(texts),
        "truncated": len(texts) < total,
    }


def extracted(request: dict[str, Any], body: bytes) -> dict[str, Any]:
    """The answer to a request."""
    kind, most = request["kind"], request["max_chars"]
    if kind == "pdf":
        answer = pdf(body, request["max_pages"], most)
    elif kind == "html":
        text = decoded(body, request["charset"], markup=True)
        answer = plain(text) if request["plain"] else html(text)
    else:
        answer = {"title": "", "text": decoded(body, request["charset"]), "method": "text"}
    if "error" in answer:
        return answer
    text = tidied(answer["text"][: 4 * most])
    cut = len(text) > most or len(answer["text"]) > 4 * most
    answer |= {"text": text[:most], "truncated": cut or answer.get("truncated", False)}
    return answer if answer["text"] else {"error": "no_text"}


def tidied(text: str) -> str:
    """Runs of blanks are one blank, lines have none at their ends, and no more than one empty line stands together."""
    lines = (re.sub(r"[^\S\n]+", " ", line).strip() for line in text.replace("\r\n", "\n").split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


# --- the process -----------------------------------------------------------------------------------------------------


def _most_memory_mb() -> int:
    """Of this program alone: getrusage would begin with what the process that started it was using."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        peak = next((line for line in file if line.startswith("VmHWM:")), "VmHWM: 0 kB")
    return int(peak.split()[1]) >> 10


def _answer(request: dict[str, Any], body: bytes) -> dict[str, Any]:
    try:
        answer = extracted(request, body)
    except MemoryError:
        answer = {"error": "too_big"}
    except Exception as error:  # noqa: BLE001 - whatever a parser raises over a hostile document is about the document
        answer = {"error": "broken", "detail": f"{type(error).__name__}: {error}"[:300]}
    return answer | {"rss": _most_memory_mb()}


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = connection.recv(min(size - len(data), 1 << 20))
        if not more:
            os._exit(0)
        data += more
    return bytes(data)


def _send(connection: socket.socket, header: dict[str, Any]) -> None:
    data = json.dumps(header).encode()
    connection.sendall(struct.pack(">I", len(data)) + data)


def _confine(memory_mb: int) -> None:
    """Limits that the process cannot lift again."""
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_NOFILE: 64}
    if sys.platform == "linux":  # elsewhere the address space is not what a process uses
        limits[resource.RLIMIT_AS] = memory_mb << 20
    for kind, value in limits.items():
        resource.setrlimit(kind, (value, value))


def main(parent: int, memory_mb: int) -> None:
    """Serve until the other side is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    connection = socket.socket(fileno=os.dup(0))
    try:
        _import_all()
    except Exception as error:  # noqa: BLE001 - told to whoever waits for "ready"
        _send(connection, {"failed": f"{type(error).__name__}: {error}"})
        return
    _confine(memory_mb)
    _send(connection, {"ready": True})
    while True:
        (size,) = struct.unpack(">I", _receive(connection, 4))
        request = json.loads(_receive(connection, size))
        _send(connection, _answer(request, _receive(connection, request["size"])))


def _import_all() -> None:
    import logging

    import lxml.html  # noqa: F401
    import pypdf  # noqa: F401
    import trafilatura  # noqa: F401

    logging.disable(logging.CRITICAL)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
