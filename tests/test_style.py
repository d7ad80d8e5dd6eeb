"""House style: the repository has no hit of :mod:`tests.style`, and each of its patterns catches an offender."""

from __future__ import annotations

import pytest

from tests import style

PARTS = (
    ".ci", ".github", ".pre-commit-config.yaml", "AGENTS.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile",
    "README.md", "SECURITY.md", "adapter", "conf", "docker", "docs", "protocol", "pyproject.toml", "tests",
)  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_texts_and_names_keep_the_house_style(part: str) -> None:
    assert list(style.files(part)), "no such path"
    hits = [f"{path}:{hit.line}: {hit.pattern}: {hit.excerpt}" for path, hit in style.repository_hits(part)]
    assert not hits, "\n".join(hits)


def test_no_exception_is_left_over() -> None:
    for path, pattern, part in style.ALLOWED:
        text = (style.ROOT / path).read_text(encoding="utf-8")
        assert any(hit.pattern == pattern and part in hit.excerpt for hit in style.unfiltered_hits(path, text)), path


PHRASES = {
    "anew": "The index is built anew.",
    "whose": "A message whose file is missing.",
    "whoever": "The lock goes to whoever asks first.",
    "nobody": "With the lock nobody writes.",
    "somebody": "A reader waits while somebody writes.",
    "is none": "A client that only makes mistakes is none.",
    "is no more": "None if the message is no more: skip it.",
    "is no": "Raises MailError for a text that is no address.",
    "is had": "The password cannot be had.",
    "is told": "The session is told of new mail.",
    "tells": "The feed tells of new mail.",
    "hears": "A caller hears of the failure.",
    "speaks": "The address a proxy speaks for.",
    "looks": "It looks for new mail every second.",
    "lies": "The index lies beside the journal.",
    "stands": "The text stands in the file.",
    "for good": "Remove the message for good.",
    "so long": "A lock held for so long is stale.",
    "trouble": "The disk has trouble.",
    "meanwhile": "The caller waits meanwhile.",
    "of its own accord": "Mail comes back of its own accord.",
    "takes nothing": "A peer that takes nothing is disconnected.",
    "any more": "The folder is not there any more.",
    "is known of": "Little is known of this file.",
    "taken back": "The batch is taken back.",
    "let be": "Other messages are let be.",
    "mend": "Repair mends the store.",
    "becomes of": "The log shows what becomes of it.",
    "goes by": "The order goes by the date.",
    "sign of life": "The worker gives no sign of life.",
}


def test_every_phrase_has_an_offender() -> None:
    assert list(PHRASES) == list(style.PHRASES)


@pytest.mark.parametrize("pattern", PHRASES)
def test_phrase_is_reported_in_each_kind_of_text(pattern: str) -> None:
    text = PHRASES[pattern]
    broken = text.replace(" ", "\n")
    for path, source, line in [
        ("adapter/x.py", f'"""{text}"""\n', 1),
        ("adapter/x.py", f'def f() -> None:\n    """Do it.\n\n    {text}\n    """\n', 4),
        ("adapter/x.py", f"x = 1  # {text}\n", 1),
        ("adapter/x.py", f"\n# {broken.replace(chr(10), chr(10) + '# ')}\n", None),
        ("adapter/x.py", f"_log.warning({text!r})\n", 1),
        ("adapter/x.py", f'raise MailError(f"{{x}}: {text}")\n', 1),
        ("tests/x.py", f"assert x, {text!r}\n", 1),
        ("README.md", f"# Title\n\n{text}\n", 3),
        ("README.md", f"* One.\n* **Two.** {text}\n", 2),
        ("README.md", f"| a | {text} |\n", 1),
        ("conf/x.toml", f"x = 1\n# {text}\n", 2),
        ("adapter/schema.sql", f"-- {text}\n", 1),
        ("Makefile", f"# {text}\n", 1),
    ]:
        hits = [hit for hit in style.file_hits(path, source) if hit.pattern == pattern]
        assert len(hits) == 1, (path, source)
        assert line in (None, hits[0].line)


@pytest.mark.parametrize(
    ("pattern", "source"),
    [
        *(
            ("opens with a clause", f'"""{word} the client sent."""')
            for word in ("What", "Who", "Whose", "Whether", "Where", "Which", "How", "Why", "Whatever")
        ),
        ("opens with a clause", 'def f():\n    """How long it waits."""'),
        ("opens with a clause", 'class A:\n    """Whether `x` is a folder."""'),
        ("opens with a clause", 'x = 1\n"""Where the text begins."""'),
        ("sentence begins with a clause", '"""Read it. What is not a flag is a keyword."""'),
        ("sentence begins with a clause", '"""Read it.\n\nWhoever reads waits."""'),
        ("sentence begins with a clause", "# which files are new\nx = 1"),
        ("sentence begins with a clause", 'option("--x", help="What to call it.")'),
        ("name", "found = 1"),
        ("name", "self._known = 1"),
        ("name", "for _wanted in x: pass"),
        ("name", "def look(): pass"),
        ("name", "def f(told): pass"),
        ("name", "async def _settle(): pass"),
        ("name", "class Told: pass"),
        ("name", "with x as heard: pass"),
        ("name", "x = [said for said in y]"),
        ("name", "from x import y as found"),
        ("name", "match x:\n    case A() as found: pass"),
        ("name", "if (found := x): pass"),
        ("name", "def test_nobody_waits(): pass"),
    ],
)
def test_offender_in_python_is_reported(pattern: str, source: str) -> None:
    assert pattern in [hit.pattern for hit in style.file_hits("tests/x.py", f"{source}\n")]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("adapter/x.py", '"""How to read: `told`, ``nobody`` and "he tells" (https://example.test/anew)."""'),
        ("adapter/x.py", '"""Number of messages. There is no limit. Looks like a date. It is no longer there."""'),
        (
            "adapter/x.py",
            '"""Return the value. % stands for anything. Keep it as long as needed, or so long as open."""',
        ),
        ("adapter/x.py", "found_links = knowledge.known\nx = found(told=1)\n"),
        ("adapter/x.py", 'x = "SELECT told FROM x WHERE said IS NULL"\ny = "told"'),
        ("tests/x.py", 'MAIL = b"Nobody told me"\nBODY = "Somebody whose name I forgot tells me"\nassert text == BODY'),
        ("tests/recorded_copies/x.py", '"""Whose is this?"""'),
        ("adapter/x.py", "# What does Dovecot do here? It answers NO.\nx = 1"),
        ("README.md", "> What is told is told.\n\n## What is covered\n\nRun `tells`. What does it do?\n"),
        ("conf/x.toml", 'told = "whoever"\n'),
    ],
)
def test_right_use_is_not_reported(path: str, text: str) -> None:
    assert style.file_hits(path, text) == []
