import pytest

from millstream.errors import ConditionError, UsageError
from millstream.node.embedded import Node

GOOD = {"views": {"by": {"map": "function (doc) { emit(doc._id) }", "reduce": "_count"}}}


async def test_documents_are_checked_and_kept(tmp_path):
    async with Node(tmp_path, buckets=["a:4"], http=None) as node:
        designs = node.engine.designs
        await designs.check("a", "x", GOOD)
        await designs.check("a", "x", {"filters": {}})
        # Python functions are registered in the index process, which alone can look them up.
        python = {"views": {"by": {"map": "registered:there"}}, "language": "python"}
        await designs.check("a", "x", python)
        written = await designs.write("a", "x", b"{}", None, is_durable=True)
    async with Node(tmp_path, http=None) as node:
        designs = node.engine.designs
        assert (await designs.read("a", "x")).rev == written.rev
        assert [one.name for one in await designs.all("a")] == ["x"]
        with pytest.raises(ConditionError, match="no bucket"):
            await designs.read("b", "x")
        with pytest.raises(ConditionError, match="no bucket"):
            await designs.check("b", "x", GOOD)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ({"views": {"by": {"map": "function ("}}}, "compilation_error"),
        ({"views": {"by": {"map": "doc => 1", "reduce": "oh no"}}}, "compilation_error"),
        ({"views": {"by": {}}}, "invalid_design_doc"),
        ({"views": []}, "invalid_design_doc"),
        ({"views": {"by": {"map": "doc => 1"}}, "language": "cobol"}, "invalid_design_doc"),
        ({"views": {"by": {"map": "def f"}}, "language": "python"}, "invalid_design_doc"),
    ],
)
async def test_what_does_not_compile_is_refused(tmp_path, content, code):
    async with Node(tmp_path, buckets=["a:4"], http=None) as node:
        with pytest.raises(UsageError) as caught:
            await node.engine.designs.check("a", "x", content)
    assert caught.value.code == code
