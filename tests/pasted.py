"""A shell into which the blocks of the README and the guides are pasted, in order.

A block is what stands between fences: `json` goes into the file that the sentence before it names,
`python` is run as a program, `sh` and blocks without a mark go into one bash. Lines there that
begin no command are what the command before prints: that is compared, with all numbers taken for
equal and `...` for anything. So are a comment that begins with `{`, and a block `text`, which is
what the block before it prints. Lines with a prompt (`> `,
`v2r2> `) go to the client that was started before.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Self

from support.node.node_process import free_port
from support.node.outside_program import outside_program
from support.node.waiting import until

__all__ = [
    "SPARK", "Block", "PastedShell", "Step", "blocks_of", "is_as_said", "path_of",
    "skip_without_programs", "steps_of",
]  # fmt: skip

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^##+ (.*)$", re.MULTILINE)
FILE = re.compile(r"`([\w-]+\.json)`[^`]*$")
COMMAND = re.compile(
    r"(millstream|curl|redis-cli|cat|export|until|kill|python3?|diod\w+|echo|[A-Z]+=)"
    r"(?=[ \"'$]|\S*$)"
)
OUTSIDE = re.compile(r"\b(curl|redis-cli|diod\w+)\b")
PROMPT = re.compile(r"(?:> |v2r2> )(.*)")
HEREDOC = re.compile(r"<<'?(\w+)'?")
COMMENT = re.compile(r"\s+# (\{.*)$")
REFUSAL = re.compile(r'\(error\)|^\{"error":', re.MULTILINE)
NUMBER = re.compile(r"\b[0-9a-f]{32}\b|\b\d+\b")
COMMAND_S_MAX = 60
SPARK = "from millstream.pipelines import"
"""In a program that needs Spark: these are run in `tests/pipelines/test_guides.py`."""


class Block(NamedTuple):
    """What stands between two fences."""

    kind: str
    text: str
    line: int
    heading: str
    file: str
    """Named by the sentence before it."""


class Step(NamedTuple):
    """A command, and what it is said to print; empty: nothing is said."""

    command: str
    printed: str


def path_of(document: str) -> Path:
    """Return the README, or a guide by its name."""
    return ROOT / "README.md" if document == "README" else ROOT / f"docs/guides/{document}.md"


def blocks_of(document: str) -> list[Block]:
    """Return the blocks of a document in their order;"""
    text = path_of(document).read_text()
    found, heading, end = [], "", 0
    for match in FENCE.finditer(text):
        before = text[end : match.start()]
        heading = (HEADING.findall(before) or [heading])[-1]
        named = FILE.search(before.rstrip().rpartition("\n\n")[2])
        line = text.count("\n", 0, match.start()) + 2
        found.append(Block(match[1], match[2], line, heading, named[1] if named else ""))
        end = match.end()
    return found


def skip_without_programs(blocks: Iterable[Block]) -> None:
    """Skip the test that asks where blocks need an outside program that is not installed."""
    for block in blocks:
        if block.kind in ("", "sh"):
            for name in OUTSIDE.findall(block.text):
                outside_program(name)


def steps_of(text: str) -> list[Step]:
    """Return the commands of a block, and what stands behind each."""
    found: list[list[str]] = []
    is_talking = False
    for line in text.splitlines():
        prompted = PROMPT.match(line)
        if found and not prompted and not is_talking and _is_open(found[-1][0]):
            found[-1][0] += "\n" + line
        elif prompted:
            found[-1][0] += ("\n" if is_talking else " <<'END'\n") + prompted[1]
            is_talking = True
        elif COMMAND.match(line):
            if is_talking:
                found[-1][0] += "\nEND"
            is_talking = False
            said = COMMENT.search(line)
            found.append([line[: said.start()], said[1] + "\n"] if said else [line, ""])
        elif found and line.strip():
            found[-1][1] += line + "\n"
    if is_talking:
        found[-1][0] += "\nEND"
    return [Step(*each) for each in found]


def _is_open(command: str) -> bool:
    """Whether a command goes on in the next line."""
    if named := HEREDOC.search(command):
        return named[1] not in command.splitlines()[1:]
    if command.endswith("\\"):
        return True
    checked = subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False)
    return b"unexpected" in checked.stderr


def is_as_said(printed: str, said: str) -> bool:
    """Whether a command printed what a document says, but for numbers and `...`."""
    parts = map(re.escape, _plain(said).split("..."))
    return re.fullmatch(".*?".join(parts), _plain(printed), re.DOTALL) is not None


def _plain(text: str) -> str:
    return "\n".join(NUMBER.sub("N", line.rstrip()) for line in text.splitlines() if line.strip())


class PastedShell:
    """One shell in a directory; addresses are those of a node of its own.

    Args:
        directory: where it stands.
        replaced: further texts of the document that are other ones here.
    """

    def __init__(self, directory: Path, replaced: Mapping[str, str] | None = None) -> None:
        self.kv, self.http, self.coord = (f"127.0.0.1:{free_port()}" for _ in range(3))
        host, port = self.coord.split(":")
        self.directory = directory
        self.replaced = {
            "127.0.0.1:5984": self.http, "localhost:5984": self.http,
            "127.0.0.1:11210": self.kv, "127.0.0.1:7379": self.coord,
            "redis-cli -p 7379": f"redis-cli --no-raw -h {host} -p {port}",
            "millstream shell\n": f"millstream shell --coord {self.coord}\n",
            "/backups/": f"{directory}/backups-", "make setup && . .venv/bin/activate": "true",
            **(replaced or {}),
        }  # fmt: skip
        environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "MILLSTREAM_CONNECT": self.kv,
            "MILLSTREAM_SERVE_KV": self.kv,
            "MILLSTREAM_SERVE_HTTP": self.http,
            "MILLSTREAM_SERVE_COORD": self.coord,
            **{f"MILLSTREAM_SERVE_NO_{name}": "true" for name in ("MEMCACHED", "NINEP", "PEER")},
        }
        self._errors = (directory / "errors").open("w+")
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=self._errors, text=True, cwd=directory, env=environment, start_new_session=True,
        )  # fmt: skip
        self._number = 0
        self._nodes: list[int] = []
        """Pids of those that began in the background."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self._nodes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            until(lambda pid=pid: not Path(f"/proc/{pid}").exists())
        os.killpg(self._bash.pid, signal.SIGTERM)
        self._bash.communicate(timeout=COMMAND_S_MAX)
        self._errors.close()

    def paste(self, document: str, *, but: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Paste a document; yield each command with what it printed.

        A test is skipped before the first command where an outside program is missing.

        Args:
            document: README, or a guide.
            but: headings below which nothing is pasted, with the reason.
        """
        printed = ""
        blocks = [block for block in blocks_of(document) if block.heading not in but]
        skip_without_programs(blocks)
        for block in blocks:
            try:
                if block.kind == "text":
                    assert is_as_said(printed, block.text), (printed, block.text)
                    continue
                done = list(self._pasted(block))
                printed = "".join(each for _, each in done)
                yield from done
            except BaseException as error:
                error.add_note(f"{document}, line {block.line}\n{self._said_besides()}")
                raise

    def _pasted(self, block: Block) -> Iterator[tuple[str, str]]:
        text = self._replace(block.text)
        if block.kind == "json":
            if block.file:
                (self.directory / block.file).write_text(text)
        elif block.kind == "python" and SPARK not in text:
            program = self.directory / f"block-{block.line}.py"
            program.write_text(text)
            yield text, self.run(f"python -W error {program}")
        elif block.kind in ("", "sh"):
            for command, said in steps_of(text):
                is_piped = "|" in command  # only to a terminal redis-cli prints types
                printed = self.run(command.replace("--no-raw ", "") if is_piped else command)
                assert not said or is_as_said(printed, said), (command, printed, said)
                assert not REFUSAL.search(printed), (command, printed)
                yield command, printed

    def _replace(self, text: str) -> str:
        names = "|".join(map(re.escape, sorted(self.replaced, key=len, reverse=True)))
        return re.sub(names, lambda found: self.replaced[found[0]], text)

    def run(self, command: str) -> str:
        """Return what a command prints; it must succeed in `COMMAND_S_MAX`."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        self._number += 1
        mark = f"--- {self._number} "
        watch = threading.Timer(COMMAND_S_MAX, os.killpg, (self._bash.pid, signal.SIGTERM))
        watch.start()
        self._bash.stdin.write(f"{{ {command}\n}} < /dev/null\n")
        self._bash.stdin.write(f"ended=$?; echo; echo '{mark}' $ended\n")
        self._bash.stdin.flush()
        try:
            return self._printed(command, mark)
        finally:
            watch.cancel()

    def _printed(self, command: str, mark: str) -> str:
        assert self._bash.stdout is not None
        lines = []
        for line in self._bash.stdout:
            if line.startswith(mark):
                break
            if line.startswith('{"event":"ready"'):
                self._nodes.append(json.loads(line)["pid"])
            else:
                lines.append(line)
        else:
            raise AssertionError(f"{command!r} did not end: {''.join(lines)}")
        assert line.split() == [*mark.split(), "0"], (command, "".join(lines))
        return "".join(lines)

    def _said_besides(self) -> str:
        self._errors.flush()
        return (self.directory / "errors").read_text()[-2000:]
