"""Sample documents for tests: PDF and Word files in memory, and notes ready for a library."""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pypdf
from docx import Document as WordDocument

from turnwire.retrieval.documents.document import ParsedDocument
from turnwire.retrieval.documents.parser import format_of, parse
from turnwire.retrieval.index.library import NewDocument
from turnwire.retrieval.index.sqlite import SqliteLibrary

ROOT = "/documents"


def pdf(*pages: str, title: str | None = None) -> bytes:
    """A PDF written by hand: every line of a page is a line of text; an empty page has none."""
    bodies = ["<< /Type /Catalog /Pages 2 0 R >>", "", "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"]
    kids: list[str] = []
    for page in pages:
        lines = " T* ".join(f"({line}) Tj" for line in page.split("\n") if line)
        drawn = f"BT /F1 12 Tf 72 720 Td 16 TL {lines} ET" if lines else ""
        kids.append(f"{len(bodies) + 1} 0 R")
        bodies.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792]"
            f" /Resources << /Font << /F1 3 0 R >> >> /Contents {len(bodies) + 2} 0 R >>"
        )
        bodies.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    bodies[1] = f"<< /Type /Pages /Kids [{' '.join(kids)}] /Count {len(kids)} >>"
    if title:
        bodies.append(f"<< /Title ({title}) >>")
    written, places = b"%PDF-1.4\n", []
    for number, body in enumerate(bodies, start=1):
        places.append(len(written))
        written += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    table = "".join(f"{location:010} 00000 n \n" for location in places)
    result = f" /Info {len(bodies)} 0 R" if title else ""
    return written + (
        f"xref\n0 {len(bodies) + 1}\n0000000000 65535 f \n{table}"
        f"trailer\n<< /Size {len(bodies) + 1} /Root 1 0 R{result} >>\nstartxref\n{len(written)}\n%%EOF\n"
    ).encode("latin-1")


def encrypted(content: bytes, password: str) -> bytes:
    """Return the PDF encrypted with a password; an empty password opens without being entered."""
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(content))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    return saved(writer.write)


def word(*paragraphs: str, title: str = "", rows: tuple[tuple[str, ...], ...] = ()) -> bytes:
    """A Word document; a paragraph that begins with `#` is a heading, and the rows are a table at the end."""
    document = WordDocument()
    document.core_properties.title = title
    for paragraph in paragraphs:
        text = paragraph.lstrip("#")
        if level := len(paragraph) - len(text):
            document.add_heading(text.strip(), level)
        else:
            document.add_paragraph(text)
    if rows:
        table = document.add_table(0, len(rows[0]))
        for row in rows:
            for cell, text in zip(table.add_row().cells, row, strict=True):
                cell.text = text
    return saved(document.save)


def saved(save: object) -> bytes:
    into = io.BytesIO()
    save(into)  # type: ignore[operator]
    return into.getvalue()


def with_part(content: bytes, name: str, part: bytes) -> bytes:
    """Return a Word document with one file of its archive replaced."""
    into = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(into, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in source.namelist():
            archive.writestr(entry, part if entry == name else source.read(entry))
    return into.getvalue()


def block_texts(parsed: ParsedDocument) -> list[str]:
    """Return the text of each block."""
    starts = [*(block.start for block in parsed.blocks), len(parsed.text)]
    return [parsed.text[start:stop].strip() for start, stop in pairwise(starts)]


def note(text: str, name: str = "note.md", *, root: str | None = ROOT, owner: str | None = None) -> NewDocument:
    """A document ready to be written; an owner's has no root."""
    content = text.encode()
    root = None if owner else root
    return NewDocument(name, format_of(name) or "", content, parse(name, content), root=root, owner=owner)


@contextmanager
def opened(path: Path) -> Iterator[SqliteLibrary]:
    library = SqliteLibrary(path)
    library.open()
    try:
        yield library
    finally:
        library.close()


def rows(library: SqliteLibrary, query: str, *values: object) -> list[tuple[object, ...]]:
    """Return the rows of a query on the database file."""
    with library.file.reading() as database:
        return database.execute(query, values).fetchall()
