import msgspec

from millstream.cluster.cluster_state import BucketState, Place, SharedDesign
from millstream.cluster.cluster_state_files import find_learned, keep_learned

LEARNED = BucketState(
    "b",
    "u1",
    4,
    [Place("a", "h", 1, 2, [0])],
    [SharedDesign("d", "1-x", msgspec.Raw(b'{"views":{}}'))],
)


def test_what_was_kept_is_found(tmp_path, caplog):
    assert find_learned(tmp_path / "none") == []
    keep_learned(tmp_path / "u1", BucketState("old", "u1", 4, [], []))
    keep_learned(tmp_path / "u1", LEARNED)
    (tmp_path / "u2").mkdir()
    for damaged in (b"{", b"\xff", b"[]"):
        (tmp_path / "u2" / "learned.json").write_bytes(damaged)
        assert find_learned(tmp_path) == [(tmp_path / "u1", LEARNED)]
    assert caplog.text.count("is not used") == 3
