// @ts-check
/** The groups of this node: members, view, primary, how far behind each is. */
import { useResource } from "../../lib/api.js";
import { counted, duration, whole } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { Badge, Empty, Shown } from "../../parts/states.js";
import { Table } from "../../parts/table.js";

/** @param {{say: import("./asking.js").Say}} props */
export function Groups({ say }) {
  const status = useResource("groups", { every: 2_000, read: async () => ({ status: await say("ADMIN", "STATUS"), nodes: await say("ADMIN", "NODES") }) });
  return html`<${Shown} of=${status} what="the groups">${(/** @type {any} */ { status: one, nodes }) => {
    const groups = Object.values(one.groups);
    const named = Object.fromEntries(nodes.map((/** @type {any} */ node) => [node.node, node]));
    return html`<p>This node is <code>${one.node}</code>, in a pool of ${counted(one.nodes, "node")}.${one.refused && html` <${Badge} kind="bad">refused: ${one.refused}</${Badge}>`}</p>
      ${groups.length ? groups.map((/** @type {any} */ group) => html`<${Group} key=${group.group} group=${group} named=${named} />`)
        : html`<${Empty} title="This node is a member of no group" />`}`;
  }}</${Shown}>`;
}

/** @param {{group: any, named: Record<string, any>}} props */
function Group({ group, named }) {
  const members = group.nodes.map((/** @type {string} */ node, /** @type {number} */ number) => ({ node, address: group.members[number], lag: group.lags?.[node] ?? group.lags?.[number], known: named[node] }));
  const isGood = group.is_quorum_ok && !group.trouble && !group.is_diverged;
  return html`<section class="panel">
    <header><h2>Group ${group.group}</h2>
      <${Badge} kind=${isGood ? "good" : "bad"}>${isGood ? "works" : group.trouble || (group.is_diverged ? "diverged" : "no quorum")}</${Badge}>
      <${Badge} kind=${group.fault_tolerance ? "good" : "warn"}>${counted(group.fault_tolerance, "more member")} may fail</${Badge}></header>
    <dl class="facts">
      <dt>Primary</dt><dd>${group.primary || "none"}</dd>
      <dt>View, epoch</dt><dd>${whole(group.view)}, ${whole(group.epoch)}; the view changed ${duration(group.view_changed_ms / 1000)} ago: ${group.view_reason}</dd>
      <dt>Entries</dt><dd>committed up to ${whole(group.commit_lsn)}, applied here up to ${whole(group.applied_lsn)}; this member is ${group.role}, ${group.status}</dd>
      <dt>Sessions</dt><dd>${whole(group.sessions)}</dd>
    </dl>
    <${Table} label=${`Members of group ${group.group}`} rows=${members} keyOf=${(/** @type {any} */ row) => row.node} columns=${[
      { name: "Member", show: (/** @type {any} */ row) => html`<code>${row.node.slice(0, 12)}</code>` },
      { name: "Address", show: (/** @type {any} */ row) => row.address },
      { name: "Role", show: (/** @type {any} */ row) => (row.address === group.primary ? html`<${Badge} kind="good">primary</${Badge}>` : "backup") },
      { name: "Heard", isNumber: true, show: (/** @type {any} */ row) => (row.known ? (row.known.is_here ? "this node" : `${duration(row.known.heard_ms / 1000)} ago`) : "unknown") },
      { name: "Lag", isNumber: true, show: (/** @type {any} */ row) => (row.lag == null ? (row.known?.is_here ? counted(0, "entry", "entries") : "unknown") : counted(Number(row.lag), "entry", "entries")) },
    ]} />
  </section>`;
}
