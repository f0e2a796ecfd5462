// @ts-check
/** Support: an archive for those who help, and what it holds. */
import { useResource } from "../lib/api.js";
import { html } from "../lib/html.js";
import { Shown } from "../parts/states.js";

/** File of the archive -> what it has. @type {Record<string, string>} */
const CONTENTS = {
  "versions.json": "versions of Millstream, Python, packages and the system",
  "settings.json": "settings of this node, without users, secrets and the names of key files",
  "node.json": "identity, addresses and buckets",
  "health.json": "why the node is not healthy",
  "statistics.txt": "all statistics of the node and of its buckets",
  "partitions.json": "state, seqnos and failover log of each copy of a partition",
  "cluster.json": "status of the cluster",
  "samples.json": "figures of the last day",
  "logs.txt": "the last lines of each process",
};

/** @param {import("../app.js").PageProps} _props */
export default function Support(_props) {
  const node = useResource("/_millstream/node");
  return html`<h1>Support</h1>
    <section class="panel"><header><h2>Archive</h2></header>
      <p>One zip file with what those need who help. It holds no documents, ids, passwords, secrets or keys. Lines of logs name buckets, nodes and addresses.</p>
      <p><a class="button primary" href="/_millstream/support" download>Download the archive</a></p>
      <p class="muted">The command <code>millstream support</code> writes the same.</p>
      <dl class="facts">${Object.entries(CONTENTS).map(([name, what]) => html`<dt><code>${name}</code></dt><dd>${what}</dd>`)}</dl>
    </section>
    <section class="panel"><header><h2>This node</h2></header>
      <${Shown} of=${node} what="the node">${(/** @type {any} */ one) => html`<dl class="facts">
        <dt>Version</dt><dd>${one.version}</dd><dt>Identity</dt><dd><code>${one.uuid}</code></dd>
        ${Object.entries(one.listeners).map(([name, address]) => html`<dt>${name}</dt><dd>${address || "closed"}</dd>`)}
      </dl>`}</${Shown}>
    </section>`;
}
