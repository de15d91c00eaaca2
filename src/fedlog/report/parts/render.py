"""Render HTML pages from templates; each page is one file that includes its style sheet and script."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedlog.report.parts.plots import make_legend, place_horizontal_lines, place_series
from fedlog.report.parts.style import COLOURS, DASHES, MARKERS
from fedlog.wire.bits_text import describe_bits

PAGE = "report.html"  # the name of every page that is written into a folder
MINUS = "\N{MINUS SIGN}"


def render_page(template: str, **values: Any) -> str:
    """Return the HTML of a page: the template filled with these values.

    `records_version` is a hash that changes when the records change (`hash_file_states`): while `fedlog watch` serves
    the page, the page reloads when there is another hash. It is None for a page in a file.
    """
    return _make_template_environment().get_template(template).render(**values)


@cache
def _make_template_environment() -> Environment:
    found = Environment(
        loader=PackageLoader("fedlog.report"),
        autoescape=True,  # names of clients and settings come from users
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals.update(
        css=Markup(_read_template("page.css")),
        script=Markup(_read_template("page.js")),
        live_script=Markup(_read_template("live.js")),
        colours=COLOURS,
        dashes=DASHES,
        markers=MARKERS,
        legend_of=make_legend,
        place_series=place_series,
        place_horizontal_lines=place_horizontal_lines,
    )
    found.filters.update(percent=format_percent, points=format_points, bits=describe_bits)
    return found


def _read_template(name: str) -> str:
    return resources.files("fedlog.report").joinpath("templates", name).read_text()


def format_percent(share: float | None, digits: int = 1) -> str:
    """Format a share as `98.4 %`; return a dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def format_points(share: float | None) -> str:
    """Format a difference of two shares in points, as `+1.3`; return a dash for None."""
    if share is None:
        return "–"
    text = f"{100 * share:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text.replace("-", MINUS)
