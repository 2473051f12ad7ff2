"""Runs a command with a systemd unit's restrictions, as far as they need no systemd. Needs root and libseccomp.

    command = sandboxed(unit(path), [state], ["receive.sh", "shop", str(state)])

Imitates UMask, LimitCORE, CapabilityBoundingSet, NoNewPrivileges, ProtectSystem=strict with ReadWritePaths,
ProtectProc, SystemCallFilter, RestrictAddressFamilies, and MemoryDenyWriteExecute. The user stays root, without
capabilities.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_LIBRARY = "libseccomp.so.2"
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | 1  # SCMP_ACT_ALLOW, SCMP_ACT_ERRNO(EPERM)
_EQUAL = 4  # SCMP_CMP_EQ
_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
_DROP = ("setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all")


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("value", ctypes.c_uint64),
        ("mask", ctypes.c_uint64),
    )


@cache
def is_available() -> bool:
    """True if this machine can imitate a unit."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "systemd-analyze"))):
        return False
    try:
        ctypes.CDLL(_LIBRARY)
    except OSError:
        return False
    return subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0


def sandboxed(
    unit_settings: Iterable[tuple[str, str, str]], writable: Iterable[Path], command: Sequence[str]
) -> list[str]:
    """The command that runs `command` as the unit would. writable: its ReadWritePaths and StateDirectory."""
    settings: dict[str, list[str]] = {}
    for _, key, value in unit_settings:
        settings.setdefault(key, []).append(value)
    assert settings["ProtectSystem"] == ["strict"]
    mounts = [["--make-rprivate", "/"], *(["--bind", str(path), str(path)] for path in writable)]
    mounts.append(["-o", "remount,bind,ro", "/"])
    if "ProtectProc" in settings:
        mounts.append(["-t", "proc", "-o", f"hidepid={settings['ProtectProc'][0]}", "proc", "/proc"])
    limits = {
        "umask": int(settings["UMask"][0], 8),
        "calls": _calls(settings["SystemCallFilter"]),
        "families": settings["RestrictAddressFamilies"][0].split(),
        "writes_code": "MemoryDenyWriteExecute" not in settings,
    }
    this = [sys.executable, "-I", __file__]
    outer, inner = [*this, "mount", json.dumps(mounts)], [*this, "limit", json.dumps(limits)]
    return ["unshare", "--mount", *outer, *_DROP, *inner, *command]


@cache
def _members(name: str) -> frozenset[str]:
    """The system calls of a set such as @system-service."""
    done = subprocess.run(["systemd-analyze", "syscall-filter", name], check=True, capture_output=True, text=True)
    names = [line.strip() for line in done.stdout.splitlines()[1:] if line.strip()[:1] not in ("", "#")]
    return frozenset().union(*(_members(name) if name[0] == "@" else {name} for name in names))


def _calls(filters: Iterable[str]) -> list[str]:
    calls: frozenset[str] = frozenset()
    for value in filters:
        named = frozenset().union(*map(_members, value.removeprefix("~").split()))
        calls = calls - named if value[0] == "~" else calls | named
    return sorted(calls)


def _limit(limits: dict[str, Any]) -> None:
    os.umask(limits["umask"])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    library = ctypes.CDLL(_LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(_DENY))
    numbers = {call: library.seccomp_syscall_resolve_name(call.encode()) for call in limits["calls"]}
    for call, number in numbers.items():
        if number >= 0 and call != "socket":  # a negative one is another architecture's
            assert library.seccomp_rule_add_array(rules, _ALLOW, number, 0, None) == 0, call
    for family in limits["families"]:
        rule = (_Comparison * 1)(_Comparison(0, _EQUAL, getattr(socket, family), 0))
        assert library.seccomp_rule_add_array(rules, _ALLOW, numbers["socket"], 1, rule) == 0, family
    assert library.seccomp_load(rules) == 0
    if not limits["writes_code"]:  # since Linux 6.3
        ctypes.CDLL(None).prctl(_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)


if __name__ == "__main__":
    step, values, *command = sys.argv[1:]
    if step == "mount":
        for arguments in json.loads(values):
            subprocess.run(["mount", *arguments], check=True)
    else:
        _limit(json.loads(values))
    os.execvp(command[0], command)
