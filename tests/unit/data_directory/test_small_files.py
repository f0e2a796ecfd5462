import pytest

from millstream.data_directory.small_files import as_text, read_toml, sealed, utc_now
from millstream.errors import CorruptionError, UsageError

CONTENT = 'format = 1\nname = "orders"\ncreated = 2026-01-02T03:04:05Z\n'


def test_a_sealed_file_is_read_back(tmp_path):
    file = tmp_path / "x.toml"
    file.write_bytes(sealed(CONTENT))
    content = read_toml(file)
    assert (content["sealed"], content["name"]) == (True, "orders")
    assert as_text(content["created"]) == "2026-01-02T03:04:05Z"
    assert len(utc_now()) == 20


def test_no_bit_of_a_sealed_file_can_change_and_no_end_be_lost(tmp_path):
    file, whole = tmp_path / "x.toml", sealed(CONTENT)
    for at in range(len(whole)):
        for bit in range(8):
            data = bytearray(whole)
            data[at] ^= 1 << bit
            file.write_bytes(data)
            with pytest.raises(CorruptionError, match=r"x\.toml.*a hint"):
                read_toml(file, " (a hint)")
        file.write_bytes(whole[:at])
        with pytest.raises(CorruptionError, match=r"x\.toml.*a hint"):
            read_toml(file, " (a hint)")


def test_a_file_of_an_older_program_has_no_checksum(tmp_path):
    file = tmp_path / "x.toml"
    file.write_text(CONTENT)
    assert "sealed" not in read_toml(file)


def test_a_newer_format_is_refused(tmp_path):
    file = tmp_path / "x.toml"
    file.write_bytes(sealed(CONTENT.replace("format = 1", "format = 9")))
    with pytest.raises(UsageError, match="format 9") as raised:
        read_toml(file)
    assert raised.value.code == "newer_format"
