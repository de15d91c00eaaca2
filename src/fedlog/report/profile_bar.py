"""Where a round's time went, as one bar of coloured parts with their names and seconds."""

from __future__ import annotations

import html
from collections.abc import Sequence

COLOURS = ("#4c72b0", "#55a868", "#c44e52", "#8172b3", "#ccb974", "#64b5cd", "#8c8c8c", "#dd8452", "#c7c7c7", "#eeeeee")
WIDTH, HEIGHT, LINE = 640, 24, 20


def profile_bar(parts: Sequence[tuple[str, float, float]]) -> str:
    """An SVG for a page: (part, mean seconds, share) each; empty for a run that was not profiled."""
    if not parts:
        return ""
    drawn, left = list[str](), 0.0
    for at, (part, seconds, share) in enumerate(parts):
        colour, wide, down = COLOURS[at % len(COLOURS)], WIDTH * share, HEIGHT + LINE * (at + 1)
        drawn.append(f'<rect x="{left:.1f}" width="{wide:.1f}" height="{HEIGHT}" fill="{colour}"/>')
        drawn.append(f'<rect x="0" y="{down - 11}" width="12" height="12" fill="{colour}"/>')
        words = html.escape(f"{part}: {seconds:.4f} s, {100 * share:.1f} %")
        drawn.append(f'<text x="20" y="{down}" font-size="13" font-family="sans-serif">{words}</text>')
        left += wide
    size = f'viewBox="0 0 {WIDTH} {HEIGHT + LINE * (len(parts) + 1)}" width="{WIDTH}"'
    title = "<h2>Where the time of a round went</h2>"
    return f'{title}<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>{"".join(drawn)}</svg>'
