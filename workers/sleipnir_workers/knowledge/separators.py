"""The separators at which a text may be cut, by the extension of its file (spec 8.4), in the order of preference."""

from __future__ import annotations

from typing import Final

DEFAULT: Final = ("\n\n", "\n", " ", "")
"""The last one, "", cuts between any two characters."""


def separators_of(extension: str) -> tuple[str, ...]:
    """`extension` without its dot and in lower case."""
    return _BY_EXTENSION.get(extension, DEFAULT)


def _before(*starts: str) -> tuple[str, ...]:
    """Cut before lines that begin so, then at the default separators."""
    return (*(f"\n{start}" for start in starts), *DEFAULT)


_CPP = _before("class ", "void ", "int ", "float ", "double ", "if ", "for ", "while ", "switch ", "case ")
_GO = _before("func ", "var ", "const ", "type ", "if ", "for ", "switch ", "case ")
_JAVA = _before(
    "class ", "public ", "protected ", "private ", "static ", "if ", "for ", "while ", "switch ", "case "
)  # fmt: skip
_JS = _before(
    "function ", "const ", "let ", "var ", "class ", "if ", "for ", "while ", "switch ", "case ", "default "
)  # fmt: skip
_PHP = _before("function ", "class ", "if ", "foreach ", "while ", "do ", "switch ", "case ")
_PROTO = _before("message ", "service ", "enum ", "option ", "import ", "syntax ")
_PYTHON = _before("class ", "def ", "\tdef ")
_RST = _before("===\n", "---\n", "***\n", ".. ")
_RUBY = _before("def ", "class ", "if ", "unless ", "while ", "for ", "do ", "begin ", "rescue ")
_RUST = _before("fn ", "const ", "let ", "if ", "while ", "for ", "loop ", "match ")
_SCALA = _before("class ", "object ", "def ", "val ", "var ", "if ", "for ", "while ", "match ", "case ")
_SWIFT = _before("func ", "class ", "struct ", "enum ", "if ", "for ", "while ", "do ", "switch ", "case ")
_SOLIDITY = _before(
    "pragma ", "using ", "contract ", "interface ", "library ", "constructor ", "type ", "function ", "event ",
    "modifier ", "error ", "struct ", "enum ", "if ", "for ", "while ", "do while ", "assembly ",
)  # fmt: skip
_MARKDOWN = (
    "\n## ", "\n### ", "\n#### ", "\n##### ", "\n###### ", "```\n\n", "\n\n***\n\n", "\n\n---\n\n", "\n\n___\n\n",
    *DEFAULT,
)  # fmt: skip
_LATEX = (
    "\n\\chapter{", "\n\\section{", "\n\\subsection{", "\n\\subsubsection{", "\n\\begin{enumerate}",
    "\n\\begin{itemize}", "\n\\begin{description}", "\n\\begin{list}", "\n\\begin{quote}", "\n\\begin{quotation}",
    "\n\\begin{verse}", "\n\\begin{verbatim}", "\n\\begin{align}", "$$", "$", *DEFAULT,
)  # fmt: skip
_HTML = (
    *(f"<{tag}>" for tag in (
        "body", "div", "p", "br", "li", "h1", "h2", "h3", "h4", "h5", "h6", "span", "table", "tr", "td", "th", "ul",
        "ol", "header", "footer", "nav", "head", "style", "script", "meta", "title",
    )),
    " ", "",
)  # fmt: skip

_BY_EXTENSION: Final = {
    extension: separators
    for extensions, separators in (
        ("c cc cpp", _CPP), ("go", _GO), ("java", _JAVA), ("js mjs cjs", _JS), ("php", _PHP), ("proto", _PROTO),
        ("py", _PYTHON), ("rst", _RST), ("rb", _RUBY), ("rs", _RUST), ("scala", _SCALA), ("swift", _SWIFT),
        ("sol", _SOLIDITY), ("md mkd", _MARKDOWN), ("tex", _LATEX), ("htm html", _HTML),
    )
    for extension in extensions.split()
}  # fmt: skip
