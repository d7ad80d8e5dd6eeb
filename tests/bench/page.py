"""The result as one HTML page with plots in SVG; it loads nothing from elsewhere."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from tests.bench.report import OURS, REFERENCE, Result, figures, ratio, show_quantity

_COLOURS = {
    "markpost-1": "#0b5fa5", "markpost-2": "#5aa9e6", "dovecot-maildir": "#b5460f", "dovecot-sdbox": "#e6a15a",
    "cyrus": "#5b8c3a",
}  # fmt: skip
_OTHER_COLOUR = "#555555"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 74em; margin: 2em auto; padding: 0 1em; color: #222 }
h1, h2 { font-weight: 600 }
svg { display: block }
svg text { font: 12px system-ui, sans-serif; fill: #333 }
table { border-collapse: collapse; font-size: 13px }
td, th { padding: 2px 10px; text-align: right; white-space: nowrap }
td:first-child, th:first-child, td:nth-child(3), th:nth-child(3) { text-align: left }
tr:nth-child(even) { background: #f5f5f5 }
.plots { display: flex; flex-wrap: wrap; gap: 1em }
figure { margin: 0 }
figcaption { font-size: 13px; max-width: 330px }
"""


def page(result: Result) -> str:
    facts = "".join(
        f"<li>{html.escape(name)}: {html.escape(str(value))}</li>" for name, value in result.facts.items() if value
    )
    skipped = "".join(
        f"<li>not measured: {html.escape(name)} ({html.escape(why)})</li>" for name, why in result.skipped.items()
    )
    return (
        "<!DOCTYPE html>\n<html lang=en><head><meta charset=utf-8><title>Markpost bench</title>"
        f"<style>{_STYLE}</style></head>\n<body><h1>Markpost bench</h1>\n<ul>{facts}{skipped}</ul>\n"
        f"<h2>Ratio per row</h2>\n<p>How many times as much {REFERENCE} costs as {OURS}: wall time (filled) and server "
        "CPU (open). Right of 1, Markpost is cheaper. A larger dot is a larger folder.</p>\n"
        f"{_ratio_plot(result)}\n<h2>Cost against size</h2>\n<p>Server CPU per operation, or memory. "
        "Bars show the quartiles.</p>\n"
        f"{_legend(result)}\n<div class=plots>{_size_plots(result)}</div>\n"
        f"<h2>All figures</h2>\n{_table(result)}\n</body></html>\n"
    )


def _peers(result: Result) -> list[str]:
    return list(dict.fromkeys(each.peer for each in result.series))


def _colour(peer: str) -> str:
    return _COLOURS.get(peer, _OTHER_COLOUR)


def _legend(result: Result) -> str:
    items = (f'<span style="color:{_colour(peer)}">● {html.escape(peer)}</span>' for peer in _peers(result))
    return f"<p>{' &nbsp; '.join(items)}</p>"


def _ratio_plot(result: Result) -> str:
    """Dots on a logarithmic axis, one line for each row."""
    dots: dict[str, list[tuple[int, str, float]]] = {}
    for each in result.series:
        reference = result.find(each.row, each.size, REFERENCE)
        if each.peer != OURS or reference is None:
            continue
        for name in ("value", "cpu"):
            factor = ratio(figures(reference, name), figures(each, name))
            if factor is not None:
                dots.setdefault(each.row, []).append((each.size, name, factor))
    if not dots:
        return "<p>No row has both peers.</p>"
    factors = [factor for each in dots.values() for _, _, factor in each]
    low, high = math.floor(math.log10(min(*factors, 0.5))), math.ceil(math.log10(max(*factors, 2.0)))
    left, width, step = 390, 600, 22
    height = step * len(dots) + 30

    def across(factor: float) -> float:
        return left + (math.log10(factor) - low) / (high - low) * width

    shapes = []
    for power in range(low, high + 1):
        for multiple in (1, 2, 5):
            mark = multiple * 10.0**power
            if mark <= 10.0**high:
                x = across(mark)
                shade = "#222" if mark == 1 else "#ddd"
                shapes.append(f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height - 25}" stroke="{shade}"/>')
                shapes.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{mark:g}</text>')
    largest = max(size for each in dots.values() for size, _, _ in each)
    for line, (row, points) in enumerate(dots.items()):
        y = step * line + 14
        shapes.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end">{html.escape(row)}</text>')
        for size, name, factor in points:
            radius = 3 + 3 * math.log10(size + 1) / math.log10(largest + 1) if largest else 5
            paint = _colour(OURS) if name == "value" else "none"
            label = f"{row}, {size:,} messages, {'wall time' if name == 'value' else 'CPU'}: {factor:.2f} x"
            shapes.append(
                f'<circle cx="{across(factor):.1f}" cy="{y}" r="{radius:.1f}" fill="{paint}" fill-opacity="0.7" '
                f'stroke="{_colour(OURS)}"><title>{html.escape(label)}</title></circle>'
            )
    return f'<svg width="{left + width + 30}" height="{height}" role="img">{"".join(shapes)}</svg>'


def _size_plots(result: Result) -> str:
    rows = dict.fromkeys(each.row for each in result.series if each.size)
    return "".join(_size_plot(result, row) for row in rows)


def _size_plot(result: Result, row: str) -> str:
    """Cost of one row against the size of the folder, both logarithmic, one line for each peer."""
    lines: dict[str, list[tuple[int, float, float, float]]] = {}
    unit = "ms"
    for each in sorted((each for each in result.series if each.row == row), key=lambda each: each.size):
        spent = figures(each, "cpu") or figures(each, "value")
        unit = each.unit
        if spent is not None and spent.low > 0:
            lines.setdefault(each.peer, []).append((each.size, spent.median, spent.low, spent.high))
    points = [point for line in lines.values() for point in line]
    if not points:
        return ""
    width, height, left, bottom = 330, 190, 62, 24
    sizes = sorted({size for size, *_ in points})
    low = math.log10(min(point[2] for point in points)) - 0.1
    high = math.log10(max(point[3] for point in points)) + 0.1
    span = math.log10(sizes[-1] / sizes[0]) or 1.0

    def across(size: int) -> float:
        return left + 12 + math.log10(size / sizes[0]) / span * (width - left - 40)

    def down(cost: float) -> float:
        return 8 + (high - math.log10(cost)) / (high - low) * (height - bottom - 16)

    shapes = [f'<rect x="{left}" y="4" width="{width - left - 6}" height="{height - bottom - 6}" fill="#fafafa"/>']
    shapes += [f'<text x="{across(size):.0f}" y="{height - 6}" text-anchor="middle">{size:,}</text>' for size in sizes]
    for mark in _marks(10**low, 10**high):
        y = down(mark)
        shapes.append(f'<line x1="{left}" y1="{y:.1f}" x2="{width - 6}" y2="{y:.1f}" stroke="#ddd"/>')
        shapes.append(f'<text x="{left - 4}" y="{y + 4:.1f}" text-anchor="end">{show_quantity(mark, unit)}</text>')
    for peer, line in lines.items():
        path = " ".join(f"{across(size):.1f},{down(cost):.1f}" for size, cost, _, _ in line)
        shapes.append(f'<polyline points="{path}" fill="none" stroke="{_colour(peer)}" stroke-width="2"/>')
        for size, cost, first, third in line:
            x = across(size)
            label = html.escape(f"{peer}, {size:,} messages: {show_quantity(cost, unit)}")
            shapes.append(
                f'<line x1="{x:.1f}" y1="{down(first):.1f}" x2="{x:.1f}" y2="{down(third):.1f}" '
                f'stroke="{_colour(peer)}" stroke-width="1"/><circle cx="{x:.1f}" cy="{down(cost):.1f}" r="3.5" '
                f'fill="{_colour(peer)}"><title>{label}</title></circle>'
            )
    svg = f'<svg width="{width}" height="{height}" role="img">{"".join(shapes)}</svg>'
    return f"<figure><figcaption>{html.escape(row)}</figcaption>{svg}</figure>\n"


def _marks(low: float, high: float) -> Sequence[float]:
    """Round values on a logarithmic axis, few enough to read."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for multiples in ((1, 2, 5), (1, 3), (1,)):
        marks = [multiple * 10.0**power for power in powers for multiple in multiples]
        marks = [mark for mark in marks if low <= mark <= high]
        if len(marks) <= 6:
            break
    return marks


def _table(result: Result) -> str:
    head = "<tr><th>row<th>messages<th>peer<th>median<th>quartiles<th>CPU<th>CPU afterwards<th>syncs<th>samples</tr>\n"
    body = []
    for each in result.series:
        value = figures(each, "value")
        if value is None:
            continue
        spent = [figures(each, name) for name in ("cpu", "background")]
        syncs = figures(each, "syncs")
        cells = [
            html.escape(each.row), f"{each.size:,}", html.escape(each.peer), show_quantity(value.median, each.unit),
            f"{show_quantity(value.low, each.unit)} – {show_quantity(value.high, each.unit)}",
            *(show_quantity(one.median, "ms") if one else "–" for one in spent),
            f"{syncs.median:.3g}" if syncs else "–", str(len(each.samples)),
        ]  # fmt: skip
        body.append(f"<tr><td>{'<td>'.join(cells)}</tr>\n")
    return f"<table>{head}{''.join(body)}</table>"
