"""The table of contents of a dump, as pg_dump -Fd writes it."""

from __future__ import annotations

COPY = 'COPY public."a b" (id, "c""d") FROM stdin;\n'


class Toc:
    """Writes toc.dat of version 1.16."""

    def __init__(self, int_size: int = 4) -> None:
        self.int_size = int_size

    def attached(self, root: str, partition: str) -> bytes:
        definition = f"ALTER TABLE ONLY {root} ATTACH PARTITION {partition} FOR VALUES FROM (1) TO (2);\n"
        return self.entry(name="a b", kind="TABLE ATTACH", definition=definition)

    def number(self, number: int) -> bytes:
        return bytes([number < 0]) + abs(number).to_bytes(self.int_size, "little")

    def text(self, text: str | None) -> bytes:
        return self.number(-1) if text is None else self.number(len(text.encode())) + text.encode()

    def head(self, entries: int) -> bytes:
        numbers = b"".join(self.number(0) for _ in range(7))
        texts = b"".join(self.text("x") for _ in range(3))
        return b"PGDMP\x01\x10\x00" + bytes([self.int_size, 8, 3, 0]) + numbers + texts + self.number(entries)

    def entry(
        self,
        oid: str | None = "16384",
        copy: str = COPY,
        file: str = "1.dat",
        name: str = "a b",
        kind: str = "TABLE DATA",
        definition: str = "",
    ) -> bytes:
        texts = [self.text(text) for text in ("0", oid, name, kind)]
        more = [self.text(text) for text in (definition, "", copy, "public", "", "heap")]
        last = [self.text(text) for text in ("owner", "false", None, file)]
        numbers = self.number(1) + self.number(1)
        return numbers + b"".join(texts) + self.number(3) + b"".join(more) + self.number(114) + b"".join(last)
