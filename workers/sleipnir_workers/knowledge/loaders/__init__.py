"""From the content of a file to text: one module per family of files, chosen by extension.

Loki reads any file as text and has commands for two kinds, `pdf: pdftotext $1 -` and `docx: pandoc --to plain $1`. Here
libraries read those and more (added by Sleipnir), so that no other program is needed; a command of `document_loaders`
for an extension takes precedence (loading.py). Text that was converted to Markdown is split as Markdown.

A loader's library is imported with the first file that needs it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Final

from sleipnir_workers.knowledge.failures import UnreadableContent
from sleipnir_workers.knowledge.loaders.content import Content, LoadedText

_MODULES: Final[Mapping[str, str]] = {
    "htm": "web_page",
    "html": "web_page",
    "xhtml": "web_page",
    "pdf": "pdf",
    "docx": "word",
    "xlsx": "spreadsheet",
    "xlsm": "spreadsheet",
    "csv": "rows",
    "tsv": "rows",
    "json": "records",
    "jsonl": "records",
    "ndjson": "records",
}

_NEEDS_A_COMMAND: Final = frozenset({"doc", "epub", "odp", "ods", "odt", "ppt", "pptx", "rtf", "xls"})


def is_plain(extension: str) -> bool:
    """Whether files with this extension are read as text, without a library."""
    return extension not in _MODULES and extension not in _NEEDS_A_COMMAND


def read(content: Content, extension: str, *, notice: Callable[[str], None]) -> LoadedText:
    """The text of a file with this extension (lower case, no dot). `notice` gets messages about missing parts.

    Raises UnreadableContent."""
    if extension in _NEEDS_A_COMMAND:
        raise UnreadableContent(f"there is no loader for .{extension}; name a command for it in `document_loaders`")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(extension, 'plain')}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries, about features of a document that are not text
            loaded: LoadedText = module.read(content, extension, notice)
    except UnreadableContent:
        raise
    except RecursionError:
        raise UnreadableContent("is nested too deeply to be read") from None
    except Exception as error:  # any error of a library for a damaged or hostile file
        raise UnreadableContent(f"is not a readable .{extension} ({type(error).__name__}: {error})") from error
    return loaded
