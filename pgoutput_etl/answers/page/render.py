"""HTML pages from the templates beside this module: one self-contained file each, without scripts, links, or fonts.

Names from an archive are escaped, and control characters in them are shown as escapes.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pgoutput_etl.identifiers import printable


def render(template: str, **values: object) -> str:
    """The page of TEMPLATE.html.j2."""
    return _environment().get_template(f"{template}.html.j2").render(values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("pgoutput_etl.answers", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )


def _shown(value: object) -> object:
    return value if isinstance(value, Markup) else printable(str(value))
