"""A quick check whether an HTML document can hide text at all: most letters cannot, and need no computed styles."""

from __future__ import annotations

import re

from adapter.content.html.attributes import legacy_color
from adapter.content.html.css import PLAIN, SMALLEST_CONTRAST, contrast, parse_css_color

_MAX_COLORS = 64
#: Words that are rare in a letter.
_WORDS = (
    "visibility", "opacity", "hidden", "<dialog", "mso-hide", "clip", "transform", "translate", "text-fill", "position",
    "/*", "scale",
)  # fmt: skip
# Each begins with a literal, which the search skips to.
_DECLARATIONS = [
    re.compile(pattern)
    for pattern in (
        r"display\s*+:\s*+none",
        r"filter\s*+:",
        r"font-size\s*+:\s*+(?:[0-2](?:\.\d*)?(?:px|pt)?\s*[;\"'}!]|0|\.|[1-6]?\d%)",
        r"font\s*+:[^;\"'}]*?(?<![\d.])(?:0|[12](?:px|pt))",
        r"height\s*+:\s*+[0.]",
        r"width\s*+:\s*+[0.]",
        r"indent\s*+:\s*+-",
        r"margin(?:-left|-top)?\s*+:[^;\"'}]*?-\d",
        r"\\[^:\s\"']",  # an escape of CSS
        r"&(?!quot;|amp;|apos;|nbsp;|lt;|gt;|#39;|#160;)[^<>\"']*+[\"'][^<>]*+>",  # an entity in an attribute
    )
]
_COLOR = re.compile(r"color\s*+[:=]\s*+[\"']?+([^;\"'>}]++)")
_BACKGROUND = re.compile(r"background\s*+[:=]\s*+[\"']?+([^;\"'>}]++)")
_BODY_TEXT = re.compile(r"<body[^>]*?\stext\s*+=\s*+[\"']?+([^;\"'>]++)")


def may_hide_text(html: str) -> bool:
    """Return False only if no text of the document can be hidden by its styles."""
    lower = html.lower()
    if any(word in lower for word in _WORDS) or any(pattern.search(lower) for pattern in _DECLARATIONS):
        return True
    inks, papers = {PLAIN.color}, {PLAIN.background}
    for match in _COLOR.finditer(lower):
        is_paper = lower.endswith(("background-", "bg"), 0, match.start())
        _add_colors(match[1], papers if is_paper else inks)
    for match in _BACKGROUND.finditer(lower):
        _add_colors(match[1], papers)
    for match in _BODY_TEXT.finditer(lower):
        _add_colors(match[1], inks)
    if len(inks) + len(papers) > _MAX_COLORS:
        return True
    return any(
        ink is None or (paper is not None and contrast(ink, paper) < SMALLEST_CONTRAST)
        for ink in inks
        for paper in papers
    )


def _add_colors(value: str, colors: set[tuple[float, float, float] | None]) -> None:
    value = value.replace("!important", "").strip()
    for word in [value] if "(" in value else value.split()[:4]:
        painted = parse_css_color(legacy_color(word))
        if not isinstance(painted, bool):
            colors.add(painted)
