"""Convert ordinary and hostile HTML to Markdown, and render Markdown to HTML."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.content.html.html_to_markdown import MAX_HTML_CHARACTERS, html_to_markdown
from adapter.content.html.markdown_to_html import MAX_MARKDOWN_CHARACTERS, markdown_to_html


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("", ""),
        ("text", "text\n"),
        ("<p>a</p><p>b</p>", "a\n\nb\n"),
        ("a<br>b<br/>c", "a\nb\nc\n"),
        ("<div>a</div><div>b</div>", "a\nb\n"),
        ("<div>a</div><div><br></div><div>b<br></div><div>c", "a\n\nb\nc\n"),
        ("a<br><br><br>b", "a\n\nb\n"),
        ("run <code>ls -l</code>", "run `ls -l`\n"),
        ("<pre>a\nb\n</pre>", "```\na\nb\n```\n"),
        ("  a \n\t b&nbsp;&nbsp;c ", "a b c\n"),
        ("<b>bold</b> <i>it</i> <s>gone</s>", "**bold** *it* ~~gone~~\n"),
        ("<b> padded </b>x", "**padded** x\n"),
        ("<b><p>a</p><p>b</p></b>", "**a**\n\n**b**\n"),
        ("<b></b>x", "x\n"),
        ("<h2>Title</h2>text", "## Title\n\ntext\n"),
        ("<ul><li>a<li>b</ul>", "- a\n- b\n"),
        ("<ol><li>a</li><li>b<ul><li>c</li></ul></li></ol>", "1. a\n2. b\n   - c\n"),
        ("x<blockquote>a<p>b</blockquote>y", "x\n\n> a\n>\n> b\n\ny\n"),
        ("<pre>a\n  b</pre>", "```\na\n  b\n```\n"),
        ("a<hr>b", "a\n\n---\n\nb\n"),
        ('<a href="https://x.test/?a=1&amp;b=2">link</a>', "[link](https://x.test/?a=1&b=2)\n"),
        ("<a href=https://x.test/>https://x.test/</a>", "<https://x.test/>\n"),
        ('<a href="https://x.test/"><img src=x></a>', "<https://x.test/>\n"),
        ('<a href="https://x.test/"><img alt="Logo"></a>', "[Logo](https://x.test/)\n"),
        ('<a href="https://x.test/a b(c)">l</a>', "[l](https://x.test/a%20b%28c%29)\n"),
        ('<a href="javascript:alert(1)">l</a>', "l\n"),
        ('<a href=" JaVaScRiPt:alert(1)">l</a>', "l\n"),
        ('<a href="data:text/html,x">l</a>', "l\n"),
        ('<a name="x">l</a>', "l\n"),
        ('<a href="mailto:a@b.test">write<div>me</div></a>', "[write me](mailto:a@b.test)\n"),
        ('<img alt="a picture" src="http://t.test/x.gif">', "a picture\n"),
        ('<img src="http://tracker.test/x.gif">x', "x\n"),
        ("<table><tr><td>a<td>b<tr><td>c<td>d</table>", "a | b\nc | d\n"),
        ("<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>", "a | b\n--- | ---\n1 | 2\n"),
        ("<td><p>a</p></td><td><p>b</p></td>", "a | b\n"),
        ("<td>a</td><td><h3>b</h3></td>", "a | b\n"),
        ("<tr><td><p>a</p><td><p>b</p></tr><tr><td><p>c</p><td><p>d</p></tr>e", "a | b\nc | d\ne\n"),
        ("<tr><td>a<td>b<br>c</tr><tr><td>d</tr>", "a | b\nc\n\nd\n"),
        ("Ada &lt;<a href='mailto:Ada@x.test'>ada@x.test</a>&gt; wrote", "Ada \\<ada@x.test> wrote\n"),
        ("Ada &lt;ada@example.test&gt; wrote", "Ada <ada@example.test> wrote\n"),
        ("<style>a{}</style><script>x()</script><title>t</title>y", "y\n"),
        ("<script>never closed", ""),
        ("<STYLE>x</STYLE >y", "y\n"),
        ('<div style="display: none">hidden<div>too</div></div>seen', "seen\n"),
        ("<!-- comment --><!doctype html><?x?>a<![endif]-->b", "ab\n"),
        ("1 < 2 & 3 > 2 &lt;script&gt;alert(1)&lt;/script&gt;", "1 < 2 & 3 > 2 \\<script>alert(1)\\</script>\n"),
        ("[x](javascript:alert(1))", "[x\\](javascript:alert(1))\n"),
        ("&lt;<b></b>script>x", "\\<script>x\n"),
        ("[x]<i></i>(javascript:x)", "[x\\](javascript:x)\n"),
        ("a > b <c", "a > b \\<c\n"),
        ("pre&zwnj;&#847;&shy;header", "preheader\n"),
        ('<p title="a > b">x', "x\n"),
        ("<p title='it's'>x", "x\n"),
        ("a &#xD800; b &#0; &bogus;", "a \ufffd b \ufffd &bogus;\n"),
    ],
)
def test_html_is_converted_to_markdown(html: str, markdown: str) -> None:
    assert html_to_markdown(html) == markdown


HOSTILE = {
    "div": "<div>",
    "bold": "<b>",
    "bold and paragraphs": "<b><p>x",
    "links": "<a href=http://x>",
    "tables": "<table><tr><td>x",
    "cells": "<td>x",
    "lists": "<ul><li>x",
    "quotes": "<blockquote>x",
    "pre": "<pre>x",
    "open quotes": '<a ="',
    "less-than": "<",
    "open tags": "<a ",
    "comments": "<!--",
    "styles": "<style>",
    "ampersands": "&",
    "entities": "&#x41;",
    "hidden": "<p style=display:none>",
    "breaks": "<br>",
    "closing": "</div></b></a></td></tr></table></ul>",
    "attributes": "<p a=b c='d' e=\"f\" ",
    "blanks": " \n",
    "blanks in pre": "<pre>                                ",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_cost_of_hostile_html_is_linear(piece: str) -> None:
    html = (piece * (MAX_HTML_CHARACTERS // len(piece) + 1))[: MAX_HTML_CHARACTERS - 4] + '">"x'
    start = time.process_time()
    html_to_markdown(html)
    assert time.process_time() - start < 20


def test_long_html_is_truncated() -> None:
    text = html_to_markdown("<p>word</p>" * 200_000)
    assert text.endswith("\n[…]\n")
    assert len(text) < MAX_HTML_CHARACTERS


@given(st.one_of(st.text(max_size=100), st.text("<>/abp '\"=&#x;!-\n[]()*_`", max_size=60)))
def test_result_contains_no_html(html: str) -> None:
    text = html_to_markdown(html)
    without_links = re.sub(r"<(?:https?|ftp|mailto|tel|xmpp|cid|mid):[^\s<>]*>", "", text, flags=re.IGNORECASE)
    inside_code = "```" in text
    assert inside_code or re.search(r"(?<!\\)<[a-zA-Z/!?]", without_links) is None
    text.encode()


@pytest.mark.parametrize(
    ("markdown", "html"),
    [
        ("# T\n\na *b* **c** ~~d~~\n", "<h1>T</h1>\n<p>a <em>b</em> <strong>c</strong> <s>d</s></p>\n"),
        ("|a|b|\n|-|-|\n|1|2|\n", "<td>1</td>"),
        ("[l](https://x.test)", '<a href="https://x.test" rel="noopener noreferrer">l</a>'),
        ("<script>alert(1)</script>", "&lt;script&gt;"),
        ("[l](javascript:alert(1))", "[l](javascript:alert(1))"),
        ("https://not.linked.test", "<p>https://not.linked.test</p>"),
    ],
)
def test_markdown_is_rendered_to_html(markdown: str, html: str) -> None:
    assert html in markdown_to_html(markdown)


def test_long_markdown_is_preformatted_text() -> None:
    html = markdown_to_html("<b>\n" * MAX_MARKDOWN_CHARACTERS)
    assert html.startswith("<pre>&lt;b&gt;\n")
