"""Estimates the width of a text without a font: never less than a browser needs.

Widths are those of DejaVu Sans, the widest of the fonts that a picture names, rounded up, as fractions of the
font size. Texts are on one line.
"""

from __future__ import annotations

import re
import unicodedata

_WIDTHS = {
    0.3: "IJijl",
    0.35: " ,./:;\\|",
    0.4: "()-[]ft",
    0.45: "!r",
    0.5: "\"*_`'",
    0.55: "?csz",
    0.6: "FLkvxy·",
    0.65: "$0123456789EPSTYabdeghnopqu{}",
    0.7: "ABCKRVXZ",
    0.75: "NU",
    0.8: "&DGHOQ",
    0.85: "#+<=>^w~×",
    0.9: "M",
    1.0: "%@Wm…",
}
_WIDTH_OF = {char: width for width, chars in _WIDTHS.items() for char in chars}
_OTHER_LETTER = 0.95  # nineteen of twenty Latin, Greek and Cyrillic letters are narrower
_WIDE = 1.3  # Chinese, Japanese and Korean letters are 1 wide, pictograms up to this
_UNSEEN = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]+")


def width(text: str, size: float) -> float:
    """The width of a line at a font size, in the unit of the size."""
    return size * sum(_char_width(char) for char in text)


def one_line(text: str, longest: int) -> str:
    """The text on one line, without invisible and direction-changing characters; a long text is cut."""
    clean = _UNSEEN.sub(" ", text).strip()
    return clean if len(clean) <= longest else clean[: longest - 1].rstrip() + "…"


def _char_width(char: str) -> float:
    known = _WIDTH_OF.get(char)
    if known is not None:
        return known
    if unicodedata.combining(char):
        return 0.0
    return _OTHER_LETTER if ord(char) < 0x2000 else _WIDE
