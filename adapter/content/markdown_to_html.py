"""Markdown as HTML to send: CommonMark with tables and strikethrough, raw HTML shown as text, all of it sanitised."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from html import escape

#: Longer Markdown is sent as preformatted text.
MAX_MARKDOWN = 128 * 1024


def markdown_to_html(text: str) -> str:
    if len(text) > MAX_MARKDOWN:
        return f"<pre>{escape(text)}</pre>\n"
    return _renderer()(text)


@cache
def _renderer() -> Callable[[str], str]:
    """Made when it is first needed: it takes some megabytes, and few servers ever send Markdown."""
    import nh3
    from markdown_it import MarkdownIt

    render = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).render
    return lambda text: nh3.clean(render(text))
