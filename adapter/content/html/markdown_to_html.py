"""Render Markdown to sanitised HTML: CommonMark with tables and strikethrough; raw HTML is escaped."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from html import escape

#: Longer Markdown is rendered as preformatted text.
MAX_MARKDOWN_CHARACTERS = 128 * 1024


def markdown_to_html(text: str) -> str:
    if len(text) > MAX_MARKDOWN_CHARACTERS:
        return f"<pre>{escape(text)}</pre>\n"
    return _renderer()(text)


@cache
def _renderer() -> Callable[[str], str]:
    """Create the renderer on first use: it takes several megabytes, and few servers ever send Markdown."""
    import nh3
    from markdown_it import MarkdownIt

    render = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).render
    return lambda text: nh3.clean(render(text))
