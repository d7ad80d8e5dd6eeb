"""The part of CSS that decides whether a person sees a text: parsing, selectors, the cascade and computed styles.

Bounded: rules, classes and candidates per element are capped; unsupported selectors (pseudo-classes, siblings) match
nothing. ``tinycss2`` parses colours; style sheets are matched with regular expressions, twenty times faster, because
every HTML message pays for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from tinycss2.color4 import parse_color

from adapter.content.html.attributes import attribute

MAX_STYLE_CHARACTERS = 128 * 1024
_MAX_RULES = 2000
_MAX_RULES_PER_KEY = 16
MAX_CLASSES = 16
_MAX_BLOCK_DEPTH = 4

_ROOT_FONT_PIXELS = 16.0
_SMALLEST_FONT_PIXELS = 2.0  # text of this size or smaller is not legible
_PAGE_PIXELS = 1024  # width for which media queries are evaluated
_OFF_SCREEN_PIXELS = -200.0
_SMALLEST_OPACITY = 0.05
SMALLEST_CONTRAST = 1.1  # WCAG 2 contrast ratio; 1 is the same colour, 4.5 is recommended

Color = tuple[float, float, float]
Declarations = dict[str, str]


class Style(NamedTuple):
    """The style that an element's text is drawn with, as far as it decides whether a person sees it."""

    is_removed: bool = False  # with everything inside: nothing below can undo it
    is_invisible: bool = False  # visibility: a child can undo it
    font_pixels: float = _ROOT_FONT_PIXELS
    color: Color | None = (0.0, 0.0, 0.0)  # None: transparent
    background: Color | None = (1.0, 1.0, 1.0)  # None: an image or a gradient

    @property
    def is_drawn(self) -> bool:
        if self.is_removed or self.is_invisible or self.font_pixels <= _SMALLEST_FONT_PIXELS or self.color is None:
            return False
        return self.background is None or contrast(self.color, self.background) >= SMALLEST_CONTRAST


PLAIN = Style()


# --- values ----------------------------------------------------------------------------------------------------------

_LENGTH = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d{1,3})?)\s*(px|pt|pc|in|cm|mm|r?em|ex|ch|vw|vh|%)?\Z", re.I)
_PIXELS = {"px": 1.0, "pt": 4 / 3, "pc": 16.0, "in": 96.0, "cm": 37.8, "mm": 3.78, "ex": 8.0, "ch": 8.0}
_PIXELS |= {"rem": _ROOT_FONT_PIXELS, "vw": _PAGE_PIXELS / 100, "vh": 7.7}
_FONT_WORDS = {
    "xx-small": 9.0, "x-small": 10.0, "small": 13.0, "medium": 16.0, "large": 18.0, "x-large": 24.0,
    "xx-large": 32.0, "smaller": 13.0, "larger": 19.0, "initial": 16.0,
}  # fmt: skip


def _pixels(value: str, em: float = _ROOT_FONT_PIXELS) -> float | None:
    """Convert a CSS length to pixels; None if it is not a number with a unit (``auto``, ``calc(…)``)."""
    match = _LENGTH.match(value)
    if match is None:
        return None
    number, unit = float(match[1]), (match[2] or "px").lower()
    return number * (em if unit == "em" else em / 100 if unit == "%" else _PIXELS[unit])


def _is_zero(value: str) -> bool:
    match = _LENGTH.match(value)
    return match is not None and abs(float(match[1])) < 0.5


@lru_cache(4096)
def parse_css_color(value: str) -> Color | bool | None:
    """Parse a CSS colour: None if it is transparent, False if it is not a colour."""
    try:
        parsed = parse_color(value[:100])
        if parsed is None or parsed == "currentcolor":
            return False
        if parsed.alpha <= _SMALLEST_OPACITY:
            return None
        red, green, blue = parsed.to("srgb").coordinates
        return (float(red), float(green), float(blue))
    except (ValueError, TypeError, NotImplementedError, OverflowError):
        return False


def _luminance(color: Color) -> float:
    """Relative luminance (WCAG 2)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((min(max(c, 0.0), 1.0) + 0.055) / 1.055) ** 2.4 for c in color)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@lru_cache(4096)
def contrast(one: Color, other: Color) -> float:
    """Contrast of two colours; differing hues of one luminance count as different."""
    if max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.25:
        return 21.0
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


# --- style sheets ----------------------------------------------------------------------------------------------------

_STYLE_ELEMENT = re.compile(r"<style\b[^>]*+>((?>[^<]*(?:<(?!/style)[^<]*)*))", re.IGNORECASE)
_CSS_COMMENT = re.compile(r"/\*.*?(?:\*/|\Z)|<!--|-->", re.DOTALL)
_CSS_ESCAPE = re.compile(r"\\(?:([0-9a-fA-F]{1,6})\s?|(.))", re.DOTALL)
_DECLARATION = re.compile(r"([a-z-]+)\s*+:\s*+([^;{}]*+)", re.IGNORECASE)
_PROPERTIES = frozenset(
    (
        "display", "visibility", "opacity", "font-size", "font", "height", "max-height", "width", "max-width",
        "overflow", "overflow-x", "overflow-y", "color", "background", "background-color", "background-image",
        "position", "left", "right", "top", "bottom", "text-indent", "margin-left", "margin-top", "margin",
        "transform", "scale", "clip", "clip-path", "content-visibility", "mso-hide", "line-height", "filter",
        "-webkit-text-fill-color", "direction",
    )
)  # fmt: skip
_AT_GROUPS = ("@supports", "@layer", "@container")
_QUERY_FEATURE = re.compile(r"\(\s*(min|max)-(?:device-)?width\s*:\s*([^)]*)\)", re.IGNORECASE)
_COMPOUND = re.compile(
    r"(?P<tag>[a-zA-Z][\w-]*|\*)?(?P<rest>(?:[.#][\w-]+|\[\s*[\w-]+\s*(?:[~|^$*]?=\s*(?:\"[^\"]*\"|'[^']*'|[\w-]+)\s*)?\])*)\Z"
)
_SIMPLE = re.compile(r"([.#])([\w-]+)|\[\s*([\w-]+)\s*(?:([~|^$*]?)=\s*(?:\"([^\"]*)\"|'([^']*)'|([\w-]+)))?\s*\]")


class Compound(NamedTuple):
    """A compound selector: tag, classes, id and attributes that one element must have."""

    tag: str
    id: str
    classes: frozenset[str]
    attributes: tuple[tuple[str, str, str], ...]  # name, operator, value

    @property
    def specificity(self) -> tuple[int, int, int]:
        return bool(self.id), len(self.classes) + len(self.attributes), bool(self.tag)

    def matches(self, element: Element) -> bool:
        if (self.tag and self.tag != element.name) or (self.id and self.id != element.id):
            return False
        return self.classes <= element.classes and all(_has(element, *each) for each in self.attributes)


class Rule(NamedTuple):
    order: tuple[tuple[int, int, int], int]  # specificity, position
    target: Compound
    #: Before the target: (combinator, compound), nearest first.
    ancestors: tuple[tuple[str, Compound], ...]
    declarations: Declarations


class Element(NamedTuple):
    """An open element with the style of its text."""

    name: str
    style: Style
    id: str = ""
    classes: frozenset[str] = frozenset()
    attributes: str = ""


def parse_declarations(text: str) -> Declarations:
    """The declarations that can hide text; ``!important`` is dropped, as every mail says it everywhere."""
    declarations = {}
    if "\\" in text or "/*" in text:
        text = _CSS_ESCAPE.sub(_unescape_css, _CSS_COMMENT.sub(" ", text))
    for match in _DECLARATION.finditer(text):
        name = match[1].lower()
        if name in _PROPERTIES:
            declarations[name] = match[2].lower().replace("!important", "").strip()
    return declarations


def _unescape_css(match: re.Match[str]) -> str:
    if match[2]:
        return match[2]
    code = int(match[1], 16)
    return chr(code) if 0 < code < 0x110000 and not 0xD800 <= code < 0xE000 else "\ufffd"


class StyleSheet:
    """The rules of a document that can hide text, by the rightmost compound of their selectors."""

    def __init__(self, html: str) -> None:
        self._by_key: dict[str, list[Rule]] = {}
        self._count = 0
        text = "\n".join(match[1] for match in _STYLE_ELEMENT.finditer(html))[:MAX_STYLE_CHARACTERS]
        for selectors, declarations in _blocks(_CSS_COMMENT.sub(" ", text), 0):
            self._add(selectors, declarations)

    @property
    def has_rules(self) -> bool:
        return bool(self._by_key)

    def _add(self, selectors: str, text: str) -> None:
        declarations = parse_declarations(text)
        if not declarations:
            return
        for selector in selectors.split(","):
            compounds = _compounds(selector)
            if compounds is None or self._count >= _MAX_RULES:
                continue
            (_, target), *ancestors = compounds
            weights = [compound.specificity for _, compound in compounds]
            specificity = (sum(w[0] for w in weights), sum(w[1] for w in weights), sum(w[2] for w in weights))
            rule = Rule((specificity, self._count), target, tuple(ancestors), declarations)
            key = next((f".{name}" for name in sorted(target.classes)), "")
            rules = self._by_key.setdefault(f"#{target.id}" if target.id else key or target.tag or "*", [])
            if len(rules) < _MAX_RULES_PER_KEY:
                rules.append(rule)
                self._count += 1

    def matching(self, element: Element, stack: list[Element]) -> Declarations:
        """Merge the declarations of all rules that match, in the order of the cascade."""
        keys = [element.name, "*", *(f".{name}" for name in element.classes)]
        if element.id:
            keys.append(f"#{element.id}")
        rules = [
            rule
            for key in keys
            for rule in self._by_key.get(key, ())
            if rule.target.matches(element) and (not rule.ancestors or _has_ancestors(rule.ancestors, stack))
        ]
        merged: Declarations = {}
        for rule in sorted(rules, key=lambda rule: rule.order):
            merged |= rule.declarations
        return merged


def _blocks(css: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield (selectors, declarations), those of groups that apply included."""
    at = 0
    while (brace := css.find("{", at)) >= 0:
        head = css[at:brace].rpartition(";")[2].strip()
        if not head.startswith("@"):
            end = css.find("}", brace)
            end = len(css) if end < 0 else end
            yield head, css[brace + 1 : end]
            at = end + 1
            continue
        end, level = brace + 1, 1
        for match in re.compile(r"[{}]").finditer(css, brace + 1):
            level += 1 if match[0] == "{" else -1
            end = match.end()
            if not level:
                break
        else:
            end = len(css)
        name = head.lower()
        applies = name.startswith(_AT_GROUPS) or (name.startswith("@media") and _applies(head[6:]))
        if applies and depth < _MAX_BLOCK_DEPTH:
            yield from _blocks(css[brace + 1 : end - (not level)], depth + 1)
        at = end


def _applies(queries: str) -> bool:
    """Evaluate a media query list for a screen of ordinary width."""
    return any(_applies_one(query.strip().lower()) for query in queries.split(","))


def _applies_one(query: str) -> bool:
    rest = _QUERY_FEATURE.sub("", query)
    if not set(re.findall(r"[a-z-]+", rest)) <= {"only", "screen", "all", "and"} or "(" in rest:
        return False
    for bound, value in _QUERY_FEATURE.findall(query):
        pixels = _pixels(value.strip()) or 0.0
        if (bound == "min") != (pixels <= _PAGE_PIXELS):
            return False
    return True


def _compounds(selector: str) -> list[tuple[str, Compound]] | None:
    """Parse a selector, rightmost compound first; None if it is not supported (pseudo-classes, siblings)."""
    words = re.sub(r"\s*>\s*", " > ", selector.strip()).split()
    if not words or len(words) > 2 * MAX_CLASSES or words[0] == ">" or words[-1] == ">":
        return None
    compounds: list[tuple[str, Compound]] = []
    combinator = ""
    for word in reversed(words):
        if word == ">":
            combinator = ">"
            continue
        match = _COMPOUND.match(word)
        if match is None or not word:
            return None
        tag = (match["tag"] or "").lower()
        identifier, classes, attributes = "", set(), []
        for kind, name, attribute_name, operator, *values in _SIMPLE.findall(match["rest"]):
            if kind == "#":
                identifier = name
            elif kind == ".":
                classes.add(name)
            else:
                value = values[0] or values[1] or values[2]
                attributes.append((attribute_name.lower(), f"{operator}=" if value else "", value))
        compound = Compound("" if tag == "*" else tag, identifier, frozenset(classes), tuple(attributes))
        compounds.append((combinator, compound))
        combinator = ""
    return compounds


def _has(element: Element, name: str, operator: str, expected: str) -> bool:
    value = attribute(element.attributes, name)
    if value is None or not operator:
        return value is not None
    match operator:
        case "~=":
            return expected in value.split()
        case "|=":
            return value == expected or value.startswith(f"{expected}-")
        case "^=":
            return value.startswith(expected)
        case "$=":
            return value.endswith(expected)
        case "*=":
            return expected in value
        case _:
            return value == expected


def _has_ancestors(ancestors: tuple[tuple[str, Compound], ...], stack: list[Element]) -> bool:
    """Match from the nearest ancestor outwards; only the innermost levels are examined."""
    at = len(stack) - 1
    for combinator, compound in ancestors:
        last = max(at - (0 if combinator == ">" else 64), 0)
        while at >= last and at >= 0 and not compound.matches(stack[at]):
            at -= 1
        if at < last or at < 0:
            return False
        at -= 1
    return True


# --- computing a style -----------------------------------------------------------------------------------------------


def derive(parent: Style, declarations: Declarations) -> Style:
    """The style of an element from that of its parent and its own declarations."""
    get = declarations.get
    font = _font_pixels(declarations, parent.font_pixels)
    visibility = get("visibility", "")
    invisible = visibility in ("hidden", "collapse") if visibility not in ("", "inherit") else parent.is_invisible
    color, background = parent.color, parent.background
    for name in ("background", "background-color", "background-image"):
        value = get(name)
        if value is None or value in ("none", "inherit", "initial", "unset", ""):
            continue
        if "url(" in value or "gradient(" in value:
            background = None
            continue
        painted = parse_css_color(value)
        if painted is False and name == "background":
            painted = next((each for word in value.split() if (each := parse_css_color(word)) is not False), False)
        if isinstance(painted, tuple):
            background = painted
    for name in ("color", "-webkit-text-fill-color"):
        value = get(name)
        if value:
            painted = parse_css_color(value)
            if not isinstance(painted, bool):
                color = painted
    return Style(parent.is_removed or _is_removed(declarations, font), invisible, font, color, background)


def _font_pixels(declarations: Declarations, inherited: float) -> float:
    value = declarations.get("font-size")
    if value is None and "font" in declarations:
        sizes = (word.partition("/")[0] for word in declarations["font"].split())
        value = next((size for size in sizes if _LENGTH.match(size) and (size == "0" or not size.isdigit())), None)
    if value is None:
        return inherited
    if value in _FONT_WORDS:
        return _FONT_WORDS[value]
    pixels = _pixels(value, inherited)
    return inherited if pixels is None else max(pixels, 0.0)


def _is_removed(declarations: Declarations, font: float) -> bool:
    get = declarations.get
    if get("display") == "none" or get("mso-hide") == "all" or get("content-visibility") == "hidden":
        return True
    opacity = _LENGTH.match(get("opacity", "1"))
    if opacity is not None and float(opacity[1]) / (100 if opacity[2] == "%" else 1) <= _SMALLEST_OPACITY:
        return True
    if "visible" not in get("overflow", "") and any(
        _is_zero(get(name, "")) for name in ("height", "max-height", "width", "max-width")
    ):
        return True
    if get("position") in ("absolute", "fixed", "relative"):
        sides = [_pixels(get(side, ""), font) for side in ("left", "top", "right", "bottom")]
        if any(side is not None and side <= _OFF_SCREEN_PIXELS for side in sides):
            return True
        if any(side is not None and side >= 5 * _PAGE_PIXELS for side in sides):
            return True
        if re.match(r"rect\(\s*(?:0|1px)\D", get("clip", "")) and len(set(re.findall(r"\d+", get("clip", "")))) <= 2:
            return True
    margins = get("margin", "").split()
    shifts = [get("text-indent", ""), get("margin-left", ""), get("margin-top", ""), *margins[:1], *margins[-1:]]
    if any((pixels := _pixels(shift, font)) is not None and pixels <= _OFF_SCREEN_PIXELS for shift in shifts):
        return True
    if re.search(r"inset\(\s*(?:100|[5-9]\d)%|circle\(\s*0|polygon\(\s*(?:0\w*[\s,]*)+\)", get("clip-path", "")):
        return True
    if re.search(r"opacity\(\s*0(?:\.0*)?%?\s*\)", get("filter", "")) or _is_zero(get("scale", "")):
        return True
    transform = get("transform", "")
    if re.search(r"scale(?:3d|x|y)?\(\s*0?(?:\.0*)?\s*[,)]", transform):
        return True
    return any(
        (pixels := _pixels(value.strip())) is not None and pixels <= _OFF_SCREEN_PIXELS
        for arguments in re.findall(r"translate(?:3d|x|y)?\(([^)]*)\)", transform)
        for value in arguments.split(",")
    )
