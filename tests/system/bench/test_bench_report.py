"""The bench's own arithmetic: summaries, comparison of two results, growth, the table and the page."""

from __future__ import annotations

import random
import re
import xml.etree.ElementTree
from pathlib import Path

import pytest

from tests.bench.measure import Sample, summarise
from tests.bench.page import page
from tests.bench.report import Result, compare, growth, table
from tests.bench.rows import ROWS
from tests.bench.runner import Series, select_rows

DELIVERY = "delivery into a full mailbox, 1 connection"


def _series(row: str, size: int, peer: str, cost: float, spread: float = 0.02, unit: str = "ms") -> Series:
    dice = random.Random(f"{row} {size} {peer} {cost}")
    values = [cost * (1 + spread * dice.uniform(-1, 1)) for _ in range(5)]
    return Series(row, unit, size, peer, [Sample(value, value / 2, value / 10, 2.0) for value in values])


def _result(*series: Series) -> Result:
    return Result({"processor": "<fast> & new"}, {}, {"cyrus": "not installed"}, list(series))


def test_summary_has_median_and_quartiles() -> None:
    summary = summarise([5.0, 1.0, 3.0, 2.0, 4.0])
    assert (summary.low, summary.median, summary.high) == (2.0, 3.0, 4.0)
    assert summarise([7.0]).median == summarise([7.0]).high == 7.0


def test_result_survives_writing_and_reading(tmp_path: Path) -> None:
    result = _result(_series("COPY 1,000", 1000, "markpost-1", 0.01))
    result.write(str(tmp_path / "result.json"))
    assert Result.read(str(tmp_path / "result.json")) == result


def test_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ValueError, match="not a result of this bench"):
        Result.read(str(tmp_path / "other.json"))


def test_comparison_names_what_became_slower_and_what_faster() -> None:
    old = _result(_series("COPY 1,000", 1000, "markpost-1", 0.01), _series("MOVE 1,000", 1000, "markpost-1", 0.01))
    new = _result(_series("COPY 1,000", 1000, "markpost-1", 0.02), _series("MOVE 1,000", 1000, "markpost-1", 0.005))
    text = "\n".join(compare(old, new))
    slower, faster = text.split("faster:")
    assert re.search(r"2\.\d\d x  time   COPY 1,000, 1,000 messages, markpost-1", slower)
    assert "cpu    COPY" in slower
    assert "MOVE" not in slower
    assert "MOVE" in faster


def test_difference_within_the_spread_is_not_reported() -> None:
    old = _result(_series("COPY 1,000", 1000, "markpost-1", 0.010, spread=0.5))
    new = _result(_series("COPY 1,000", 1000, "markpost-1", 0.012, spread=0.5))
    assert "slower: none" in compare(old, new)
    assert "slower: none" in compare(old, old)


def test_small_difference_is_not_reported_however_steady() -> None:
    old = _result(_series("COPY 1,000", 1000, "markpost-1", 0.0100, spread=0))
    new = _result(_series("COPY 1,000", 1000, "markpost-1", 0.0105, spread=0))
    assert "slower: none" in compare(old, new)


def test_more_syncs_are_reported() -> None:
    old, new = (_result(Series("APPEND", "ms", 10, "markpost-1", [Sample(0.01, syncs=n)] * 3)) for n in (1.0, 3.0))
    assert any("syncs  APPEND" in line and "1 -> 3" in line for line in compare(old, new))


def test_rows_of_only_one_result_are_not_compared() -> None:
    new = _result(_series("COPY 1,000", 1000, "markpost-1", 9.0))
    assert compare(_result(), new)[0].startswith("compared 0 rows")


def test_growth_shows_ratio_and_goal() -> None:
    flat = [_series(DELIVERY, size, "markpost-1", 0.004) for size in (1000, 10_000, 100_000)]
    steep = [_series(DELIVERY, size, "markpost-2", size * 1e-6) for size in (1000, 10_000, 100_000)]
    lines = growth(_result(*flat, *steep))
    assert re.search(r"markpost-1 .* 1\.0\d x \(goal 1\.3 x\) ok", lines[1])
    assert re.search(r"markpost-2 .* MISSED", lines[2])


def test_table_has_a_line_for_each_peer_with_ratio() -> None:
    lines = table([_series("COPY", 1000, "markpost-1", 0.01), _series("COPY", 1000, "dovecot-maildir", 0.03)])
    assert lines[0] == "COPY, 1,000 messages"
    assert re.search(r"markpost-1 .* cpu .* syncs 2 .*: [23]\.\d\d x, cpu [23]\.\d\d x", lines[1])
    assert "dovecot-maildir" in lines[2]


def test_page_has_plots_and_loads_nothing() -> None:
    series = [
        _series(row, size, peer, cost * size)
        for row in ("COPY 1,000", "STORE <all>")
        for size in (1000, 100_000)
        for peer, cost in (("markpost-1", 1e-6), ("dovecot-maildir", 3e-6))
    ]
    text = page(_result(*series, _series("memory", 1000, "markpost-1", 40.0, unit="MiB")))
    plots = re.findall(r"<svg.*?</svg>", text)
    assert len(plots) == 4
    for plot in plots:
        xml.etree.ElementTree.fromstring(plot)
    assert "&lt;fast&gt; &amp; new" in text
    assert "STORE <all>" not in text
    assert "cyrus" in text
    assert not re.search(r"(?:src|href)=|url\(|@import", text)


def test_page_without_a_peer_to_compare_with_is_complete() -> None:
    assert "No row has both peers" in page(_result(_series("COPY 1,000", 1000, "markpost-1", 0.01)))


def test_rows_are_selected_by_part_of_the_name_or_pattern() -> None:
    assert [row.name for row in select_rows(ROWS, "copy, MOVE*")] == ["COPY 1,000", "MOVE 1,000"]
    assert select_rows(ROWS, "*") == ROWS
    assert select_rows(ROWS, "no such row") == []
    assert len({row.name for row in ROWS}) == len(ROWS)
