"""YAML: format scalars in one exact form, and parse untrusted YAML with guards.

A string is written plain if it cannot be parsed as anything else (number, date, boolean, null, comment, mapping), else
double-quoted. Only characters that YAML forbids, line breaks of any kind, quotes and backslashes are escaped. A lone
surrogate has no UTF-8 form and becomes U+FFFD.
"""

from __future__ import annotations

import re
from typing import Any

import yaml
from frontmatter.default_handlers import YAMLHandler

from protocol.errors import MailError, Reason

try:
    from yaml import CSafeLoader as SafeLoader
except ImportError:  # PyYAML without libyaml: slower, same result
    from yaml import SafeLoader  # type: ignore[assignment]

MAX_FRONT_MATTER_BYTES = 4 << 20
MAX_DEPTH = 16
MAX_EVENTS = 200_000
_MAX_NUMBER_CHARACTERS = 40

# Characters that YAML 1.1 forbids or treats as line breaks, and the byte order mark.
SPECIAL = "\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff\ud800-\udfff"
_FIRST = r"[A-Za-z_/$(;^<\\\xa0-\U0010ffff]"
_BLOCK_PLAIN = re.compile(rf"(?![{SPECIAL}]){_FIRST}(?>(?:[^ :#{SPECIAL}]++|:(?![ ]|\Z)|(?<! )\#| (?!\Z|\#))*)\Z")
_FLOW_PLAIN = re.compile(rf"(?![{SPECIAL}]){_FIRST}(?>(?:[^ :#?,\[\]{{}}{SPECIAL}]++| (?!\Z))*)\Z")
_RESERVED = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "<<"})
_TO_ESCAPE = re.compile(rf'["\\{SPECIAL}]')
_NAMED = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_UNESCAPE = re.compile(r'\\(?:(["\\nrt])|x([0-9A-F]{2})|u([0-9A-F]{4}))')
_UNNAMED = {escape[1]: character for character, escape in _NAMED.items()}
_CONTROLS = bytes({*range(0x20), 0x7F} - {9, 10, 13})
NOT_LITERAL = re.compile("(?![\t\n\r])[" + SPECIAL + "]")
# A SHA-256 with one of these letters cannot be parsed as a number.
_HEX_LETTER = re.compile("[acdef]")


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    named = _NAMED.get(character)
    if named is not None:
        return named
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02X}"
    return "\ufffd" if 0xD800 <= code < 0xE000 else f"\\u{code:04X}"


def _unescape(match: re.Match[str]) -> str:
    named, short, long = match.groups()
    return _UNNAMED[named] if named else chr(int(short or long, 16))


def quote(text: str) -> str:
    return '"' + _TO_ESCAPE.sub(_escape, text) + '"'


def unquote(quoted: str) -> str:
    """Undo ``quote``; not suitable for quoted text of any other origin."""
    return _UNESCAPE.sub(_unescape, quoted[1:-1]) if "\\" in quoted else quoted[1:-1]


def block_scalar(text: str) -> str:
    """Format a string as the value of a key on its own line."""
    if _BLOCK_PLAIN.match(text) and (len(text) > 5 or text.lower() not in _RESERVED):
        return text
    return quote(text)


def flow_scalar(text: str) -> str:
    """Format a string inside ``[…]`` or ``{…}``."""
    if _FLOW_PLAIN.match(text) and (len(text) > 5 or text.lower() not in _RESERVED):
        return text
    return quote(text)


def hex_scalar(digest: str) -> str:
    return digest if _HEX_LETTER.search(digest) else f'"{digest}"'


def fits_yaml(raw: bytes) -> bool:
    """True if a block scalar can represent the octets: UTF-8 without forbidden characters. The caller checks for CR."""
    if raw.isascii():
        return len(raw.translate(None, _CONTROLS)) == len(raw)
    try:
        return NOT_LITERAL.search(raw.decode()) is None
    except UnicodeDecodeError:
        return False


class _GuardedLoader(SafeLoader):
    """Safe loader that rejects duplicate keys and merges, and keeps very long numbers as strings."""


def _construct_mapping(loader: Any, node: yaml.MappingNode) -> dict[Any, Any]:
    mapping: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str) or key in mapping or key_node.tag.endswith(":merge"):
            raise MailError(Reason.BAD_CONTENT, f"front matter: bad or repeated key {str(key)[:80]!r}")
        mapping[key] = loader.construct_object(value_node, deep=True)
    return mapping


def _bounded(construct: Any) -> Any:
    def constructor(loader: Any, node: yaml.ScalarNode) -> Any:
        return str(node.value) if len(node.value) > _MAX_NUMBER_CHARACTERS else construct(loader, node)

    return constructor


_GuardedLoader.add_constructor("tag:yaml.org,2002:map", _construct_mapping)
for _kind in ("int", "float", "timestamp"):
    _tag = f"tag:yaml.org,2002:{_kind}"
    _GuardedLoader.add_constructor(_tag, _bounded(SafeLoader.yaml_constructors[_tag]))


class GuardedHandler(YAMLHandler):
    """python-frontmatter's YAML handler for untrusted input."""

    def load(self, fm: str, **_: object) -> dict[str, Any]:
        """Parse front matter into a mapping; raises MailError(BAD_CONTENT)."""
        if len(fm) > MAX_FRONT_MATTER_BYTES:
            raise MailError(Reason.BAD_CONTENT, "front matter: too large")
        try:
            self._check_events(fm)
            loaded = yaml.load(fm, Loader=_GuardedLoader)  # noqa: S506 - a safe loader
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            detail = " ".join(str(error).split())[:200]
            raise MailError(Reason.BAD_CONTENT, f"front matter: {detail}") from error
        if loaded is None:
            return {}
        if not isinstance(loaded, dict):
            raise MailError(Reason.BAD_CONTENT, "front matter: not a mapping")
        return loaded

    @staticmethod
    def _check_events(text: str) -> None:
        depth = documents = 0
        for count, event in enumerate(yaml.parse(text, Loader=SafeLoader)):
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
                raise MailError(Reason.BAD_CONTENT, "front matter: aliases are not allowed")
            if getattr(event, "tag", None) is not None:
                raise MailError(Reason.BAD_CONTENT, "front matter: tags are not allowed")
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            elif isinstance(event, yaml.DocumentStartEvent):
                documents += 1
            if depth > MAX_DEPTH or count > MAX_EVENTS or documents > 1:
                raise MailError(Reason.BAD_CONTENT, "front matter: too deep, too long or several documents")
