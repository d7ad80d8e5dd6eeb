"""The attributes of an HTML tag, and those of HTML 4 that set a style."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import unescape

_FONT_SIZES = {"1": 10.0, "2": 13.0, "3": 16.0, "4": 18.0, "5": 24.0, "6": 32.0, "7": 48.0}  # of <font size>
_ATTRIBUTE = re.compile(
    r"""(?:\A|[\s"'/])([^\s"'<>/=]++)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++)))?""", re.IGNORECASE
)


def attribute(text: str, name: str) -> str | None:
    """The value of an attribute in the text of a tag; None if it has none of this name."""
    for match in _ATTRIBUTE.finditer(text):
        if match[1].lower() == name:
            value = match[2] or match[3] or match[4] or ""
            return unescape(value) if "&" in value else value
    return None


def attribute_values(text: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for match in _ATTRIBUTE.finditer(text):
        value = match[2] or match[3] or match[4] or ""
        values.setdefault(match[1].lower(), unescape(value) if "&" in value else value)
    return values


def presentation(name: str, attributes: Mapping[str, str]) -> dict[str, str]:
    """Attributes of HTML 4 that set a style."""
    declarations = {}
    if name == "font" and "color" in attributes:
        declarations["color"] = legacy_color(attributes["color"])
    if name == "font" and attributes.get("size", "") in _FONT_SIZES:
        declarations["font-size"] = f"{_FONT_SIZES[attributes['size']]}px"
    if name == "body" and "text" in attributes:
        declarations["color"] = legacy_color(attributes["text"])
    if "bgcolor" in attributes:
        declarations["background-color"] = legacy_color(attributes["bgcolor"])
    if attributes.get("background"):
        declarations["background-image"] = "url()"
    return declarations


def legacy_color(value: str) -> str:
    value = value.strip().lower()
    return f"#{value}" if re.fullmatch(r"[0-9a-f]{6}|[0-9a-f]{3}", value) else value
