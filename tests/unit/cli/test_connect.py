from pathlib import Path

import pytest

from millstream.cli.connect import key_of, tls_of, who_of
from millstream.errors import UsageError


def test_without_user_nobody_logs_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_PASSWORD", "secret")
    assert who_of(None, None) == (None, "")


def test_password_file_goes_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLSTREAM_PASSWORD", "from environment")
    path = tmp_path / "password"
    path.write_text("from file \r\nsecond line\n")
    assert who_of("ann", path) == ("ann", "from file ")
    assert who_of("ann", None) == ("ann", "from environment")
    assert "environment" not in repr(who_of("ann", None))


def test_missing_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MILLSTREAM_PASSWORD", raising=False)
    with pytest.raises(UsageError, match="MILLSTREAM_PASSWORD"):
        who_of("ann", None)
    with pytest.raises(UsageError, match="needs --user"):
        who_of(None, tmp_path)
    with pytest.raises(UsageError, match="cannot read the password file"):
        who_of("ann", tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(UsageError, match="is empty"):
        who_of("ann", tmp_path / "empty")


def test_certificates(tmp_path: Path) -> None:
    assert tls_of(None) is None
    (tmp_path / "ca").write_text("nonsense")
    with pytest.raises(UsageError, match="is no certificate authority"):
        tls_of(tmp_path / "ca")
    with pytest.raises(UsageError, match="is no certificate authority"):
        tls_of(tmp_path / "none")


def test_keys() -> None:
    assert (key_of("ä"), key_of("\\xff00")) == ("ä".encode(), b"\xff\x00")
    with pytest.raises(UsageError, match="hex digits"):
        key_of("\\xf")
