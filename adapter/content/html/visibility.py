"""Decide which text of an HTML message is visible, so that hidden text never reaches the reader of the Markdown file.

``Visibility`` follows the tags of a document in one pass, without a tree. It keeps the open elements with the style
that their text inherits, and applies ``style`` attributes, presentational attributes and the message's own ``<style>``
rules. Text is hidden if it is not displayed, transparent, of no size, of the colour of its background, or off the page.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from adapter.content.html.attributes import attribute_values, presentation
from adapter.content.html.css import (
    MAX_CLASSES,
    PLAIN,
    Element,
    Style,
    StyleSheet,
    derive,
    parse_declarations,
)

_MAX_REOPENED = 16
_MAX_IMPLIED_DEPTH = 64

#: An element without any of these attributes has the style of its parent, unless a rule says otherwise.
_STYLED = re.compile(r"style|hidden|color|size|background", re.IGNORECASE)
_STYLED_NAMES = frozenset(("body", "dialog"))
_NO_CLASSES: frozenset[str] = frozenset()
VOID = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr"]
)
_FORMATTING = frozenset(
    ("a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u")
)
_CELLS = frozenset(("td", "th", "caption"))
_TABLE = _CELLS | {"table", "tr", "tbody", "thead", "tfoot"}
_BLOCKS = frozenset(
    (
        "address", "article", "aside", "blockquote", "center", "div", "dl", "fieldset", "figure", "footer", "form",
        "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "main", "nav", "ol", "p", "pre", "section", "table", "ul",
    )
)  # fmt: skip
#: Opening the first ends an open element of the second, unless a table cell or one of the third is in between.
_ENDS = {
    "li": (("li",), ("ul", "ol")),
    "dt": (("dt", "dd"), ("dl",)),
    "dd": (("dt", "dd"), ("dl",)),
    "td": (("td", "th"), ("table",)),
    "th": (("td", "th"), ("table",)),
    "tr": (("tr",), ("table",)),
}


class EverythingDrawn:
    """The stand-in for ``Visibility`` in a document that hides nothing."""

    is_drawn = True

    def open(self, name: str, attributes: str) -> Style:
        return PLAIN

    def close(self, name: str) -> Style:
        return PLAIN


class Visibility:
    """The open elements of a document, and whether the text at this point is drawn."""

    def __init__(self, html: str) -> None:
        sheet = StyleSheet(html)
        self._sheet = sheet if sheet.has_rules else None
        self._stack: list[Element] = []
        #: How often each name is open, for every open table and cell and outside of them.
        self._scopes: list[tuple[bool, Counter[str]]] = [(False, Counter())]
        self._open_tables = 0
        self._styles: dict[tuple[Style, str, str], Style] = {}
        self._style = PLAIN
        self.is_drawn = True

    def open(self, name: str, attributes: str) -> Style:
        """Enter an element and return its style. An element that has no content is not entered."""
        if name in _BLOCKS and self._scopes[-1][1]["p"]:
            self._end_implied(("p",), ())
        implied = _ENDS.get(name)
        if implied is not None:
            self._end_implied(*implied)
        style = self._style
        identifier, classes = "", _NO_CLASSES
        if self._sheet is not None or name in _STYLED_NAMES or (attributes and _STYLED.search(attributes)):
            style, identifier, classes = self._compute(name, attributes)
        if name not in VOID:
            self._push(Element(name, style, identifier, classes, attributes if self._sheet is not None else ""))
        return style

    def close(self, name: str) -> Style:
        """Leave an element and return its style; without an open element of this name, the style at this point."""
        if not any(scope[name] for scope in self._reachable(name)):
            return self._style
        above: list[Element] = []
        while (element := self._pop()).name != name:
            if (name in _FORMATTING) != (element.name in _FORMATTING) and len(above) < _MAX_REOPENED:
                above.append(element)
        if name not in _TABLE:
            # HTML continues formatting behind the block it was opened in, and blocks behind the formatting around them.
            for other in reversed(above):
                self._push(other)
        return element.style

    def _reachable(self, name: str) -> Iterator[Counter[str]]:
        """The scopes in which an end tag finds its element: a cell or table keeps those outside from ending inside."""
        if name == "table" and not self._open_tables:
            return
        for is_table, names in reversed(self._scopes):
            yield names
            if name not in _TABLE or (is_table and name != "table"):
                return

    def _end_implied(self, names: tuple[str, ...], barriers: tuple[str, ...]) -> None:
        """Close the element that ends where this tag begins (``<li>`` ends an open ``<li>``)."""
        for element in reversed(self._stack[-_MAX_IMPLIED_DEPTH:]):
            if element.name in names:
                self.close(element.name)
                return
            if element.name in barriers or (element.name in _CELLS and names[0] not in _TABLE):
                return

    def _push(self, element: Element) -> None:
        name = element.name
        self._scopes[-1][1][name] += 1
        if name in _CELLS or name == "table":
            self._scopes.append((name == "table", Counter()))
            self._open_tables += name == "table"
        self._stack.append(element)
        self._set(element.style)

    def _pop(self) -> Element:
        element = self._stack.pop()
        name = element.name
        if name in _CELLS or name == "table":
            self._scopes.pop()
            self._open_tables -= name == "table"
        self._scopes[-1][1][name] -= 1
        self._set(self._stack[-1].style if self._stack else PLAIN)
        return element

    def _set(self, style: Style) -> None:
        if style is not self._style:
            self._style = style
            self.is_drawn = style.is_drawn

    def _compute(self, name: str, text: str) -> tuple[Style, str, frozenset[str]]:
        parent, sheet = self._style, self._sheet
        key = (parent, name, text)
        if sheet is None and key in self._styles:
            return self._styles[key], "", _NO_CLASSES
        values = attribute_values(text)
        identifier = values.get("id", "")
        classes = frozenset(values.get("class", "").split()[:MAX_CLASSES])
        declarations = presentation(name, values)
        if "hidden" in values or (name == "dialog" and "open" not in values):
            declarations["display"] = "none"
        if sheet is not None:
            declarations |= sheet.matching(Element(name, parent, identifier, classes, text), self._stack)
        declarations |= parse_declarations(values.get("style", ""))
        style = derive(parent, declarations) if declarations else parent
        self._styles[key] = style
        return style, identifier, classes
