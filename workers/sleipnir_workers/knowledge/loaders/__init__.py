"""From the content of a file to text: one module per family of files, chosen by extension.

Loki reads any file as text and has commands for two kinds, `pdf: pdftotext $1 -` and `docx: pandoc --to plain $1`. Here
libraries read those and more (added by Sleipnir), so that nothing has to be installed beside Sleipnir; a command of
`document_loaders` for an extension goes before them (loading.py). What becomes Markdown is split as Markdown.

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
    """Whether files of it are taken as they are, without a library."""
    return extension not in _MODULES and extension not in _NEEDS_A_COMMAND


def read(content: Content, extension: str, *, notice: Callable[[str], None]) -> LoadedText:
    """The text of a file of that extension (lower case, no dot). `notice` is told what is missing from it.

    Raises UnreadableContent."""
    if extension in _NEEDS_A_COMMAND:
        raise UnreadableContent(f"there is no loader for .{extension}; name a command for it in `document_loaders`")
    module = importlib.import_module(f"{__name__}.{_MODULES.get(extension, 'plain')}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # libraries on features of a document that are no text
            loaded: LoadedText = module.read(content, extension, notice)
    except UnreadableContent:
        raise
    except RecursionError:
        raise UnreadableContent("is nested too deeply to be read") from None
    except Exception as error:  # whatever a library makes of a file that is damaged, or made to do damage
        raise UnreadableContent(f"is no .{extension} that can be read ({type(error).__name__}: {error})") from error
    return loaded
