"""Puts the output of a real run into the README, as text and as a picture of a terminal.

make demo 2>/dev/null | python -m tools.terminal_picture

A test compares the text with the picture, and with the rows that the archive's server held.
"""

from __future__ import annotations

import io
import re
import sys
from html import unescape
from itertools import dropwhile, groupby
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PICTURE = ROOT / "docs" / "img" / "demo.svg"
COMMAND = "make demo"
BEGIN, END = "<!-- demo output -->\n```text\n", "```\n<!-- end of demo output -->"
_THEME = TerminalTheme(
    (17, 24, 32),
    (214, 222, 230),
    [
        *((60, 70, 80), (224, 108, 117), (126, 200, 140), (229, 192, 123)),
        *((97, 175, 239), (198, 120, 221), (86, 182, 194), (200, 208, 216)),
    ],
)
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
_LINE = re.compile(r'<text [^>]*?x="([\d.]+)"[^>]*?y="([\d.]+)"[^>]*?>(.*?)</text>')


def shown(readme: str) -> str:
    """The output that the README shows."""
    return readme.partition(BEGIN)[2].partition(END)[0]


def with_output(readme: str, output: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}{output.rstrip()}\n{END}{rest.partition(END)[2]}"


def picture(output: str) -> str:
    """An SVG of a terminal with the command and its output, without external resources."""
    width = max(map(len, output.splitlines())) + 1  # columns
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(Text.assemble(("$ ", "green"), (COMMAND, "bold")))
    for line in output.rstrip().splitlines():
        console.print(_colored(line), soft_wrap=True)
    console.print()  # the picture's lower edge cuts off the descenders of its last line
    svg = console.export_svg(title="", theme=_THEME, unique_id="demo")
    svg = _FONTS.sub("", svg).replace("Fira Code", "ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono")
    return "\n".join(line.rstrip() for line in svg.splitlines()) + "\n"


def _colored(line: str) -> Text:
    text = Text(line)
    text.highlight_regex(r"[┏┓┗┛━┳┡┩╇│└┘┴─┃]", "cyan")
    text.highlight_regex(r"(?<=[│ ])(public\.\w+)", "bold")
    text.highlight_regex(r"^All tables are consistent.*", "green")
    return text


def texts(svg: str) -> list[str]:
    """The lines of a picture without spaces, which are not drawn."""
    drawn = [(float(y), float(x), "".join(unescape(text).split())) for x, y, text in _LINE.findall(svg)]
    lines = groupby(sorted(piece for piece in drawn if piece[2]), key=lambda piece: piece[0])
    return ["".join(text for _, _, text in pieces) for _, pieces in lines]


def main() -> None:
    output = "".join(dropwhile(lambda line: not line.startswith("Batch "), sys.stdin))  # without pip's output
    if "consistent through LSN" not in output:
        sys.exit("expected the output of a successful run")
    README.write_text(with_output(README.read_text(encoding="utf-8"), output), encoding="utf-8")
    PICTURE.write_text(picture(output), encoding="utf-8")


if __name__ == "__main__":
    main()
