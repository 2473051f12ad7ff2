"""HTML pages from the templates in this folder. Each is one self-contained file, without scripts, links, or fonts.

Names from an archive are escaped, and their control characters are shown as escape sequences.
"""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pgoutput_etl.identifiers import printable


def render(template: str, **values: object) -> str:
    """The page made from TEMPLATE.html.j2."""
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
