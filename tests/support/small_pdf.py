"""PDFs of our own, written by hand: pages with a line of text each, and hostile ones."""

import zlib


def pdf(*pages, title="", filler=b"", compress=False):
    """A PDF whose pages say `pages`. `filler`: further content of the first page's stream."""
    count = len(pages)
    objects = {
        1: b"<< /Type /Catalog /Pages 2 0 R >>",
        2: b"<< /Type /Pages /Count %d /Kids [%s] >>"
        % (count, b" ".join(b"%d 0 R" % (10 + 2 * n) for n in range(count))),
        3: b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        4: b"<< /Title (%s) >>" % title.encode(),
    }
    for number, text in enumerate(pages):
        content = b"BT /F1 12 Tf 72 720 Td (%s) Tj ET\n" % text.encode() + (filler if number == 0 else b"")
        content, extra = (zlib.compress(content, 9), b" /Filter /FlateDecode") if compress else (content, b"")
        font = b"<< /Font << /F1 3 0 R >> >>"
        page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Resources %s /Contents %d 0 R >>"
        objects[10 + 2 * number] = page % (font, 11 + 2 * number)
        objects[11 + 2 * number] = b"<< /Length %d%s >>\nstream\n%s\nendstream" % (len(content), extra, content)
    return assembled(objects)


def assembled(objects):
    """Objects by number, with a table of where they are."""
    body, places = bytearray(b"%PDF-1.4\n"), {}
    for number, text in objects.items():
        places[number] = len(body)
        body += b"%d 0 obj\n%s\nendobj\n" % (number, text)
    start, size = len(body), max(objects) + 1
    body += b"xref\n0 %d\n0000000000 65535 f \n" % size
    for number in range(1, size):
        body += b"%010d 00000 %s \n" % (places.get(number, 0), b"n" if number in places else b"f")
    return bytes(body) + b"trailer\n<< /Size %d /Root 1 0 R /Info 4 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (size, start)
