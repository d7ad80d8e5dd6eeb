"""House style checker: phrases, docstring openings and identifiers that hide the technical term.

``python -m tests.style PATH…`` prints ``file:line: pattern: excerpt`` for each hit, and exits with 1 if there is one.
Checked are docstrings, comments, texts that a person reads (log lines, errors, help) and names of Python modules, the
prose of Markdown, and the comments of every other text file. Quotations and code spans are not prose.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: Mail text and recorded protocol lines: data, not prose.
DATA = (
    "tests/recorded_copies/",
    "tests/support/mail/corpus.py",
    "tests/support/mail/real_mail.py",
    "tests/style.py",
    "tests/test_style.py",
)
#: Files with the same name everywhere, and no prose of ours in them.
NOT_OURS = ("LICENSE", "constraints.txt")


class Hit(NamedTuple):
    line: int
    pattern: str
    excerpt: str


_AT = "in|on|at|there|beside|behind|before|below|above|under"

# --- the patterns ----------------------------------------------------------------------------------------------------

#: Phrase -> regular expression; a space stands for any white space.
PHRASES = {
    "anew": r"anew",
    "whose": r"whose",
    "whoever": r"who(?:m)?(?:so)?ever",
    "nobody": r"nobody(?:'s)?",
    "somebody": r"somebody(?:'s|else)?",
    "is none": r"(?<!there\s)(?:is|are|was|were) none(?! of)",
    "is no more": r"(?<!there\s)(?:is|are|was|were) no more(?= [a-z]*[.;,:)]|[.;,:)]|$)",
    "is no": r"(?<!there\s)(?<!it\s)(?:is|are) no(?! (?:longer|more|such|less|fewer|later|earlier|larger)\b)(?= [a-z])",
    "is had": r"(?:is|are|be|was|were|been) had",
    "is told": r"told",
    "tells": r"tells?",
    "hears": r"hears?|heard",
    "speaks": r"speaks?(?! (?:(?:the|only|plain|either) )?(?-i:[A-Z]{2}))",
    "looks": r"look(?:s|ed|ing)? (?:whether|for|at|into|through|after|again|if|there|round|around|out)",
    "lies": rf"(?:lies|lay|lain|lying)(?! flat)|lie (?:{_AT})",
    "stands": rf"(?:stands|stood|standing)(?! (?:in )?for\b)|stand (?:in(?! for)|as|{_AT})",
    "for good": r"for good(?! reason| measure)",
    "so long": r"so long(?! as\b)",
    "trouble": r"troubles?",
    "meanwhile": r"meanwhile|in the meantime",
    "of its own accord": r"own accord",
    "takes nothing": r"takes? nothing(?! (?:from|else|readable|more|away))",
    "any more": r"(?:not|no|nothing|never)\b[^.;]{0,60} any ?more",
    "is known of": r"known of",
    "taken back": r"(?:take|takes|taken|taking|took) back",
    "let be": r"let(?:s)? be",
    "mend": r"mend(?:s|ed|ing|er)?",
    "becomes of": r"(?:become|becomes|became) of",
    "goes by": r"goes? by (?:it|its|the|them|that)",
    "sign of life": r"signs? of life",
}


def _compiled(expression: str) -> re.Pattern[str]:
    return re.compile(rf"\b(?:{expression})(?!\w)".replace(" *", r"\s*").replace(" ", r"\s+"), re.IGNORECASE)


_PHRASES = {name: _compiled(expression) for name, expression in PHRASES.items()}
_ANY_PHRASE = _compiled("|".join(PHRASES.values()))

#: "How to …" and "How long to …" are noun phrases.
_HOW = r"How\b(?! (?:\w+ )?to\b)"
_OPENING = re.compile(rf"(?:Whatever|What|Whoever|Who|Whom|Whose|Whether|Whichever|Which|Where|Why|{_HOW})\b", re.I)
_CLAUSE = r"(?:Whatever|What|Whoever|Who|Whom|Whose|Whichever|Which|Whether)\b"
_SENTENCE = re.compile(rf"(?:^|[.!?][)\"]?\s+|\n[ \t]*\n[ \t]*)({_CLAUSE}[^.?]*[.?]?)", re.I)

#: Participles and verbs of speech: a value is named by what it is.
NAMES = {
    "found", "known", "told", "tell", "tells", "look", "looks", "looked", "settle", "settled", "heard", "hear", "hears",
    "wanted", "said",
}  # fmt: skip
#: Words of names that hide the actor or the term.
NAME_WORDS = {"anew", "whose", "whoever", "nobody", "somebody", "meanwhile", "trouble"}
#: (file, pattern, text in the excerpt): a use that is right, and why.
ALLOWED: dict[tuple[str, str, str], str] = {
    ("README.md", "whose", "whose mailbox is a folder of Markdown"): "the motto",
    ("adapter/cli/__init__.py", "whose", "whose mailbox is a folder of Markdown"): "the motto",
}


# --- prose -----------------------------------------------------------------------------------------------------------

_SPAN = re.compile(r"``.+?``|`[^`\n]+`|\"[^\"\n]{1,200}\"|“[^”]{1,200}”|<[^<>\n]{1,100}>|\S*://\S+", re.DOTALL)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "·", match[0])


def _prose(text: str, *, opening: bool = False) -> Iterator[tuple[int, str, str]]:
    """(offset, pattern, excerpt) of the hits in a text; ``opening`` marks a text with a docstring's first line."""
    plain = _SPAN.sub(_blank, text)
    for name, expression in _PHRASES.items() if _ANY_PHRASE.search(plain) else ():
        for match in expression.finditer(plain):
            yield match.start(), name, _around(text, match.start(), match.end())
    start = len(plain) - len(plain.lstrip())
    first = _OPENING.match(plain, start) if opening else None
    if first is not None and not _is_question(plain, start):
        yield start, "opens with a clause", _around(text, start, start + 40)
    for match in _SENTENCE.finditer(plain):
        is_first = first is not None and match.start(1) == start
        if not is_first and not match[1].endswith("?"):
            yield match.start(1), "sentence begins with a clause", _around(text, match.start(1), match.start(1) + 40)


def _is_question(text: str, start: int) -> bool:
    end = re.compile(r"[.?:](?:\s|$)").search(text, start)
    return end is not None and end[0][0] == "?"


def _around(text: str, start: int, end: int) -> str:
    left, right = text.rfind("\n", 0, start) + 1, text.find("\n", end)
    right = len(text) if right < 0 else right
    before, after = text[max(left, start - 50) : start], text[end : min(right, end + 50)]
    before = before if start - 50 <= left else before.partition(" ")[2]
    after = after if end + 50 >= right else after.rpartition(" ")[0]
    return " ".join(f"{before}{text[start:end]}{after}".split())


def _hits(text: str, line: int, *, opening: bool = False) -> Iterator[Hit]:
    text = re.sub(r"\n[ \t]+", "\n", text)
    for offset, pattern, excerpt in _prose(text, opening=opening):
        yield Hit(line + text.count("\n", 0, offset), pattern, excerpt)


# --- Python ----------------------------------------------------------------------------------------------------------

_SQL = re.compile(r"\b(?:SELECT|INSERT|UPDATE|DELETE|CREATE|FROM|WHERE|PRAGMA|JOIN)\b")
_SPEAKING_CALLS = {"debug", "info", "warning", "error", "exception", "critical", "log", "fail", "skip", "exit", "echo"}


def python_hits(path: str, source: str) -> Iterator[Hit]:
    tree = ast.parse(source)
    docstrings = _docstrings(tree)
    for node in docstrings.values():
        yield from _hits(str(node.value), node.lineno, opening=True)
    for text, line in _comment_blocks(source):
        yield from _hits(text, line)
    for text, line in _messages(tree, docstrings, everywhere=not path.startswith("tests/")):
        yield from _hits(text, line)
    for name, line in _bound_names(tree):
        if name.strip("_").lower() in NAMES or NAME_WORDS.intersection(re.findall(r"[a-z]+", name.lower())):
            yield Hit(line, "name", name)


def _docstrings(tree: ast.AST) -> dict[int, ast.Constant]:
    texts = {}
    for node in ast.walk(tree):
        for statement in getattr(node, "body", None) or [] if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                texts[id(value)] = value
    return texts


def _comment_blocks(source: str) -> Iterator[tuple[str, int]]:
    """Comments and their first lines; lines of comment below each other are one text."""
    block: list[str] = []
    first = last = column = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT or token.string.startswith(("# type:", "# noqa", "#!")):
            continue
        row, start = token.start
        alone = not token.line[:start].strip()
        if block and not (alone and row == last + 1 and start == column):
            yield "\n".join(block), first
            block = []
        if not block:
            first = row
        column = start if alone else -1
        block.append(token.string.lstrip("#:").strip())
        last = row
    if block:
        yield "\n".join(block), first


def _messages(tree: ast.AST, docstrings: dict[int, ast.Constant], *, everywhere: bool) -> Iterator[tuple[str, int]]:
    """Texts that a person reads: all in the product, in tests those of failures and log calls."""
    roots: list[ast.AST] = [tree] if everywhere else list(_speaking(tree))
    seen: set[int] = set()
    for root in roots:
        for node in ast.walk(root):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "{}" for part in node.values]
                seen.update(id(part) for part in node.values)
                text = "".join(str(part) for part in parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                text = node.value
            else:
                continue
            if id(node) not in seen and " " in text.strip() and not _SQL.search(text):
                yield text, node.lineno
            seen.add(id(node))


def _speaking(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) and node.msg is not None:
            yield node.msg
        elif isinstance(node, ast.Raise) and node.exc is not None:
            yield node.exc
        elif isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in _SPEAKING_CALLS:
                yield from node.args
            yield from (keyword.value for keyword in node.keywords if keyword.arg in ("help", "reason"))


def _bound_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr, node.lineno
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname, node.lineno
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name, node.lineno


# --- other files -----------------------------------------------------------------------------------------------------

_MARKER = re.compile(r"^[ \t]*(?:[-*+]|\d+\.)[ \t]+|\*\*", re.MULTILINE)


def markdown_hits(text: str) -> Iterator[Hit]:
    """Hits of paragraphs, list items and listings; RFC text in block quotes and headings are not sentences of ours."""
    line = 1
    for paragraph in re.split(r"(\n[ \t]*\n|\n(?=[ \t]*(?:[-*+]|\d+\.)[ \t]))", text):
        if not paragraph.lstrip().startswith((">", "|", "#")) and paragraph.strip():
            plain = _MARKER.sub(lambda match: "" if match[0] == "**" else " " * len(match[0]), paragraph)
            yield from _hits(plain, line)
        elif paragraph.lstrip().startswith(("|", "#")):
            yield from (hit for hit in _hits(paragraph, line) if hit.pattern in PHRASES)
        line += paragraph.count("\n")


def comment_hits(text: str, marks: tuple[str, ...] = ("#",)) -> Iterator[Hit]:
    """Hits of the lines that are comments."""
    block: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        mark = next((mark for mark in marks if line.lstrip().startswith(mark)), None)
        comment = line.lstrip()[len(mark) :] if mark and not line.startswith("#!") else None
        if comment is None and block:
            yield from _hits("\n".join(block), number - len(block))
            block = []
        if comment is not None:
            block.append(comment)


# --- the whole -------------------------------------------------------------------------------------------------------


def file_hits(path: str, text: str) -> list[Hit]:
    """All hits of a file but the allowed ones; ``path`` is relative to the repository."""
    return [
        hit
        for hit in unfiltered_hits(path, text)
        if not any(path == file and hit.pattern == name and part in hit.excerpt for file, name, part in ALLOWED)
    ]


def unfiltered_hits(path: str, text: str) -> list[Hit]:
    if path.startswith(DATA) or path.endswith(NOT_OURS):
        return []
    if path.endswith(".py"):
        hits = python_hits(path, text)
    elif path.endswith(".md"):
        hits = markdown_hits(text)
    elif path.endswith(".sql"):
        hits = comment_hits(text, ("--",))
    else:
        hits = comment_hits(text)
    return sorted(set(hits))


def files(*paths: str) -> Iterator[Path]:
    """The text files below these paths of the repository."""
    for path in paths:
        place = ROOT / path
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            parts = file.relative_to(ROOT).parts
            if file.is_file() and "__pycache__" not in parts and not {".git", ".venv", "build"} & set(parts):
                yield file


def repository_hits(*paths: str) -> Iterator[tuple[str, Hit]]:
    for file in files(*paths):
        path = str(file.relative_to(ROOT))
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield from ((path, hit) for hit in file_hits(path, text))


def main() -> int:
    count = 0
    for path, hit in repository_hits(*(str(Path(each).resolve().relative_to(ROOT)) for each in sys.argv[1:] or ["."])):
        print(f"{path}:{hit.line}: {hit.pattern}: {hit.excerpt}")
        count += 1
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
