"""PouchDB at one node: it replicates the bucket live, and tells at the end what it has.

PouchDB is no part of the package. It is taken from `tests/npm` of the repository, where
`make test-tools` installs it. Where it or node is missing the demonstration goes on without.

Invariants:
1. PouchDB is not given `retry: true`. PouchDB 9.0.0 passes rows over with it: if `_changes` fails
   while documents are read, it drops the rows that wait, but still stores those documents, goes on
   behind the rows that it dropped, and notes that as its checkpoint. Here an error cancels the
   replication, so that it notes nothing more, and another one begins at the checkpoint.
2. PouchDB handles nowhere that the question fails by which it shows its progress, and node ends by
   that. Here it is noted only: the replication goes on.

Elsewhere: the play (`cluster`).
"""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from millstream.errors import UnavailableError

__all__ = ["PouchPeer", "find_pouchdb"]

END_S: Final = 120.0
_FOLDER: Final = Path("tests/npm")
_PROGRAM: Final = """
const PouchDB = require('pouchdb-core')
  .plugin(require('pouchdb-adapter-memory'))
  .plugin(require('pouchdb-adapter-http'))
  .plugin(require('pouchdb-replication'));
const url = process.argv[1];
const RETRY_MS = 500;
const db = new PouchDB('demo', { adapter: 'memory' });
const remote = new PouchDB(url, { skip_setup: true });
const isFlight = (row) => !row.id.startsWith('_design/');
let errors = 0;
let isOver = false;
let live = null;
const pause = () => new Promise((resolve) => setTimeout(resolve, RETRY_MS));
function note(error) {
  errors += 1;
  process.stderr.write(`${error.name}: ${error.message}: ${error.reason}\\n`);
}
process.on('unhandledRejection', note);
function pull(options) {
  const one = db.replicate.from(remote, { batch_size: 500, ...options });
  one.on('error', (error) => {
    one.cancel();
    note(error);
  });
  return one;
}
async function follow() {
  while (!isOver) {
    live = pull({ live: true });
    await live.catch(pause);
  }
}
const following = follow();
process.stdin.on('end', async () => {
  isOver = true;
  live.cancel();
  await following;
  while (!await pull({}).catch(pause));
  const all = await db.allDocs({ include_docs: true });
  const documents = {};
  for (const row of all.rows.filter(isFlight)) {
    delete row.doc._id;
    delete row.doc._rev;
    documents[row.id] = row.doc;
  }
  process.stdout.write(JSON.stringify({ documents, errors }), () => process.exit(0));
});
process.stdin.resume();
"""


def find_pouchdb(folder: Path = _FOLDER) -> Path | None:
    """Return the folder that has PouchDB; None where it, or node, is missing."""
    is_there = (folder / "node_modules" / "pouchdb-replication").is_dir()
    return folder.absolute() if is_there and shutil.which("node") else None


class PouchPeer:
    """A PouchDB in memory that follows a database.

    Args:
        folder: that has PouchDB.
        url: of the database.
        log: where its errors go.
    """

    def __init__(self, folder: Path, url: str, log: Path) -> None:
        self._log = log
        self._out = b""
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                ["node", "-e", _PROGRAM, url], cwd=folder,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def documents(self) -> dict[str, Any]:
        """End the replication with what is there now; return id -> document.

        Raises:
            UnavailableError: `child_ended`, `timeout`.
        """
        killer = threading.Timer(END_S, self._process.kill)
        killer.start()
        try:
            out, _ = self._process.communicate()
        finally:
            killer.cancel()
        if self._process.returncode:
            text = f"PouchDB ended with code {self._process.returncode}; see {self._log}"
            raise UnavailableError(text, code="child_ended")
        found: dict[str, Any] = msgspec.json.decode(out)["documents"]
        return found
