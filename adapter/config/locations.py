"""On which line of a TOML text a key stands; the parser of the standard library does not tell.

The text has been parsed before: what is no TOML never comes here, so nothing is checked and nothing can go wrong.
"""

from __future__ import annotations

import re

SettingPath = tuple[str, ...]

_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""+|\'\'\'.*?\'\'\'+|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\n\[\]{}=,.]|[^\s\[\]{}=,.#"\']+',
    re.DOTALL,
)


def key_lines(text: str) -> dict[SettingPath, int]:
    """Every key and table by its path, with the line it is first named on."""
    found: dict[SettingPath, int] = {}
    table: SettingPath = ()
    words: list[str] = []  # of the key that is being read
    opened: list[SettingPath | None] = []  # brackets of a value: an inline table by its path, None for an array
    path: SettingPath = ()
    in_header = in_value = False
    line, seen = 1, 0

    def note(path: SettingPath) -> None:
        for length in range(1, len(path) + 1):
            found.setdefault(path[:length], line)

    for match in _TOKEN.finditer(text):
        line += text.count("\n", seen, match.start())
        seen = match.start()
        mark = match[0]
        if mark.startswith("#"):
            continue
        if mark == "\n":
            if not opened:
                in_value, words = False, []
        elif in_value:
            if mark == "{":
                opened.append(path)
                in_value = False
            elif mark == "[":
                opened.append(None)
            elif mark in "]}" and opened:
                opened.pop()
            elif mark == "," and opened and opened[-1] is not None:
                in_value = False
        elif mark == "[":
            in_header = True
        elif mark == "]":
            if in_header:
                table = tuple(words)
                note(table)
            words, in_header = [], False
        elif mark == "=":
            base = next((outer for outer in reversed(opened) if outer is not None), table)
            path = (*base, *words)
            note(path)
            words, in_value = [], True
        elif mark == "}":  # of a table with nothing in it, or after a comma
            opened.pop()
            in_value = True
        elif mark not in (".", ","):
            words.append(mark[1:-1] if mark[0] in "\"'" else mark)
    return found
