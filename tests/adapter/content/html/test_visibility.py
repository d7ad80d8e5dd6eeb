"""Hidden text of an HTML message stays out of its Markdown; text that a mail client draws stays in."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter.content.html.html_to_markdown import MAX_HTML_CHARACTERS, html_to_markdown

#: Declarations that hide a text on a white page.
HIDING = [
    "display:none", "DISPLAY : NONE !important", "visibility:hidden", "visibility: collapse", "opacity:0",
    "opacity: 0.01", "opacity:0%", "font-size:0", "font-size: 0px", "font-size:1px", "font: 0/0 a", "height:0",
    "max-height:0px;overflow:hidden", "width:0;overflow:hidden", "max-width: 0", "color:#fff", "color:#FFFFFF",
    "color:white", "color: rgb(255,255,255)", "color:hsl(0,0%,100%)", "color:snow", "color:transparent",
    "color:rgba(0,0,0,0)", "color:#0000", "background:#000;color:#000", "background-color:#123456;color:#123457",
    "position:absolute;left:-9999px", "position:fixed; top:-100em", "position:absolute;right:-9999px",
    "text-indent:-9999px", "text-indent:-999em", "margin-left:-5000px", "margin:0 0 0 -3000px",
    "transform:translateX(-9999px)", "transform: scale(0)", "transform:scale(0, 0)", "scale:0",
    "position:absolute;clip:rect(0,0,0,0)", "clip-path:inset(100%)", "clip-path: circle(0)", "filter:opacity(0)",
    "content-visibility:hidden", "mso-hide:all", "display:n\\6f ne", "display:/**/none",
    "-webkit-text-fill-color:transparent", "color:black;color:white",
]  # fmt: skip


SELECTORS = [
    (".x", "div class='a x b'"), ("div.x", "div class=x"), ("#x", 'div id="x"'), ("pre, .x", "div class=x"),
    ("table .x", "div class=x"), ("td > div", "div"), ("div[title=hide]", "div title=hide"), ("[data-x]", "div data-x"),
    ("body td div.x.y", "div class='y x'"),
]  # fmt: skip


def _words(html: str) -> list[str]:
    return html_to_markdown(html).split()


@pytest.mark.parametrize("declarations", HIDING)
def test_style_attribute_hides_text(declarations: str) -> None:
    assert _words(f'<p>before</p><div style="{declarations}">secret <i>words</i></div><p>after') == ["before", "after"]


@pytest.mark.parametrize("declarations", HIDING)
def test_style_element_hides_text(declarations: str) -> None:
    for selector, tag in SELECTORS:
        style = f"<STYLE type='text/css'><!-- a{{}} {selector} {{ {declarations} }} --></STYLE>"
        body = f"<table><tr><td><p>before</p><{tag}>secret words</div><p>after</p></td></tr></table>"
        assert _words(f"<html><head>{style}</head><body>{body}") == ["before", "after"], selector


@pytest.mark.parametrize(
    "html",
    [
        "<p style='display:&#110;one'>secret</p>",
        "<p hidden>secret</p>", "<p hidden=''>secret", "<div hidden><b>secret</b></div>", "<dialog>secret</dialog>",
        "<font color=white>secret</font>", "<font color='#FFFFFF'>secret</font>", "<font color=ffffff>secret</font>",
        "<table bgcolor=black><tr><td><font color=black>secret</table>", "<body bgcolor=black text=black>secret",
        "<div style='color:#fff'><div><span>secret</span></div></div>",
        "<div style='background:#222'><p style='color:#222222'>secret</p></div>",
        "<template>secret</template>", "<iframe>secret</iframe>", "<noframes>secret</noframes>",
        "<style>@media screen{.x{display:none}}</style><p class=x>secret</p>",
        "<style>@media all and (min-width:300px){.x{display:none}}</style><p class=x>secret</p>",
        "<style>@supports (color:red){@media all{.x{display:none}}}</style><p class=x>secret</p>",
        "<style>/* } */ .x /* { */ { display /* : */ : none }</style><p class=x>secret</p>",
        "<p class=x>secret</p><style>.x{display:none}</style>",
        "<style>.x{display:block}.x{display:none}</style><p class=x>secret</p>",
        "<style>#y{display:none}.x{display:block}</style><p class=x id=y>secret</p>",
        # A stray end tag does not end a hidden element that is open outside of the cell.
        "<div style=display:none><table><tr><td></div>secret</td></tr></table></div>",
        "<table><tr style=display:none><td><table></tr></table>secret</td></tr></table>",
        # Formatting continues behind the block that it was opened in, blocks behind the formatting around them.
        "<p><font color=white>secret<p>secret</font>",
        "<b><p style='display:none'>secret</b>secret</p>",
        "<a href='https://x.test/secret' style='font-size:0'>secret</a>",
        "<img alt=secret style='display:none'><div style=opacity:0><img alt=secret></div>",
        "<div style='display:none'><p style='display:block;visibility:visible'>secret</p></div>",
    ],
)  # fmt: skip
def test_hidden_text_is_left_out(html: str) -> None:
    assert "secret" not in html_to_markdown(html)


@pytest.mark.parametrize(
    "html",
    [
        "<p style='display:block'>seen</p>", "<p style='color:#eee;background:#111'>seen</p>",
        "<div style='font-size:0'><span style='font-size:14px'>seen</span></div>",
        "<div style='visibility:hidden'><p style='visibility:visible'>seen</p></div>",
        "<div style='background:url(x.png)'><p style='color:#fff'>seen</p></div>",
        "<td background=x.png style='color:white'>seen</td>",
        "<table bgcolor='#336699'><tr><td><font color=white>seen</font></td></tr></table>",
        "<div style='height:0;overflow:visible'>seen</div>", "<div style='line-height:0'>seen</div>",
        "<div style='width:100%;height:auto;max-height:none'>seen</div>", "<p style='margin:-2px 0 0 -10px'>seen</p>",
        "<p style='position:relative;left:-5px;top:0'>seen</p>", "<p style='opacity:.5'>seen</p>",
        "<style>@media print{.x{display:none}}</style><p class=x>seen</p>",
        "<style>@media (max-width:600px){.x{display:none}}</style><p class=x>seen</p>",
        "<style>@media (prefers-color-scheme:dark){p{color:#fff}}</style><p>seen</p>",
        "<style>.x{display:none}.x{display:block}</style><p class=x>seen</p>",
        "<style>.x{display:none}#y{display:block}</style><p class=x id=y>seen</p>",
        "<style>.x{display:none}</style><p class=x style='display:block'>seen</p>",
        "<style>a:hover{display:none} .m .x{display:none} p+p{display:none}</style><p class=x>a<p>seen",
        "<p style='display:none'>a<p>seen", "<ul><li style='display:none'>a<li>seen</ul>",
        "<table><tr><td style='display:none'>a<td>seen</table>", "<table><tr hidden><td>a<tr><td>seen</table>",
        "<font size=1>seen</font>", "<p style='font-size:smaller'>seen</p>", "<p style='color:inherit'>seen</p>",
        "<p style='color:nonsense;font-size:calc(1px + 2em);width:0.6px'>seen</p>", "<dialog open>seen</dialog>",
        "<div style='color:#fff;background:linear-gradient(#000,#111)'>seen</div>",
    ],
)  # fmt: skip
def test_text_that_is_drawn_stays(html: str) -> None:
    assert "seen" in html_to_markdown(html)


def test_layout_around_text_of_no_size_is_kept() -> None:
    html = "<table><tr><td style='font-size:0'><p style='font-size:12px'>a</p></td><td>b</td></tr></table>"
    assert html_to_markdown(html) == "a | b\n"


@pytest.mark.parametrize(
    ("html", "markdown"),
    [
        ("<table><tr><td>a|b<td>c</table>", "a\\|b | c\n"),
        ("a|b", "a|b\n"),
        ('<img src="cid:logo%40x"><img src=cid:other>', "logo.png\n"),
        ('<img src="CID:logo@x" alt="Our logo">', "Our logo\n"),
        ("\u0645\u06cc\u200c\u062e\u0648 a\u200cb \u200c", "\u0645\u06cc\u200c\u062e\u0648 ab\n"),
        ("\U0001f469\u200d\U0001f4bb \u2764\ufe0f\u200d", "\U0001f469\u200d\U0001f4bb \u2764\ufe0f\n"),
        ("a\u202eb\u2066c\u061c", "abc\n"),
    ],
)  # fmt: skip
def test_details_of_text(html: str, markdown: str) -> None:
    assert html_to_markdown(html, {"logo@x": "logo.png"}) == markdown


HOSTILE = {
    "nested cells": "<table><tr><td>x",
    "formatting in paragraphs": "<b><p><i><font color=red>x",
    "stray end tags": "<td><b></p></b></i></tr></table>x",
    "many classes": f"<p class='{' '.join(f'c{number}' for number in range(60))}'>x",
    "many rules": "<style>.a .b .c, .a > .b ~ .c, .a{color:red}</style><p class='a b c'>x",
    "equal keys": "<style>.a.b{top:1px} .a .b{left:1px}</style><b class='a b'>",
    "groups": "<style>@media all{@media all{",
    "braces": "<style>{{{}",
    "comments": "<style>/*",
    "long values": "<p style='color:rgb(" + "1," * 500 + "'>x",
    "translations": "<p style='transform:translate(" + "translate(" * 50 + "'>x",
}


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_cost_of_hostile_styles_is_bounded(piece: str) -> None:
    html = (piece * (MAX_HTML_CHARACTERS // len(piece) + 1))[:MAX_HTML_CHARACTERS]
    start = time.process_time()
    html_to_markdown(html)
    assert time.process_time() - start < 20


_PIECES = [
    *("<p>", "</p>", "<div>", "</div>", "<td>", "<table>", "</table>", "<tr>", "<li>", "<b>", "</b>", "<p class=x>"),
    *("<font color=#fff>", "<div style='font-size:0'>", "<span style='", "'>", "<style>", "</style>", ".x{color:"),
    *("#fff", "}", "a", "@media", "{", "rect(0", "calc(", "1e999px", "rgb(", ")", "\\", "/*", "*/", ";", ":", "[a~="),
    *("]", ">", "+"),
]  # fmt: skip


@given(st.lists(st.sampled_from(_PIECES), max_size=30).map("".join))
def test_no_style_raises(html: str) -> None:
    html_to_markdown(html)
