"""International domains: each form converts to the other, and never to a different domain."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.idna import to_ascii, to_unicode


@pytest.mark.parametrize(
    ("domain", "ascii_form"),
    [
        ("bücher.test", "xn--bcher-kva.test"),
        ("straße.test", "xn--strae-oqa.test"),
        ("σας.test", "xn--mxa8ab.test"),
        ("a_b.bücher.test", "a_b.xn--bcher-kva.test"),
        ("bücher.test.", "xn--bcher-kva.test."),
        ("Example.test", "Example.test"),
    ],
)
def test_domain_converts_between_both_forms(domain: str, ascii_form: str) -> None:
    assert to_ascii(domain) == ascii_form
    assert to_unicode(ascii_form) == domain


def test_spellings_of_one_domain_have_one_ascii_form() -> None:
    assert to_ascii("BÜCHER.test") == to_ascii("bu\u0308cher.test") == "xn--bcher-kva.test"
    assert to_unicode("XN--BCHER-KVA.test") == "bücher.test"


@pytest.mark.parametrize("domain", ["☃.test", "ﬁsch.test", "bücher。test", "-ö.test", "ö" * 80, "a..ö", "", "x" * 64])
def test_invalid_domain_has_no_ascii_form(domain: str) -> None:
    with pytest.raises(UnicodeError):
        to_ascii(domain)


@pytest.mark.parametrize("domain", ["xn--99999.test", "xn--.test", "xn--ls8h.test", "xn--zz--.test"])
def test_invalid_a_label_has_no_unicode_form(domain: str) -> None:
    with pytest.raises(UnicodeError):
        to_unicode(domain)


@given(st.text(max_size=80))
def test_forms_round_trip(text: str) -> None:
    try:
        ascii_form = to_ascii(text)
    except UnicodeError:
        return
    assert ascii_form.isascii()
    if not text.isascii() and "xn--" not in text.lower():
        assert to_ascii(to_unicode(ascii_form)) == ascii_form


@given(st.text(max_size=80), st.text(alphabet="abcü-019", max_size=40))
def test_any_text_gives_a_value_or_a_unicode_error(text: str, label: str) -> None:
    for domain in (text, f"xn--{label}.test"):
        for convert in (to_ascii, to_unicode):
            try:
                convert(domain)
            except UnicodeError:
                pass
