"""Text out of documents: what a reader would read, in a process that no document can make us wait for."""

import asyncio
import io
import os
import signal
import subprocess
import sys
import time
import zlib

import pypdf
import pytest
from small_pdf import assembled, pdf

from arpo.errors import ToolSetupError
from arpo.tools.browser import extract, worker
from arpo.tools.browser.errors import PageError
from arpo.tools.browser.extract import Extractor

SENTENCE = "The capital of Atlantis is Poseidonis, a city of forty bridges and one clock. "
PAGE = f"""<!doctype html><html><head><title>Atlantis &amp; more</title><style>p {{color: red}}</style></head><body>
<nav><a href="/">Home</a> <a href="/about">About us</a></nav><div class="cookie-banner">Accept cookies</div>
<article><h1>Atlantis</h1><p>{SENTENCE * 3}</p><p>{SENTENCE * 2}</p>
<table><tr><th>Area</th><th>Bridges</th></tr><tr><td>1,234 km2</td><td>forty</td></tr></table></article>
<script>alert("no text")</script></body></html>""".encode()


@pytest.fixture(scope="module")
def shared():
    """One worker for all tests that leave it as it was."""
    extractor = Extractor(workers=1, max_pages=3)
    yield extractor
    asyncio.run(extractor.close())


async def refusal(extractor, body, kind="text/html"):
    with pytest.raises(PageError) as refused:
        await extractor.extract(body, kind, "")
    assert refused.value.kind == "content"
    return refused.value.sentence


# --- pages ------------------------------------------------------------------------------------------------------------


async def test_the_main_text_of_a_page(shared):
    got = await shared.extract(PAGE, "text/html", "utf-8")
    assert (got.title, got.method, got.truncated) == ("Atlantis & more", "trafilatura", False)
    assert "forty bridges" in got.text
    assert "| 1,234 km2 | forty |" in got.text
    assert not any(noise in got.text for noise in ("About us", "Accept cookies", "alert", "color: red"))


async def test_equal_pages_have_equal_texts(shared):
    assert await shared.extract(PAGE, "text/html", "") == await shared.extract(PAGE, "text/html", "")


async def test_a_page_without_a_main_text_gives_what_there_is(shared):
    got = await shared.extract(b"<title>T</title><p>a<p>b<script>x</script>", "text/html", "")
    assert (got.title, got.text.split()) == ("T", ["a", "b"])


async def test_feeds_and_other_xml(shared):
    item = b"<item><title>One</title><description>first</description></item>"
    feed = b"<?xml version='1.0'?><rss><channel>" + item + b"</channel></rss>"
    got = await shared.extract(feed, "application/rss+xml", "")
    assert (got.method, got.text.split()) == ("plain", ["One", "first"])


async def test_plain_text_and_json_stay_as_they_are(shared):
    got = await shared.extract(b'{"a":  1}\r\n\r\n\r\n\r\n<b> 2 \n', "application/json", "")
    assert (got.text, got.method) == ('{"a": 1}\n\n<b> 2', "text")


async def test_hostile_characters_are_gone(shared):
    body = "a\u202eb\x1b[31mc\x00d\ud800".encode("utf-8", "surrogatepass")
    got = await shared.extract(body, "text/plain", "")
    assert not any(char in got.text for char in "\u202e\x1b\x00\ud800")


@pytest.mark.parametrize("body", [b"", b"  \n", b"<html></html>", b"<script>x</script>"])
async def test_documents_without_text(shared, body):
    assert await refusal(shared, body) == "There is no text in this document."


# --- characters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "charset", "text"),
    [
        ("größe".encode(), "utf-8", "größe"),
        ("größe".encode("latin-1"), "iso-8859-1", "größe"),
        ("größe".encode(), "iso-8859-1", "größe"),
        ("größe".encode("latin-1"), "utf-8", "gr\ufffd\ufffde"),
        ("größe".encode("latin-1"), "", "gr\ufffd\ufffde"),
        ("“smart”".encode("cp1252"), "latin-1", "“smart”"),
        ("größe".encode(), "no-such-charset", "größe"),
        ("größe".encode(), "rot13", "größe"),
        (b"+ADw-script+AD4-", "utf-7", "+ADw-script+AD4-"),
        ("日本".encode("iso-2022-jp"), "iso-2022-jp", "日本"),
        ("日本".encode("shift_jis"), "Shift_JIS", "日本"),
        ("中文㐀".encode("gb18030"), "gb2312", "中文㐀"),
        ("größe".encode("utf-16"), "", "größe"),
        ("größe".encode("utf-16-be"), "utf-16be", "größe"),
        (b"\xef\xbb\xbfx", "latin-1", "x"),
        ("größ".encode() + b"\xc3", "utf-8", "größ"),
        (b"<meta charset='koi8-r'>" + "мир".encode("koi8-r"), "", "<meta charset='koi8-r'>мир"),
        (b"<meta charset='undefined'>x", "", "<meta charset='undefined'>x"),
        (b"\xff\xfe", "", ""),
    ],
)
def test_charsets_declared_wrongly_or_not_at_all(body, charset, text):
    assert worker.decoded(body, charset, markup=True) == text


# --- PDF --------------------------------------------------------------------------------------------------------------


async def test_a_pdf(shared):
    got = await shared.extract(pdf("Hello Atlantis", "second page", title="A book"), "application/pdf", "")
    assert (got.title, got.method, got.pages, got.truncated) == ("A book", "pypdf", 2, False)
    assert got.text == "Hello Atlantis\n\nsecond page"


async def test_pages_beyond_the_cap_are_left_out(shared):
    got = await shared.extract(pdf(*(f"page {n}" for n in range(200)), compress=True), "application/pdf", "")
    assert (got.pages, got.truncated, got.text) == (3, True, "page 0\n\npage 1\n\npage 2")


async def test_broken_pdfs(shared):
    whole = pdf("Hello Atlantis")
    for body in (
        b"%PDF-1.7 rubbish",
        b"",
        whole[:100],
        whole[:300],
        whole.replace(b"/Kids [10 0 R]", b"/Kids [2 0 R]"),
    ):
        assert await refusal(shared, body, "application/pdf") == "The document is broken and cannot be read."
    loop = assembled({1: b"<< /Type /Catalog /Pages 2 0 R >>", 2: b"2 0 R", 4: b"<< /Title 4 0 R >>"})
    assert (await refusal(shared, loop, "application/pdf")).endswith("cannot be read.")
    assert await refusal(shared, pdf(""), "application/pdf") == "There is no text in this document."


async def test_an_encrypted_pdf(shared):
    writer, out = pypdf.PdfWriter(io.BytesIO(pdf("secret"))), io.BytesIO()
    writer.encrypt("password", algorithm="RC4-128")
    writer.write(out)
    assert await refusal(shared, out.getvalue(), "application/pdf") == "The document is encrypted and cannot be read."


async def test_a_pdf_that_unpacks_to_more_than_there_is_room_for(shared):
    packer = zlib.compressobj(1)
    stream = b"".join([*(packer.compress(b" " * (1 << 20)) for _ in range(200)), packer.flush()])
    bomb = assembled(
        {
            1: b"<< /Type /Catalog /Pages 2 0 R >>",
            2: b"<< /Type /Pages /Count 1 /Kids [3 0 R] >>",
            3: b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 5 0 R >>",
            4: b"<< >>",
            5: b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(stream), stream),
        }
    )
    assert len(bomb) < 1_000_000
    assert await refusal(shared, bomb, "application/pdf")
    assert all(idle.rss < 600 for idle in shared._idle)


# --- the process ------------------------------------------------------------------------------------------------------


async def test_deep_nesting(shared):
    got = await shared.extract(b"<body>" + b"<div>" * 20_000 + b"deep text" + b"</div>" * 20_000, "text/html", "")
    assert got.text == "deep text"


async def test_a_large_table(shared):
    row = b"<tr>" + b"<td>a cell</td>" * 20 + b"</tr>"
    got = await shared.extract(b"<body><table>" + row * 200 + b"</table>", "text/html", "")
    assert got.text.count("a cell") >= 3_600


async def test_a_long_text_is_cut(shared):
    got = await shared.extract(b"word " * 900_000, "text/plain", "")
    assert (len(got.text), got.truncated) == (extract.MAX_CHARS, True)


async def test_a_worker_that_hangs_is_killed_and_the_page_read_by_another(shared, monkeypatch):
    await shared.extract(PAGE, "text/html", "")
    hung = shared._idle[0].process
    hung.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(shared, "_timeout", 0.3)
    started = asyncio.create_task(shared.extract(PAGE, "text/html", ""))
    while hung.poll() is None:
        await asyncio.sleep(0.01)
    shared._timeout = 10
    assert (await started).method == "plain"
    assert hung.poll() == -signal.SIGKILL


async def test_a_worker_that_dies_between_two_documents_is_replaced(shared):
    await shared.extract(PAGE, "text/html", "")
    old = shared._idle[0].process
    old.kill()
    old.wait()
    assert (await shared.extract(PAGE, "text/html", "")).method == "trafilatura"
    assert shared._idle[0].process.pid != old.pid


async def test_a_worker_that_has_grown_is_retired(shared, monkeypatch):
    monkeypatch.setattr(extract, "_GROWN", 0.001)
    await shared.extract(PAGE, "text/html", "")
    assert shared._idle == []
    assert shared._ended[-1].wait(10) in (0, -signal.SIGKILL), "killed, unless the closed socket was seen first"


async def test_memory_of_the_process_that_starts_a_worker_is_not_the_workers(shared):
    hoard = bytearray(os.urandom(1 << 20) * 700)
    fresh = extract.Extractor(workers=1)
    try:
        await fresh.extract(PAGE, "text/html", "")
        assert [worker.rss < 600 for worker in fresh._idle] == [True]
    finally:
        await fresh.close()
    assert len(hoard) == 700 << 20


async def test_a_call_that_is_cancelled_takes_its_worker_with_it(shared):
    await shared.extract(PAGE, "text/html", "")
    process = shared._idle[0].process
    process.send_signal(signal.SIGSTOP)
    task = asyncio.create_task(shared.extract(PAGE, "text/html", ""))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert process.wait(10) == -signal.SIGKILL


def test_workers_serve_one_event_loop_after_another(shared):
    pids = []
    for _ in range(2):
        asyncio.run(shared.extract(PAGE, "text/html", ""))
        pids.append(shared._idle[0].process.pid)
    assert pids[0] == pids[1]


async def test_a_worker_has_none_of_our_secrets_and_cannot_write(shared, monkeypatch):
    monkeypatch.setenv("SEARCH_API_KEY", "sk-secret")
    await shared.close()
    await shared.extract(PAGE, "text/html", "")
    pid = shared._idle[0].process.pid
    with open(f"/proc/{pid}/environ", "rb") as file:
        assert b"sk-secret" not in file.read()
    with open(f"/proc/{pid}/limits") as file:
        limits = {line[:26].strip(): line[26:].split()[0] for line in file}
    assert limits["Max file size"] == "0"
    assert limits["Max core file size"] == "0"
    assert limits["Max address space"] == str(1024 << 20)


def test_workers_die_with_whoever_started_them():
    program = (
        "import asyncio, os, signal, sys\n"
        "from arpo.tools.browser.extract import Extractor\n"
        "async def main():\n"
        "    extractor = Extractor(workers=1)\n"
        "    await extractor.extract(b'some text', 'text/plain', '')\n"
        "    process = extractor._idle[0].process\n"
        "    process.send_signal(signal.SIGSTOP)\n"
        "    print(process.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    pid = int(done.stdout)
    for _ in range(200):
        if not _runs(pid):
            return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker outlived its parent")


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_worker_that_cannot_start_is_no_fault_of_the_page(monkeypatch):
    extractor = Extractor(workers=1)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="the process for reading documents"):
        await extractor.extract(PAGE, "text/html", "")
    await extractor.close()


def test_a_missing_package_is_named_with_its_remedy(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pypdf" else object())
    with pytest.raises(ToolSetupError, match=r"pypdf: pip install 'arpo\[browser\]'"):
        extract.require_parsers()
