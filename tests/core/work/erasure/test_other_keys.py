"""The keys that a request does not name, as a file from which they are copied into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.work.erasure.other_keys import OtherKeysFile
from pgoutput_etl.work.erasure.report import OtherKeys
from pgoutput_etl.work.erasure.request import TableErasure, read_erasure


def test_the_file_has_the_form_of_a_request(tmp_path: Path) -> None:
    """Whatever the values are: texts that YAML or the request would read otherwise, and bytes that are no UTF-8."""
    file = OtherKeysFile.of(str(tmp_path / "erasure.yaml"))
    odd = ["7", "007", "no", "null", "", "1.50", "${HOME} $${x}", "a: b # c", "née\n'\"", "\udce9", "x" * 500]
    keys = {(("id", text), ("a: b", "1")) for text in odd}
    written = file.write({"public.t": keys, "public.u": {(("code", "x"),)}})
    assert written == OtherKeys(str(tmp_path / "erasure.other-keys.yaml"), (("public.t", len(odd)), ("public.u", 1)))
    assert file.path.stat().st_mode & 0o777 == 0o600
    request = tmp_path / "erasure.yaml"
    request.write_text(f"requested_by: dpo\nreference: R-1\n{file.path.read_text()}")
    t, u = read_erasure(str(request)).tables
    assert (t.name, sorted(t.conditions)) == ("public.t", sorted(keys))
    assert (u.name, u.conditions) == ("public.u", ((("code", "x"),),))


def test_the_file_is_deleted_when_nothing_is_left_over(tmp_path: Path) -> None:
    file = OtherKeysFile.of(str(tmp_path / "erasure.yaml"))
    file.write({"public.t": {(("id", "1"),)}})
    assert file.write({}) is None
    assert not file.path.exists()
    assert file.write({}) is None


def test_the_file_stays_until_the_request_names_all_of_it(tmp_path: Path) -> None:
    file = OtherKeysFile.of(str(tmp_path / "erasure.yaml"))
    file.delete_if_named(())
    file.write({"public.t": {(("a", "1"), ("b", "2")), (("a", "3"), ("b", "4"))}})
    one, both = (("b", "2"), ("a", "1")), (("a", "3"), ("b", "4"))
    for named in ((TableErasure("public.t", (one,)),), (TableErasure("public.u", (one, both)),)):
        file.delete_if_named(named)
        assert file.path.exists()
    file.delete_if_named([TableErasure("public.t", (one,)), TableErasure("public.t", (both, (("a", "5"),)))])
    assert not file.path.exists()


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    file = OtherKeysFile.of(str(tmp_path / "none" / "erasure.yaml"))
    with pytest.raises(ConfigError, match=r"erasure\.other-keys\.yaml: can't be written: No such file") as raised:
        file.write({"public.t": {(("id", "secret"),)}})
    assert "secret" not in str(raised.value)
