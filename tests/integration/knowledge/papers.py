"""PDF and Word files, made by hand."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence


def pdf(pages: Sequence[str], *, encrypted: bool = False) -> bytes:
    """A PDF with one line of text on each page; a page of no text is empty."""
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents {5 + 2 * number} 0 R"
            " /Resources << /Font << /F1 3 0 R >> >> >>"
        )
        drawn = f"BT /F1 12 Tf 50 700 Td ({text}) Tj ET" if text else ""
        objects.append(f"<< /Length {len(drawn)} >>\nstream\n{drawn}\nendstream")
    secret = " /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{0}> /U <{0}> >>".format("5a" * 32)
    written = io.BytesIO()
    written.write(b"%PDF-1.4\n")
    places = []
    for number, each in enumerate(objects, start=1):
        places.append(written.tell())
        written.write(f"{number} 0 obj\n{each}\nendobj\n".encode())
    table = written.tell()
    written.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode())
    written.write("".join(f"{place:010} 00000 n \n" for place in places).encode())
    trailer = f"/Size {len(objects) + 1} /Root 1 0 R /ID [<{'ab' * 16}> <{'ab' * 16}>]{secret if encrypted else ''}"
    written.write(f"trailer << {trailer} >>\nstartxref\n{table}\n%%EOF\n".encode())
    return written.getvalue()


_WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
_RELATIONS = "http://schemas.openxmlformats.org/package/2006/relationships"
_DOCUMENT = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument"
_STYLES = "http://schemas.openxmlformats.org/officeDocument/2006/relationships/styles"


def docx(heading: str, text: str, table: Sequence[Sequence[str]]) -> bytes:
    def paragraph(words: str, style: str = "") -> str:
        return f"<w:p><w:pPr>{style}</w:pPr><w:r><w:t>{words}</w:t></w:r></w:p>"

    rows = "".join("<w:tr>" + "".join(f"<w:tc>{paragraph(cell)}</w:tc>" for cell in row) + "</w:tr>" for row in table)
    head = paragraph(heading, '<w:pStyle w:val="Heading1"/>')
    style = '<w:style w:type="paragraph" w:styleId="Heading1"><w:name w:val="heading 1"/></w:style>'
    return zipped(
        {
            "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"/>',
            "_rels/.rels": f'<Relationships xmlns="{_RELATIONS}">'
            f'<Relationship Id="r1" Type="{_DOCUMENT}" Target="word/document.xml"/></Relationships>',
            "word/_rels/document.xml.rels": f'<Relationships xmlns="{_RELATIONS}">'
            f'<Relationship Id="r1" Type="{_STYLES}" Target="styles.xml"/></Relationships>',
            "word/styles.xml": f'<w:styles xmlns:w="{_WORD}">{style}</w:styles>',
            "word/document.xml": f'<w:document xmlns:w="{_WORD}"><w:body>{head}{paragraph(text)}'
            f"<w:tbl>{rows}</w:tbl></w:body></w:document>",
        }
    )


_SHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_SHEET_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml"


def workbook_of_one_string(string: str, *, rows: int, columns: int) -> bytes:
    """All its cells share that string, which is in the file once."""
    cell = '<c t="s"><v>0</v></c>'
    parts = {"/xl/workbook.xml": "sheet.main", "/xl/s.xml": "worksheet", "/xl/strings.xml": "sharedStrings"}
    types = "".join(
        f'<Override PartName="{name}" ContentType="{_SHEET_TYPE}.{kind}+xml"/>' for name, kind in parts.items()
    )
    return zipped(
        {
            "[Content_Types].xml": '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
            f"{types}</Types>",
            "_rels/.rels": f'<Relationships xmlns="{_RELATIONS}">'
            f'<Relationship Id="r1" Type="{_DOCUMENT}" Target="xl/workbook.xml"/></Relationships>',
            "xl/workbook.xml": f'<workbook xmlns="{_SHEET}" xmlns:r="{_OFFICE}">'
            '<sheets><sheet name="s" sheetId="1" r:id="r1"/></sheets></workbook>',
            "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_RELATIONS}">'
            f'<Relationship Id="r1" Type="{_OFFICE}/worksheet" Target="s.xml"/></Relationships>',
            "xl/strings.xml": f'<sst xmlns="{_SHEET}"><si><t>{string}</t></si></sst>',
            "xl/s.xml": f'<worksheet xmlns="{_SHEET}"><sheetData>'
            + f"<row>{cell * columns}</row>" * rows
            + "</sheetData></worksheet>",
        }
    )


def zipped(files: dict[str, str]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return written.getvalue()
