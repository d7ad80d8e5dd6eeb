"""format=flowed (RFC 3676): paragraphs in place of the lines they were broken into."""

from __future__ import annotations

_SIGNATURE = "-- "


def unflow(text: str, *, delete_space: bool) -> str:
    """Join flowed lines of the same quote depth; ``delete_space`` is DelSp=yes (section 4.1)."""
    lines: list[str] = []
    paragraph: list[str] = []  # the flowed lines read so far
    paragraph_depth = 0
    for line in text.split("\n"):
        content = line.lstrip(">")
        depth = len(line) - len(content)
        # Section 4.4: one space was stuffed in front.
        content = content.removeprefix(" ")
        is_signature = content == _SIGNATURE
        # Section 4.5 for the depth. An empty line ends a paragraph, though its last line should not have flowed.
        if paragraph and (is_signature or not content or depth != paragraph_depth):
            lines.append(_quoted("".join(paragraph), paragraph_depth))
            paragraph.clear()
        paragraph_depth = depth
        if content.endswith(" ") and not is_signature:
            paragraph.append(content[:-1] if delete_space else content)
            continue
        paragraph.append(content)
        lines.append(_quoted("".join(paragraph), depth))
        paragraph.clear()
    if paragraph:
        lines.append(_quoted("".join(paragraph), paragraph_depth))
    return "\n".join(lines)


def _quoted(content: str, depth: int) -> str:
    return ">" * depth + " " + content if depth else content
