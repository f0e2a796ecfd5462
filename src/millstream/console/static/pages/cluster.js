// @ts-check
/** Cluster: its nodes, what is moved, where partitions are, its settings; how to make or join one. */
import { useResource } from "../lib/api.js";
import { counted, duration, Time, whole } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { Badge, ErrorBox, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { ask, Confirmed, FailOver, Rebalance } from "./cluster/actions.js";
import { Making } from "./cluster/making.js";
import { PartitionMap } from "./cluster/map.js";
import { Settings } from "./cluster/settings.js";

const EVERY_MS = 2_000;

/** @param {import("../app.js").PageProps} props */
export default function Cluster({ route }) {
  const cluster = useResource("/_millstream/cluster", { every: EVERY_MS });
  if (cluster.error?.code === "not_managed") return html`<h1>Cluster</h1><${Making} onDone=${cluster.refresh} />`;
  return html`<${Shown} of=${cluster} what="the cluster" rows=${8}>${(/** @type {any} */ data) => html`
    <${Head} data=${data} onChanged=${cluster.refresh} />
    ${data.notes.map((/** @type {string} */ note) => html`<p class="stale" role="status">${note}</p>`)}
    ${data.plan && html`<${Plan} plan=${data.plan} />`}
    <${Nodes} data=${data} onChanged=${cluster.refresh} />
    <${PartitionMap} data=${data} query=${route.query} />
    <div class="halves"><${FailOvers} data=${data} onChanged=${cluster.refresh} /><${Settings} settings=${data.settings} onChanged=${cluster.refresh} /></div>`}</${Shown}>`;
}

/** @param {{data: any, onChanged: () => void}} props */
function Head({ data, onChanged }) {
  const [isOpen, setOpen] = useState(false);
  const { cluster, orchestrator, coordination, plan } = data;
  const unserved = data.buckets.flatMap((/** @type {any} */ one) => one.unserved).length;
  const unknown = data.buckets.flatMap((/** @type {any} */ one) => one.unknown).length;
  return html`<div class="title"><h1>Cluster <bdi class="name">${cluster.name}</bdi></h1>
      <div class="row last"><button type="button" class="primary" onClick=${() => setOpen(true)}>Rebalance</button></div></div>
    <section class="panel"><dl class="facts last">
      <dt>Data</dt><dd>${unserved ? html`<${Badge} kind="bad">${counted(unserved, "partition")} not served</${Badge}>` : unknown ? html`<${Badge} kind="warn">${counted(unknown, "partition")} not known</${Badge}>` : html`<${Badge} kind="good">all partitions are served</${Badge}>`}
        ${data.buckets.map((/** @type {any} */ one) => ` ${one.name}: ${whole(one.whole)} of ${counted(one.partitions, "partition")} with all copies`).join(",")}</dd>
      <dt>Orchestrator</dt><dd>${orchestrator ? orchestrator.name : html`<${Badge} kind="bad">none now: nothing is failed over or moved</${Badge}>`}</dd>
      <dt>State is kept by</dt><dd>${coordination ? html`${[...coordination.members].sort().join(", ")}; ${coordination.may_fail} of them may fail` : "unknown"}</dd>
      <dt>Add a node</dt><dd>Open the console of the new node, choose Cluster, and join <span class="mono">${location.host}</span>. Then rebalance.</dd>
    </dl></section>
    ${isOpen && html`<${Rebalance} data=${data} isRunning=${Boolean(plan)} onClose=${() => setOpen(false)} onDone=${onChanged} />`}`;
}

/** @param {{plan: any}} props */
function Plan({ plan }) {
  const [isCancelling, setCancelling] = useState(false);
  const all = plan.partitions + plan.index_parts;
  const stalled = [
    { name: "Bucket", show: (/** @type {any} */ row) => row.bucket },
    { name: "Partition", isNumber: true, show: (/** @type {any} */ row) => row.partition },
    { name: "Why it waits", show: (/** @type {any} */ row) => row.why },
  ];
  return html`<section class="panel" aria-label="Rebalance under way">
    <header><h2>${plan.kind === "rebalance" ? "Rebalance" : plan.kind} ${plan.id}</h2>
      <span class="muted">since <${Time} ms=${plan.started_ms} clock /></span><span class="grow"></span>
      ${plan.is_cancelled ? html`<${Badge} kind="warn">being cancelled</${Badge}>` : html`<button type="button" class="danger" onClick=${() => setCancelling(true)}>Cancel</button>`}</header>
    <progress max=${Math.max(1, all)} value=${plan.done + plan.index_done} aria-label="Progress of the rebalance"></progress>
    <p>${whole(plan.done)} of ${counted(plan.partitions, "partition")} are in place, ${whole(plan.index_done)} of ${counted(plan.index_parts, "index part")}.
      ${plan.total > 0 && ` ${whole(plan.copied)} of ${whole(plan.total)} changes are copied.`}
      ${plan.left_s == null ? " How long it takes is not known yet." : ` About ${duration(plan.left_s)} left.`}</p>
    ${plan.stalled?.length > 0 && html`<${Table} label="What waits" columns=${stalled} rows=${plan.stalled} keyOf=${(/** @type {any} */ row) => `${row.bucket}/${row.partition}`} />`}
    ${isCancelling && html`<${Confirmed} title="Cancel the rebalance?" name=${String(plan.id)} action="Cancel it" op="cancel" args=${{}} onClose=${() => setCancelling(false)} onDone=${() => {}}>
      <p>What has moved stays. What was begun is finished or given up. Nodes that were leaving stay.</p></${Confirmed}>`}
  </section>`;
}

/** State -> colour. @type {Record<string, string>} */
const KINDS = { in: "good", joining: "plain", leaving: "warn", failed: "bad", out: "plain" };

/** Whether the node may serve, in a word. @param {any} node  @returns {[string, string]} */
function lease(node) {
  if (!node.answers) return ["bad", "does not answer"];
  if (!node.has_session) return ["bad", "no session"];
  return node.is_admitted ? ["good", "alive"] : ["warn", "waits to be admitted"];
}

/** @param {{data: any, onChanged: () => void}} props */
function Nodes({ data, onChanged }) {
  const [chosen, setChosen] = useState(/** @type {{node: any, what: string} | null} */ (null));
  const act = (/** @type {any} */ node, /** @type {string} */ what) => () => setChosen({ node, what });
  const columns = [
    { name: "Node", sort: (/** @type {any} */ row) => row.name, show: (/** @type {any} */ row) => html`<strong>${row.name}</strong> <span class="mono muted nowrap">${row.host}:${row.ports.http}</span>` },
    { name: "Zone", sort: (/** @type {any} */ row) => row.zone, show: (/** @type {any} */ row) => html`<span class=${row.zone ? "nowrap" : "muted"}>${row.zone || "none"}</span>` },
    { name: "Roles", show: (/** @type {any} */ row) => html`<span class="nowrap">${row.roles.join(", ")}</span>` },
    { name: "State", show: (/** @type {any} */ row) => html`<${Badge} kind=${KINDS[row.state] || "plain"}>${row.state}</${Badge}>` },
    { name: "Heard", show: (/** @type {any} */ row) => { const [kind, text] = lease(row); return html`<${Badge} kind=${kind}>${text}</${Badge}>`; } },
    { name: "Active", isNumber: true, show: (/** @type {any} */ row) => whole(row.active) },
    { name: "Replicas", isNumber: true, show: (/** @type {any} */ row) => whole(row.replica) },
    { name: "Index parts", isNumber: true, show: (/** @type {any} */ row) => whole(row.index) },
    ...(data.nodes.some(noteOf) ? [{ name: "Note", show: noteOf }] : []),
    { name: "Change", show: (/** @type {any} */ row) => html`<span class="nowrap"><button type="button" onClick=${act(row, "failover")}>Fail over</button> <button type="button" onClick=${act(row, "remove")}>Remove</button></span>` },
  ];
  return html`<section class="panel"><header><h2>Nodes</h2></header>
    <${Table} label="Nodes" columns=${columns} rows=${data.nodes} keyOf=${(/** @type {any} */ row) => row.id} />
    ${chosen?.what === "failover" && html`<${FailOver} node=${chosen.node} onClose=${() => setChosen(null)} onDone=${onChanged} />`}
    ${chosen?.what === "remove" && html`<${Confirmed} title=${`Remove ${chosen.node.name}?`} name=${chosen.node.name} action="Remove node" op="remove" args=${{ nodes: [chosen.node.id] }} hasTrial onClose=${() => setChosen(null)} onDone=${onChanged}>
      <p>Everything is moved away from it. Once its state is <em>out</em>, it may be stopped.</p></${Confirmed}>`}
  </section>`;
}

/** @param {{data: any, onChanged: () => void}} props */
function FailOvers({ data, onChanged }) {
  const { count, max, last } = data.failovers;
  const [error, setError] = useState(/** @type {any} */ (null));
  const names = new Map(data.nodes.map((/** @type {any} */ one) => [one.id, one.name]));
  const reset = () => ask("reset", {}).then(() => (setError(null), onChanged()), setError);
  const columns = [
    { name: "When", show: (/** @type {any} */ row) => html`<${Time} ms=${row.at_ms} />` },
    { name: "Node", show: (/** @type {any} */ row) => names.get(row.node) || row.node },
    { name: "Why", show: (/** @type {any} */ row) => row.why },
    { name: "Partitions", isNumber: true, show: (/** @type {any} */ row) => whole(row.partitions) },
    { name: "At risk", show: (/** @type {any} */ row) => (row.at_risk?.length ? html`<${Badge} kind="warn">${row.at_risk.join(", ")}</${Badge}>` : "nothing") },
  ];
  return html`<section class="panel"><header><h2>Fail-overs</h2><span class="muted">by itself ${count} of at most ${max}</span><span class="grow"></span>
      <button type="button" disabled=${!count} onClick=${reset}>Reset the count</button></header>
    ${error && html`<${ErrorBox} error=${error} />`}
    ${count >= max && html`<p class="stale">No node is failed over by itself any more, until the count is reset or a rebalance has ended.</p>`}
    ${last.length ? html`<${Table} label="Last fail-overs" columns=${columns} rows=${[...last].reverse()} keyOf=${(/** @type {any} */ row) => `${row.node}/${row.at_ms}`} />` : html`<p class="muted">No node was failed over.</p>`}
  </section>`;
}

/** Return what is to be said of a node; mostly nothing. @param {any} row */
function noteOf(row) {
  return [row.note, row.by && `by ${row.by}`, row.has_space === false && "the disk is nearly full"].filter(Boolean).join(", ");
}
