from filled_index import SHAPE, filled_index
from millstream.views.aio.index_check import check_indexes


def contents(path):
    return {each: each.read_bytes() for each in path.rglob("*") if each.is_file()}


def test_all_indexes_of_a_directory_are_checked_and_left_as_they_are(tmp_path):
    assert check_indexes(tmp_path / "none") == []
    filled_index(tmp_path / SHAPE.signature).close()
    (tmp_path / "begun").mkdir()
    (tmp_path / "0123abcd.damaged" / "1").mkdir(parents=True)
    (tmp_path / "0123abcd.damaged" / "1" / "data.mdb").write_bytes(b"rubbish")
    before = contents(tmp_path)
    begun, found = tmp_path / "begun", tmp_path / SHAPE.signature
    checks = {check.signature: check for check in check_indexes(tmp_path)}
    assert checks.keys() == {begun.name, found.name}
    assert contents(tmp_path) == before
    assert not any(check.damage for check in checks.values())
    assert (checks[begun.name].commit, checks[begun.name].rows) == (0, [])
    assert checks[found.name].rows == [200, 100]
    assert checks[found.name].documents == 200
    assert checks[found.name].kept_roots == 6


def test_a_bit_that_turned_is_found(tmp_path):
    folder = tmp_path / SHAPE.signature
    store = filled_index(folder)
    store.close()
    file = folder / "1" / "data.mdb"
    data = bytearray(file.read_bytes())
    at = data.index(b"document-00100")
    while at >= 0:
        data[at + 5] ^= 1
        at = data.find(b"document-00100", at + 1)
    file.write_bytes(data)
    (found,) = check_indexes(tmp_path)
    assert "checksum" in found.damage


def test_an_index_of_another_signature_is_reported(tmp_path):
    filled_index(tmp_path / "else").close()
    (found,) = check_indexes(tmp_path)
    assert "is of 0123abcd" in found.damage
    (tmp_path / "else" / "1" / "data.mdb").write_bytes(b"rubbish" * 2000)
    (found,) = check_indexes(tmp_path)
    assert "is damaged" in found.damage
