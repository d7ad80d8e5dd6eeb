"""Line numbers of the keys of a TOML text, which the parser of the standard library does not provide.

The text is valid TOML: it has been parsed before, so nothing is checked here.
"""

from __future__ import annotations

import re

#: The path of a setting: section and key, or the section alone.
SettingPath = tuple[str, ...]

_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"""+|\'\'\'.*?\'\'\'+|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\n\[\]{}=,.]|[^\s\[\]{}=,.#"\']+',
    re.DOTALL,
)


def key_lines(text: str) -> dict[SettingPath, int]:
    """Return every key and table by its path, with the line of its first occurrence."""
    lines: dict[SettingPath, int] = {}
    table: SettingPath = ()
    words: list[str] = []  # of the current key
    brackets: list[SettingPath | None] = []  # open ones: an inline table by its path, None for an array
    path: SettingPath = ()
    in_header = in_value = False
    line, position = 1, 0

    def record(path: SettingPath) -> None:
        for length in range(1, len(path) + 1):
            lines.setdefault(path[:length], line)

    for match in _TOKEN.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        lexeme = match[0]
        if lexeme.startswith("#"):
            continue
        if lexeme == "\n":
            if not brackets:
                in_value, words = False, []
        elif in_value:
            if lexeme == "{":
                brackets.append(path)
                in_value = False
            elif lexeme == "[":
                brackets.append(None)
            elif lexeme in "]}" and brackets:
                brackets.pop()
            elif lexeme == "," and brackets and brackets[-1] is not None:
                in_value = False
        elif lexeme == "[":
            in_header = True
        elif lexeme == "]":
            if in_header:
                table = tuple(words)
                record(table)
            words, in_header = [], False
        elif lexeme == "=":
            base = next((outer for outer in reversed(brackets) if outer is not None), table)
            path = (*base, *words)
            record(path)
            words, in_value = [], True
        elif lexeme == "}":  # of an empty table, or after a comma
            brackets.pop()
            in_value = True
        elif lexeme not in (".", ","):
            words.append(lexeme[1:-1] if lexeme[0] in "\"'" else lexeme)
    return lines
