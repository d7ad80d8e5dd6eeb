"""Parsers of SEARCH (RFC 3501 6.4.4) with RETURN (RFC 4731, RFC 5182, RFC 9394), SORT and THREAD (RFC 5256).

Search keys nest, so they are parsed with a stack of open brackets instead of recursion. Chains of OR become one
balanced tree and a double NOT is removed, so the result is never deep, whatever the input.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from protocol.imap.commands.model import Partial, Search, SearchReturn, Sort, Thread, ThreadAlgorithm
from protocol.imap.commands.search_key import KEYS, PREFIXES, sequence_key
from protocol.imap.search.keys import And, ModSeqKey, Not, Or, SearchKey
from protocol.imap.search.sort import SortCriterion, SortKey
from protocol.imap.wire.lexer import CommandError, Lexer

MAX_DEPTH: Final = 32
_CHARSETS: Final = (b"US-ASCII", b"UTF-8", b"ASCII", b"UTF8")


# RFC 3501 6.4.4 search = "SEARCH" [SP "CHARSET" SP astring] 1*(SP search-key); RFC 4466 2.6.1 [search-return-opts]
def parse_search(lexer: Lexer, *, uid: bool) -> Search:
    lexer.space()
    returns = _returns(lexer)
    if lexer.skip_keyword(b"CHARSET"):
        lexer.space()
        _charset(lexer, returns)
        lexer.space()
    key, uses_modseq = _criteria(lexer)
    return Search(uid, key, returns, uses_modseq)


# RFC 5256 5 sort = ["UID" SP] "SORT" SP sort-criteria SP search-criteria; RFC 5267 3.1 RETURN
def parse_sort(lexer: Lexer, *, uid: bool) -> Sort:
    lexer.space()
    returns = _returns(lexer)
    criteria = tuple(lexer.parenthesised(lambda: _sort_criterion(lexer)))
    lexer.space()
    _charset(lexer, returns)
    lexer.space()
    key, uses_modseq = _criteria(lexer)
    return Sort(uid, criteria, key, returns, uses_modseq)


# RFC 5256 5 sort-criterion = ["REVERSE" SP] sort-key; RFC 5957 5
def _sort_criterion(lexer: Lexer) -> SortCriterion:
    reverse = lexer.skip_keyword(b"REVERSE")
    if reverse:
        lexer.space()
    try:
        return SortCriterion(SortKey(lexer.keyword("a sort key").encode("ascii")), reverse)
    except ValueError:
        raise CommandError("Unknown sort key") from None


# RFC 5256 5 thread = ["UID" SP] "THREAD" SP thread-alg SP search-criteria
def parse_thread(lexer: Lexer, *, uid: bool) -> Thread:
    lexer.space()
    try:
        algorithm = ThreadAlgorithm(lexer.keyword("an algorithm"))
    except ValueError:
        raise CommandError("Unknown thread algorithm") from None
    lexer.space()
    _charset(lexer)
    lexer.space()
    key, uses_modseq = _criteria(lexer)
    return Thread(uid, algorithm, key, uses_modseq)


# RFC 4466 2.6.1 search-return-opts; RFC 4731 3.1, RFC 5182 2.1, RFC 9394 3.1
def _returns(lexer: Lexer) -> SearchReturn | None:
    if not lexer.skip_keyword(b"RETURN"):
        return None
    lexer.space()
    partial: list[Partial] = []

    def option() -> str:
        name = lexer.keyword("a return option")
        if name == "PARTIAL":
            lexer.space()
            partial.append(Partial(*lexer.partial_range()))
        elif name not in ("MIN", "MAX", "ALL", "COUNT", "SAVE"):
            raise CommandError("Unknown search return option")
        return name

    names = lexer.parenthesised(option, empty=True)
    lexer.space()
    if len(partial) > 1 or (partial and "ALL" in names):
        raise CommandError("PARTIAL can be used once, and not with ALL")
    return SearchReturn(
        min="MIN" in names,
        max="MAX" in names,
        all="ALL" in names or not names,
        count="COUNT" in names,
        save="SAVE" in names,
        partial=partial[0] if partial else None,
    )


# RFC 3501 6.4.4: the response to an unsupported charset lists the supported ones
class UnknownCharsetError(CommandError):
    def __init__(self, returns: SearchReturn | None) -> None:
        super().__init__("Charset is not supported", "NO", "BADCHARSET (US-ASCII UTF-8)")
        self.saves = returns is not None and returns.save  #: the command has RETURN (SAVE) (RFC 5182 2.1)


def _charset(lexer: Lexer, returns: SearchReturn | None = None) -> None:
    if lexer.astring("a charset").upper() not in _CHARSETS:
        raise UnknownCharsetError(returns)


class _Kind(Enum):
    AND = "keys side by side, until the bracket closes"
    OR = "a number of keys"
    NOT = "one key"


class _Open:
    """An open AND, OR or NOT that is collecting its keys: ``operands`` of them, or any number if it is AND."""

    __slots__ = ("keys", "kind", "operands")

    def __init__(self, kind: _Kind, operands: int = 0) -> None:
        self.kind = kind
        self.operands = operands
        self.keys: list[SearchKey] = []


# RFC 3501 9 search-key
def _criteria(lexer: Lexer) -> tuple[SearchKey, bool]:
    """Parse the rest of the command as one key; also returns whether it contains MODSEQ."""
    stack = [_Open(_Kind.AND)]
    uses_modseq = False
    while True:
        if len(stack) > MAX_DEPTH:
            raise CommandError("Search keys are nested too deeply")
        if lexer.skip(b"("):
            lexer.skip_space()
            stack.append(_Open(_Kind.AND))
            continue
        key = sequence_key(lexer)
        if key is None:
            name = lexer.keyword("a search key")
            if name == "NOT":
                if stack[-1].kind is _Kind.NOT:
                    stack.pop()
                else:
                    stack.append(_Open(_Kind.NOT, 1))
                lexer.space()
                continue
            if name == "OR":
                if stack[-1].kind is _Kind.OR:
                    stack[-1].operands += 1
                else:
                    stack.append(_Open(_Kind.OR, 2))
                lexer.space()
                continue
            key = _leaf(lexer, name)
            uses_modseq = uses_modseq or isinstance(key, ModSeqKey)
        _add(stack, key)
        while len(stack) > 1 and stack[-1].kind is _Kind.AND and (lexer.skip(b")") or lexer.skip(b" )")):
            inner = stack.pop()
            if stack[-1].kind is _Kind.AND:
                stack[-1].keys += inner.keys
            else:
                _add(stack, _all_of(inner.keys))
        if len(stack) == 1 and lexer.at_end:
            return _all_of(stack[0].keys), uses_modseq
        lexer.space()


def _leaf(lexer: Lexer, name: str) -> SearchKey:
    key = KEYS.get(name)
    if key is not None:
        return key
    parse = PREFIXES.get(name)
    if parse is None:
        raise CommandError("Unknown search key")
    lexer.space()
    return parse(lexer)


def _add(stack: list[_Open], key: SearchKey) -> None:
    """Add a key to the innermost open one. Each that is now complete becomes a key of the next."""
    while True:
        innermost = stack[-1]
        innermost.keys.append(key)
        if innermost.kind is _Kind.AND or len(innermost.keys) < innermost.operands:
            return
        stack.pop()
        key = Not(key) if innermost.kind is _Kind.NOT else _any_of(innermost.keys)


def _all_of(keys: list[SearchKey]) -> SearchKey:
    return keys[0] if len(keys) == 1 else And(tuple(keys))


def _any_of(keys: list[SearchKey]) -> SearchKey:
    while len(keys) > 1:
        pairs: list[SearchKey] = [Or(left, right) for left, right in zip(keys[::2], keys[1::2])]
        keys = pairs + keys[len(pairs) * 2 :]
    return keys[0]
