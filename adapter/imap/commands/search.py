"""SEARCH (RFC 3501 6.4.4, RFC 4731), SORT and THREAD (RFC 5256)."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from adapter.imap.handlers import TaggedResponse, handles
from protocol.errors import ProtocolError
from protocol.imap.commands import model
from protocol.imap.commands.model import SearchReturn
from protocol.imap.responses import search as search_response
from protocol.imap.search.program import Program, compile_search
from protocol.imap.search.thread import thread_response

if TYPE_CHECKING:
    from adapter.imap.session import Session


# RFC 3501 6.4.4; RFC 9051 6.4.4: always the extended response
@handles(model.Search)
async def search(session: Session, command: model.Search) -> TaggedResponse:
    returns = command.returns or (SearchReturn(all=True) if session.dialect.rev2 else None)
    with _nothing_saved_after_no(session, returns):
        program, uids = await _find(session, command)
    if returns is None:
        _send_numbers(session, command, uids)
    else:
        _send_extended(session, command, returns, uids, ordered=False)
    return TaggedResponse("Search completed", uses_numbers=program.uses_numbers)


# RFC 5256 3; RFC 5267 3.1 for RETURN
@handles(model.Sort)
async def sort(session: Session, command: model.Sort) -> TaggedResponse:
    with _nothing_saved_after_no(session, command.returns):
        program, uids = await _find(session, command)
        ordered = await session.reader.sort(session.mailbox.folder, command.criteria, uids)
    if command.returns is None:
        _send_numbers(session, command, ordered)
    else:
        _send_extended(session, command, command.returns, ordered, ordered=True)
    return TaggedResponse("Sort completed", uses_numbers=program.uses_numbers)


# RFC 5256 3
@handles(model.Thread)
async def thread(session: Session, command: model.Thread) -> TaggedResponse:
    program, uids = await _find(session, command)
    box = session.mailbox
    numbers = uids if command.uid else box.view.numbers(uids)
    algorithm = command.algorithm.value.encode("ascii")
    session.send(thread_response(await session.reader.thread(box.folder, algorithm, uids, numbers)))
    return TaggedResponse("Thread completed", uses_numbers=program.uses_numbers)


# RFC 5182 2.1: NO empties the saved result, BAD leaves it as it was
@contextmanager
def _nothing_saved_after_no(session: Session, returns: SearchReturn | None) -> Iterator[None]:
    view = session.mailbox.view
    try:
        yield
    except ProtocolError:
        raise
    except Exception:
        if returns is not None and returns.save:
            view.save_result(())
        raise


async def _find(session: Session, command: model.Search | model.Sort | model.Thread) -> tuple[Program, Sequence[int]]:
    box = session.mailbox
    program = compile_search(command.key, box.view, int(time.time()))
    uids = await session.reader.search(box.folder, program, session.report_progress)
    return program, box.view.visible(uids)


def _send_numbers(session: Session, command: model.Search | model.Sort, uids: Sequence[int]) -> None:
    box = session.mailbox
    # RFC 7162 3.1.6
    modseq = max(box.folder.modseqs(uids), default=None) if command.uses_modseq else None
    numbers = uids if command.uid else box.view.numbers(uids)
    if isinstance(command, model.Sort):
        session.send(search_response.sort_response(numbers, modseq))
    else:
        session.send(search_response.search_response(numbers, modseq))


def _send_extended(
    session: Session,
    command: model.Search | model.Sort,
    returns: SearchReturn,
    uids: Sequence[int],
    *,
    ordered: bool,
) -> None:
    box = session.mailbox
    answer = search_response.extended_search(
        session.tag or b"",
        returns,
        uids,
        uid_command=command.uid,
        number_of=box.view.numbers,
        modseq_of=box.folder.modseqs if command.uses_modseq else None,
        ordered=ordered,
    )
    session.send(answer.response)
    if answer.saved is not None:
        box.view.save_result(answer.saved)
