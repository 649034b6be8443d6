"""Word documents (extra `[office]`): paragraphs, headings and table rows."""

import io
import re
import zipfile

from turnwire.core.encoding import clean_text
from turnwire.core.errors import UnreadableDocumentError
from turnwire.retrieval.documents.parsed import Block, Parsed

_HEADING = re.compile(r"(?:Heading (\d)|Title)")
_MOST_UNPACKED = 200 * 1024 * 1024


def parse_docx(content: bytes) -> Parsed:
    """Raises UnreadableDocumentError."""
    try:
        from docx import Document
        from docx.table import Table
    except ImportError as error:
        raise UnreadableDocumentError("it needs an extra: pip install 'turnwire[office]'") from error
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > _MOST_UNPACKED:
                raise UnreadableDocumentError("it unpacks to more than 200 MB")
        document = Document(io.BytesIO(content))
        rows: list[tuple[str, int]] = []
        for part in document.iter_inner_content():
            if isinstance(part, Table):
                rows += [(" | ".join(cell.text for cell in row.cells), 0) for row in part.rows]
            else:
                style = _HEADING.match(part.style.name or "") if part.style else None
                rows.append((part.text, int(style[1] or 1) if style else 0))
        title = document.core_properties.title or None
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise UnreadableDocumentError("it is not a sound Word document") from error
    texts: list[str] = []
    blocks: list[Block] = []
    offset = 0
    for raw, level in rows:
        text = clean_text(raw).strip()
        if text:
            blocks.append(Block(offset, min(level, 6), text if level else ""))
            texts.append(text)
            offset += len(text) + 2
    return Parsed("\n\n".join(texts), blocks, title)
