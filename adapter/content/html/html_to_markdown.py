"""Convert HTML to readable Markdown.

``html_to_markdown`` processes any HTML in a single pass over the tags, without building a tree: the cost is linear,
nesting is free, and no input raises. (Building a tree first, sanitised or not, is quadratic in the nesting depth and
thirty times slower.) The result contains no scripts, styles, hidden text or HTML: a ``<`` that could start a tag is
escaped. Links keep targets with a permitted scheme; images become their alternative text or their name; table rows
become lines with ``|`` between cells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from html import unescape
from urllib.parse import unquote

from adapter.content.html.hints import may_hide_text
from adapter.content.html.visibility import EverythingDrawn, Visibility

#: HTML beyond this many characters is truncated.
MAX_HTML_CHARACTERS = 512 * 1024
CUT_MARK = "[…]"
_NO_NAMES: Mapping[str, str] = {}

_Open = Callable[["_Converter", str, str], None]
_Close = Callable[["_Converter", str], None]

# Text up to the next tag, and the tag. Quotes count only after "=", as in browsers. Possessive: no backtracking.
_TAG = re.compile(
    r"""([^<]*+)<(/?+)([a-zA-Z][a-zA-Z0-9:-]*+)((?>(?:[^>"'=]++|=\s*+(?>(?:"[^"]*+"|'[^']*+')?)|["'])*))>"""
)
_PLAIN_TAG = re.compile(r"([^<]*+)<(/?+)([a-zA-Z][a-zA-Z0-9:-]*+)([^>]*+)>")
_LOOSE = re.compile(r"(?>(?:<(?![a-zA-Z/!?])[^<]*+)+)")
_BROKEN = re.compile(r"<[^<]*+")
_QUOTE_FAILURES = 16
_SKIPPED = {
    name: re.compile(rf"</{name}[^>]*+>", re.IGNORECASE)
    for name in (
        "script",
        "style",
        "title",
        "textarea",
        "template",
        "svg",
        "math",
        "select",
        "object",
        "iframe",
        "noframes",
        "noembed",
        "datalist",
        "audio",
        "video",
        "canvas",
    )
}
_ATTRIBUTE = r"""(?:\A|[\s"'/]){}\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++))"""
_HREF = re.compile(_ATTRIBUTE.format("href"), re.IGNORECASE)
_SRC = re.compile(_ATTRIBUTE.format("src"), re.IGNORECASE)
_ALT = re.compile(_ATTRIBUTE.format("alt"), re.IGNORECASE)
#: Elements that are content themselves: layout happens around text that is not drawn, these do not.
_CONTENT = frozenset(("img", "hr", "a", "pre"))
_PARAGRAPHS = ("p", "dl", "table", "form", "figure")
_LINES = (
    *("div", "section", "article", "header", "footer", "main", "nav", "aside"),
    *("center", "address", "li", "dt", "dd", "fieldset", "caption"),
)
_EMPHASIS = {"b": "**", "strong": "**", "i": "*", "em": "*", "del": "~~", "s": "~~", "strike": "~~"}
_EMPHASIS |= dict.fromkeys(("code", "kbd", "samp", "tt"), "`")
_SPACE = re.compile(r"[ \t\r\n\f\xa0]+")
# Joiners between letters that need them (Persian, Indic scripts, emoji) stay.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"
    "\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]|[\u200c\u200d](?![^\x00-\u024f\u2000-\u206f])"
    "|(?<![^\x00-\u024f\u2000-\u206f])[\u200c\u200d]"
)
# Characters that could start a tag or a link, alone or joined with the following text. An address is left unescaped.
_MARKUP = re.compile(r"<(?=[a-zA-Z/!?]|\Z)(?![a-zA-Z0-9._+-]{1,64}@[a-zA-Z0-9.-]{1,255}>)|\](?=\(|\Z)")
_SCHEMES = re.compile(r"(?:https?|ftp|mailto|tel|xmpp|cid|mid):", re.IGNORECASE)
_IN_URL = re.compile(r"[\s()<>\\\x00-\x1f]")
_MAX_URL_CHARACTERS = 4000
_MAX_NESTING = 8
_MAX_ROW_CHARACTERS = 200
_TRAILING = re.compile(r"(?<![ \t])[ \t]++$", re.MULTILINE)


def html_to_markdown(html: str, image_names: Mapping[str, str] = _NO_NAMES) -> str:
    """Convert an HTML document to Markdown; input after ``MAX_HTML_CHARACTERS`` is cut off.

    ``image_names``: the file names of inline images by Content-ID, for those without alternative text.
    """
    if len(html) <= MAX_HTML_CHARACTERS:
        return _Converter(image_names).convert(html)
    return _Converter(image_names).convert(html[:MAX_HTML_CHARACTERS]) + f"\n{CUT_MARK}\n"


class _Converter:
    """Streaming converter: emits Markdown tag by tag. Line breaks and blanks are deferred until the next text."""

    def __init__(self, image_names: Mapping[str, str]) -> None:
        self.image_names = image_names
        self.out: list[str] = []
        self.breaks = 2  # line breaks to write before the next text (ignored at the start of the document)
        self.space = False
        self.lists: list[int] = []  # next number of each open list, 0 for bullets
        self.quotes = self.quotes_before = 0  # quote depth now, and at the last text
        self.bullet = ""
        self.heading = ""
        self.open_marks: list[str] = []  # open emphasis
        self.due_marks: list[str] = []  # emphasis to open before the next text
        self.link: tuple[int, str] | None = None  # index in ``out`` after "[", target
        self.preformatted = False
        self.row_length = -1  # text length of the current one-line table row; -1: no such row
        self.cell_due = False
        self.is_line = self.was_line = False  # this table row, and the previous one, is a single line
        self.header_cells = self.cells = 0

    def convert(self, html: str) -> str:
        position, size = 0, len(html)
        last_end = html.rfind(">")
        failures = 0
        visibility = Visibility(html) if may_hide_text(html) else EverythingDrawn()
        pattern = _TAG
        opening, closing = _OPEN, _CLOSE
        while position <= last_end:
            match = pattern.match(html, position)
            if match is None:
                position, is_tag = self.no_tag(html, position, visibility.is_drawn)
                failures += is_tag
                if failures > _QUOTE_FAILURES:
                    pattern = _PLAIN_TAG
                continue
            position = match.end()
            text, slash, name, attributes = match.groups()
            name = name.lower()
            if text and visibility.is_drawn:
                self.text(text)
            if slash:
                if not visibility.close(name).is_removed and name in closing:
                    closing[name](self, name)
            elif name in _SKIPPED:
                end = _SKIPPED[name].search(html, position)
                position = size if end is None else end.end()
            else:
                style = visibility.open(name, attributes)
                if name in opening and not style.is_removed and (name not in _CONTENT or style.is_drawn):
                    opening[name](self, name, attributes)
        if visibility.is_drawn and position < size:
            self.text(html[position:])
        return self.finish()

    def no_tag(self, html: str, position: int, is_drawn: bool) -> tuple[int, bool]:
        """Handle text and text that only resembles a tag; return where to continue, and whether it is a broken tag."""
        start = html.find("<", position)
        if start < 0:
            start = len(html)
        if start > position and is_drawn:
            self.text(html[position:start])
        if html.startswith("<!--", start):
            return html.find("-->", start + 4) + 3 if html.find("-->", start + 4) >= 0 else len(html), False
        following = html[start + 1 : start + 2]
        if following and following in "!?/":
            return html.find(">", start) + 1 or len(html), False
        loose = _LOOSE.match(html, start) or _BROKEN.match(html, start)
        end = len(html) if loose is None else loose.end()
        if is_drawn:
            self.text(html[start:end])
        return end, following.isalpha()

    # -- writing --------------------------------------------------------------------------------------------------

    def text(self, text: str) -> None:
        if text.isspace() and not self.preformatted:
            self.space = True
            return
        if "&" in text:
            text = unescape(text)
        if not text.isprintable():
            text = _INVISIBLE.sub("", text)
        if self.preformatted:
            self.preformat(text)
            return
        words = _SPACE.sub(" ", text)
        stripped = words.strip(" ")
        if not stripped:
            self.space = self.space or bool(words)
            return
        if words[0] == " ":
            self.space = True
        if "<" in stripped or "]" in stripped:
            stripped = _MARKUP.sub(r"\\\g<0>", stripped)
        if "|" in stripped and (self.row_length >= 0 or self.cell_due):
            stripped = stripped.replace("|", "\\|")
        self.write(stripped)
        self.space = words[-1] == " "

    def write(self, text: str) -> None:
        if self.breaks or self.space or self.bullet or self.heading or self.cell_due:
            self.lead()
        if self.due_marks:
            self.out += self.due_marks
            self.open_marks += self.due_marks
            self.due_marks = []
        self.out.append(text)
        if self.row_length >= 0:
            self.row_length += len(text)

    def lead(self) -> None:
        """Write the separator between the last text and the next: breaks, quotes, bullet, heading, cell border."""
        out = self.out
        if self.cell_due:
            self.cell_due = False
            if 0 < self.row_length < _MAX_ROW_CHARACTERS:
                self.breaks, self.space, self.heading = 0, False, ""
                self.cells += 1
                out.append(" | ")
            else:
                if self.row_length:
                    self.is_line = False
                elif self.was_line:
                    self.breaks = 1
                self.row_length = 0
        elif self.breaks and self.row_length > 0:
            self.row_length = -1
            self.is_line = False
        if self.breaks and self.link is None:
            if out:
                quote = "> " * self.quotes
                blank = "\n" + "> " * min(self.quotes, self.quotes_before)
                out.append(blank * (self.breaks - 1) + "\n" + quote + self.indent())
            elif self.quotes:
                out.append("> " * self.quotes)
        elif (self.space or self.breaks) and out and not out[-1].endswith((" ", "\n", "[")):
            out.append(" ")
        self.breaks = 0
        self.space = False
        self.quotes_before = self.quotes
        if self.bullet:
            out.append(self.bullet)
            self.bullet = ""
        if self.heading:
            out.append(self.heading)
            self.heading = ""

    def indent(self) -> str:
        """Indentation that aligns this line with the text of its list item."""
        inside = self.lists[:-1] if self.bullet else self.lists
        return " " * sum([len(str(number - 1)) + 2 if number else 2 for number in inside])

    def preformat(self, text: str) -> None:
        prefix = "> " * self.quotes
        self.out.append(
            text.replace("\r\n", "\n").replace("\r", "\n").replace("```", "'''").replace("\n", "\n" + prefix)
        )

    def end_line(self, breaks: int) -> None:
        if self.open_marks and self.link is None:
            # Emphasis must not span paragraphs: close it here, and open it again in the next.
            self.out += reversed(self.open_marks)
            self.due_marks = self.open_marks + self.due_marks
            self.open_marks = []
        if breaks > self.breaks:
            self.breaks = breaks

    # -- tags: called with the name, and when opening with the attributes -------------------------------------------

    def open_line(self, name: str, attributes: str) -> None:
        self.end_line(1)

    def close_line(self, name: str) -> None:
        self.end_line(1)

    def open_break(self, name: str, attributes: str) -> None:
        """A ``<br>`` that does not end a text becomes a blank line, as most mailers intend."""
        self.end_line(min(self.breaks + 1, 2))

    def open_paragraph(self, name: str, attributes: str) -> None:
        self.end_line(2)

    def close_paragraph(self, name: str) -> None:
        self.heading = ""
        self.end_line(2)

    def open_heading(self, name: str, attributes: str) -> None:
        self.end_line(2)
        self.heading = "#" * int(name[1]) + " "

    def open_image(self, name: str, attributes: str) -> None:
        alt = _value(_ALT, attributes).strip()
        if not alt and self.image_names:
            source = _value(_SRC, attributes).strip()
            alt = self.image_names.get(unquote(source[4:]), "") if source[:4].lower() == "cid:" else ""
        if alt:
            self.text(f" {alt} ")

    def open_rule(self, name: str, attributes: str) -> None:
        self.end_line(2)
        self.write("---")
        self.end_line(2)

    def open_emphasis(self, name: str, attributes: str) -> None:
        if len(self.due_marks) + len(self.open_marks) < _MAX_NESTING:
            self.due_marks.append(_EMPHASIS[name])

    def close_emphasis(self, name: str) -> None:
        mark = _EMPHASIS[name]
        if mark in self.due_marks:
            self.due_marks.remove(mark)
        elif mark in self.open_marks:
            self.open_marks.remove(mark)
            self.out.append(mark)

    def open_list(self, name: str, attributes: str) -> None:
        self.end_line(1 if self.lists else 2)
        if len(self.lists) < _MAX_NESTING:
            self.lists.append(int(name == "ol"))

    def close_list(self, name: str) -> None:
        if self.lists:
            self.lists.pop()
        self.end_line(1 if self.lists else 2)

    def open_item(self, name: str, attributes: str) -> None:
        self.end_line(1)
        number = self.lists[-1] if self.lists else 0
        self.bullet = f"{number}. " if number else "- "
        if number:
            self.lists[-1] += 1

    def open_quote(self, name: str, attributes: str) -> None:
        self.end_line(2)
        self.quotes = min(self.quotes + 1, _MAX_NESTING)

    def close_quote(self, name: str) -> None:
        self.end_line(2)
        self.quotes = max(0, self.quotes - 1)

    def open_preformatted(self, name: str, attributes: str) -> None:
        self.end_line(2)
        if not self.preformatted:
            self.lead()
            self.out.append("```\n" + "> " * self.quotes)
            self.preformatted = True

    def close_preformatted(self, name: str) -> None:
        if self.preformatted:
            self.preformatted = False
            ending = "\n" + "> " * self.quotes
            self.out.append("```" if self.out[-1].endswith(ending) else f"{ending}```")
        self.end_line(2)

    def open_table(self, name: str, attributes: str) -> None:
        self.end_line(2)
        self.was_line = False

    def open_row(self, name: str, attributes: str) -> None:
        self.end_line(1)
        self.row_length = 0
        self.is_line = True
        self.cells = self.header_cells = 0
        self.cell_due = False

    def close_row(self, name: str) -> None:
        """End a row: one-line rows follow each other directly; longer rows become paragraphs."""
        self.end_line(2)
        self.was_line = self.is_line
        if self.is_line:
            self.breaks = 1
        self.row_length = -1
        self.cell_due = False
        if self.header_cells > 1 and self.header_cells == self.cells + 1:
            self.write(" | ".join(["---"] * self.header_cells))
            self.end_line(1)
        self.header_cells = 0

    def open_cell(self, name: str, attributes: str) -> None:
        self.end_line(1)
        self.cell_due = True
        self.header_cells += name == "th"

    def open_anchor(self, name: str, attributes: str) -> None:
        self.close_link(name)
        self.open_link(attributes)

    def open_link(self, attributes: str) -> None:
        target = _value(_HREF, attributes).strip()
        if self.preformatted or len(target) > _MAX_URL_CHARACTERS or not _SCHEMES.match(target):
            return
        target = _IN_URL.sub(lambda match: f"%{ord(match[0]):02X}", target)
        self.write("[")
        self.link = len(self.out), target

    def close_link(self, name: str) -> None:
        if self.link is None:
            return
        start, target = self.link
        self.link = None
        text = "".join(self.out[start:])
        if not text.strip(" *~`"):
            del self.out[start:]
            self.out[-1] = f"<{target}>" if target[:4].lower() == "http" else ""
        elif text.replace("&", "") == target.replace("&", ""):
            self.out[start - 1 :] = [f"<{target}>"]
        elif target.lower() == f"mailto:{text.lower()}":
            self.out[start - 1 :] = [text]
        else:
            self.out.append(f"]({target})")

    def finish(self) -> str:
        self.close_link("a")
        if self.preformatted:
            self.out.append("\n```")
        self.out += reversed(self.open_marks)
        text = _TRAILING.sub("", "".join(self.out)).strip("\n")
        return text + "\n" if text else ""


def _handlers() -> tuple[dict[str, _Open], dict[str, _Close]]:
    c = _Converter
    opening: dict[str, _Open] = dict.fromkeys(_LINES, c.open_line)
    closing: dict[str, _Close] = dict.fromkeys(_LINES, c.close_line)
    for name in _PARAGRAPHS:
        opening[name], closing[name] = c.open_paragraph, c.close_paragraph
    for name in ("h1", "h2", "h3", "h4", "h5", "h6"):
        opening[name], closing[name] = c.open_heading, c.close_paragraph
    for name in _EMPHASIS:
        opening[name], closing[name] = c.open_emphasis, c.close_emphasis
    for name in ("ul", "ol"):
        opening[name], closing[name] = c.open_list, c.close_list
    for name in ("td", "th"):
        opening[name] = c.open_cell
    opening |= {"br": c.open_break, "img": c.open_image, "hr": c.open_rule, "li": c.open_item, "a": c.open_anchor}
    opening |= {"table": c.open_table, "blockquote": c.open_quote, "pre": c.open_preformatted, "tr": c.open_row}
    closing |= {"blockquote": c.close_quote, "pre": c.close_preformatted, "tr": c.close_row, "a": c.close_link}
    return opening, closing


_OPEN, _CLOSE = _handlers()


def _value(pattern: re.Pattern[str], attributes: str) -> str:
    match = pattern.search(attributes)
    if match is None:
        return ""
    value = match[1] or match[2] or match[3] or ""
    return unescape(value) if "&" in value else value
