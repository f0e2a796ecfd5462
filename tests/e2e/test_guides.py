"""README and guides, each pasted into one shell in order, beside one fresh node."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack, suppress
from pathlib import Path
from socket import socket

import pytest

import pasted
from millstream.node.engine_settings import PORT_STEP
from pasted import PastedShell, blocks_of, is_as_said, path_of, steps_of
from support.node.node_process import NodeProcess, free_port

SEVERAL = "it is about several machines"
SPARK = "tests/pipelines/test_guides.py runs it, with Spark"
EVER = "it runs for ever"
BUT: dict[str, dict[str, str]] = {
    "README": {
        "": "the first program is run by itself",
        "Two commands": "`make demo` and `make test` are run by the gate",
    },
    "views": {
        "Map functions": "a node has to be started with the module: tests/e2e/test_views.py",
        "A node that only indexes": SEVERAL,
    },
    "documents": {"PouchDB": "a program for a browser: tests/conformance/test_pouchdb.py"},
    "replication": {},
    "cores": {},
    "coordination": {
        "Three nodes": SEVERAL,
        "When a node is lost": SEVERAL,
        "Who may connect": "it needs certificates: tests/e2e/test_coordination_tls.py",
    },
    "operate": {
        "Log-ins by token": "it needs a provider of identities: tests/e2e/test_bearer_tokens.py",
        "Deployment": SEVERAL,
        "Backup and restore": "NODE stands for other nodes; the guide to coordination runs it",
    },
    "three-machines": {
        "Two of three machines are lost": "tests/e2e/test_cluster_recovery.py loses them",
        "On separate machines": SEVERAL,
    },
}
"""Headings below which nothing is pasted, and why."""
NOT_PASTED = {
    "backup": SPARK, "lake": SPARK, "spark": SPARK, "spark-views": SPARK,
    "console": "it has no commands: tests/console",
    "coordination-files": "mounting needs root: tests/conformance/test_9p_tools.py",
    "following": f"{EVER}: tests/e2e/test_following.py",
    "lost-majority": "five nodes, of which some are killed: tests/e2e/test_lost_majority.py",
    "replicas": f"{SEVERAL}: tests/e2e/test_promotion.py",
    "spark-cluster": f"{SEVERAL}: tests/clusters",
}  # fmt: skip


def said(shell: PastedShell, document: str) -> str:
    return "".join(printed for _, printed in shell.paste(document, but=BUT[document]))


def free_base(engines: int = 1) -> int:
    """Return a multiple of 10 from which on the engines of a machine find free ports."""
    while True:
        base = free_port() // 10 * 10
        with ExitStack() as stack, suppress(OSError):
            for first in range(base, base + engines * PORT_STEP, PORT_STEP):
                for port in range(first, first + 6):
                    stack.enter_context(socket()).bind(("127.0.0.1", port))
            return base


def test_each_guide_is_run_or_says_why_not() -> None:
    guides = {path.stem for path in path_of("views").parent.glob("*.md")}
    assert guides == (BUT.keys() | NOT_PASTED.keys()) - {"README"}
    for document, headings in BUT.items():
        assert headings.keys() <= {block.heading for block in blocks_of(document)}, document


def test_what_stands_in_a_block() -> None:
    text = """redis-cli -p 1
> SET a 1
OK
cat > f <<'END'
echo 1
END
curl x \\
  y
millstream put b k '{"a":
1}'
{"n": 12}
curl z   # {"ok":true,...}
"""
    assert steps_of(text) == [
        ("redis-cli -p 1 <<'END'\nSET a 1\nEND", "OK\n"), ("cat > f <<'END'\necho 1\nEND", ""),
        ("curl x \\\n  y", ""), ("millstream put b k '{\"a\":\n1}'", '{"n": 12}\n'),
        ("curl z", '{"ok":true,...}\n'),
    ]  # fmt: skip
    assert is_as_said('{"ok":true,"rev":"1-a"}\n', '{"ok":true,...}')
    assert is_as_said("(integer) 24", "(integer) 7\n")
    assert not is_as_said("no", "OK")


def test_a_guide_is_skipped_where_a_program_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bash").symlink_to("/bin/bash")
    with PastedShell(tmp_path) as shell:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(pytest.skip.Exception, match="curl is not installed"):
            said(shell, "documents")


def test_the_readme(tmp_path: Path) -> None:
    with PastedShell(tmp_path) as shell:
        blocks = [block for block in blocks_of("README") if block.heading == ""]
        program = tmp_path / "first.py"
        program.write_text(blocks[0].text)
        printed = shell.run(f"python -W error {program}")
        assert "Changes(" in printed
        assert "order::1" in printed
        printed = said(shell, "README")
    assert '{"total": 12, "city": "Wien"}' in printed
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith('{"partition"')]
    assert {row["key"] for row in rows} == {"order::1", "order::3", "order::4"}
    assert "Graz" in printed
    assert '"ok":true,"id":"order::2"' in printed
    assert (tmp_path / "here.json").exists()


@pytest.mark.slow
def test_the_guide_to_views(tmp_path: Path) -> None:
    with PastedShell(tmp_path) as shell:
        printed = said(shell, "views")
    assert '"key":[7,5],"value":"SFO"' in printed


def test_the_guide_to_documents(tmp_path: Path) -> None:
    with PastedShell(tmp_path) as shell:
        assert '"id":"org.couchdb.user:bob"' in said(shell, "documents")


@pytest.mark.slow
def test_the_guide_to_three_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pasted, "COMMAND_S_MAX", 240)  # partitions are moved
    bases = set[int]()
    while len(bases) < 5:
        bases.add(free_base())
    ports = {f"2{n}00": str(base // 10) for n, base in enumerate(sorted(bases), 1)}
    with PastedShell(tmp_path, ports) as shell:
        shell.run("unset ${!MILLSTREAM_SERVE_@} MILLSTREAM_CONNECT")
        printed = said(shell, "three-machines")
    assert '{"city":"Wien"}' in printed


@pytest.mark.slow
def test_the_guide_to_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pasted, "COMMAND_S_MAX", 240)  # partitions are moved
    base, other = free_base(engines=3), free_base(engines=2)
    while abs(base - other) < 3 * PORT_STEP:
        other = free_base(engines=2)
    ports = {"2600": str(base // 10), "2610": str(base // 10 + 10), "2700": str(other // 10)}
    with PastedShell(tmp_path, ports) as shell:
        shell.run("unset ${!MILLSTREAM_SERVE_@} MILLSTREAM_CONNECT")
        printed = said(shell, "cores")
    assert '{"city":"Wien"}' in printed
    assert " n5 " in printed


@pytest.mark.slow
def test_the_guide_to_replication(tmp_path: Path) -> None:
    with NodeProcess(tmp_path / "other") as other:
        http = "{}:{}".format(*other.address("http"))
        with PastedShell(tmp_path, {"other.example:5984": http}) as shell:
            shell.run("millstream serve --data ./data --bucket shop:4 --background")
            printed = said(shell, "replication")
    assert '"ok":true' in printed


@pytest.mark.slow
def test_the_guides_to_coordination(tmp_path: Path) -> None:
    with PastedShell(tmp_path) as shell:
        printed = said(shell, "coordination")
        assert re.search(r"\(b'hello', Version\(epoch=0,.*\nnobody led before\n", printed)
        assert printed.rstrip().endswith("orders\nport")
        said(shell, "operate")
