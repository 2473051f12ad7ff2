"""inet, cidr, macaddr, and macaddr8, as PostgreSQL's text.

IPv6 addresses are printed as in src/port/inet_net_ntop.c: ``::`` replaces the first of the longest runs of two or more
zero words, and an IPv4 address is printed after 96 zero bits or ::ffff.
"""

from __future__ import annotations

from ipaddress import ip_address

from pgoutput_etl.types.column import RefusedError, TypeTable, always
from pgoutput_etl.types.strings import string_type

_HEADER = 4  # family, netmask bits, cidr flag, address bytes

_IPV4, _IPV6 = (2, 4), (3, 16)  # family and bytes: PGSQL_AF_INET, PGSQL_AF_INET6

_MAPPED = bytes(10) + b"\xff\xff"

_EXPECTED = "a network address as inet_send and cidr_send write it"


def inet_text(value: bytes) -> bytes:
    address, bits = _address(value, is_cidr=0)
    netmask = "" if bits == 8 * len(address) else f"/{bits}"
    return f"{_print_address(address)}{netmask}".encode("ascii")


def cidr_text(value: bytes) -> bytes:
    address, bits = _address(value, is_cidr=1)
    if int.from_bytes(address, "big") & (1 << 8 * len(address) - bits) - 1:
        raise RefusedError("a network with no bits set to the right of its netmask")
    return f"{_print_address(address)}/{bits}".encode("ascii")


def _address(value: bytes, *, is_cidr: int) -> tuple[bytes, int]:
    if len(value) < _HEADER:
        raise RefusedError(_EXPECTED)
    family, bits, cidr_flag, size = value[:_HEADER]
    address = value[_HEADER:]
    if (family, size) not in (_IPV4, _IPV6) or cidr_flag != is_cidr or len(address) != size or bits > 8 * size:
        raise RefusedError(_EXPECTED)
    return address, bits


def _print_address(address: bytes) -> str:
    is_mapped = address[:-4] == _MAPPED
    if is_mapped or (address[:-4] == bytes(12) and any(address[12:14])):
        return f"::{'ffff:' if is_mapped else ''}{ip_address(address[-4:])}"
    return str(ip_address(address))


def macaddr_text(value: bytes) -> bytes:
    return _print_mac(value, 6)


def macaddr8_text(value: bytes) -> bytes:
    return _print_mac(value, 8)


def _print_mac(value: bytes, size: int) -> bytes:
    if len(value) != size:
        raise RefusedError(f"a MAC address of {size} bytes")
    return value.hex(":").encode("ascii")


TYPES: TypeTable = {
    650: always(string_type("cidr", cidr_text)),
    774: always(string_type("macaddr8", macaddr8_text)),
    829: always(string_type("macaddr", macaddr_text)),
    869: always(string_type("inet", inet_text)),
}
