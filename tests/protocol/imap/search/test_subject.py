"""Base subject extraction (RFC 5256 2.1), rule by rule."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.imap.search.subject import BaseSubject, base_subject


@pytest.mark.parametrize(
    ("subject", "text", "reply"),
    [
        ("Meeting", "Meeting", False),
        ("", "", False),
        ("   ", "", False),
        ("Re: Meeting", "Meeting", True),
        ("RE: re: Fw: FWD: Meeting", "Meeting", True),
        ("re :Meeting", "Meeting", True),
        ("Re [2]: Meeting", "Meeting", True),
        ("Re[2] : Meeting", "Meeting", True),
        ("Re : Meeting", "Meeting", True),
        ("[list] Meeting", "Meeting", False),
        ("[list] Re: Meeting", "Meeting", True),
        ("[a][b] [c] Re: [d] Meeting", "Meeting", True),
        ("Meeting (fwd)", "Meeting", True),
        ("Meeting (FWD) (fwd)  ", "Meeting", True),
        ("[fwd: Meeting]", "Meeting", True),
        ("[Fwd: Re: [list] Meeting (fwd)]", "Meeting", True),
        ("[fwd: [fwd: Meeting]]", "Meeting", True),
        ("[list]", "[list]", False),
        ("[a] [b]", "[b]", False),
        ("Re: [list]", "[list]", True),
        ("Re:", "", True),
        ("Re: Re:", "", True),
        ("(fwd)", "", True),
        ("Regarding: Meeting", "Regarding: Meeting", False),
        ("Fwdx: Meeting", "Fwdx: Meeting", False),
        ("Re Meeting", "Re Meeting", False),
        ("[unclosed Meeting", "[unclosed Meeting", False),
        ("Two\t  words\r\n here", "Two words here", False),
        ("[nested [blob]] Meeting", "[nested [blob]] Meeting", False),
        ("Aw: Meeting", "Aw: Meeting", False),
        ("Meeting [list]", "Meeting [list]", False),
        ("Re: Grüße [x]", "Grüße [x]", True),
        ("[fwd:]", "", True),
        ("[fwd: ]", "", True),
    ],
)
def test_base_subject_follows_the_rfc(subject: str, text: str, reply: bool) -> None:
    assert base_subject(subject) == BaseSubject(text, reply)


@pytest.mark.parametrize(
    "hostile",
    [
        "[a]" * 100_000,
        "re:" * 100_000,
        "[fwd:" * 60_000 + "]" * 60_000,
        "(fwd)" * 60_000,
        "[" * 200_000,
        "re [" * 50_000,
    ],
)
def test_cost_is_linear(hostile: str) -> None:
    began = time.process_time()
    base_subject(hostile)
    assert time.process_time() - began < 10


subjects = st.lists(
    st.sampled_from(["re", "Fwd", "fw", ":", " ", "[", "]", "[fwd:", "(fwd)", "x", "ä", "[l]", "\t"]),
    max_size=20,
).map("".join)


@given(subjects)
def test_stable_and_trimmed(subject: str) -> None:
    """Extraction is idempotent and trims white space; only removed markers make a subject a reply."""
    text, _ = base_subject(subject)
    assert text == text.strip(" ")
    assert base_subject(text).text == text
    if base_subject(text).reply:
        assert base_subject(text).text == text == ""
