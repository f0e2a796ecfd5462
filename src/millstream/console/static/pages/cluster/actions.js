// @ts-check
/** What is asked of a cluster. First it is tried: the dialog shows what would be moved or risked. */
import { post, useResource } from "../../lib/api.js";
import { bytes, counted, whole } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { Confirm } from "../../parts/dialog.js";
import { Check, Field, toast } from "../../parts/form.js";
import { Badge, Shown } from "../../parts/states.js";

const TIMEOUT_S = 30;

/**
 * Ask the orchestrator.
 * @param {string} op  @param {Record<string, any>} args  @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export const ask = (op, args, signal) =>
  post("/_millstream/cluster/requests", { op, args, timeout_s: TIMEOUT_S }, { signal, timeoutMs: (TIMEOUT_S + 5) * 1000 });

/** What would be done, read anew whenever the arguments change. @param {{op: string, args: Record<string, any>}} props */
function Trial({ op, args }) {
  const trial = useResource(`trial ${op} ${JSON.stringify(args)}`, { read: (signal) => ask(op, { ...args, trial: true }, signal) });
  return html`<div class="trial" aria-live="polite"><${Shown} of=${trial} what="the plan" rows=${2}>${(/** @type {any} */ answer) => (answer.moves ? html`<${Moves} moves=${answer.moves} />` : html`<${Risk} answer=${answer} />`)}</${Shown}></div>`;
}

/** @param {{moves: any}} props */
function Moves({ moves }) {
  const isNothing = !moves.copies && !moves.active && !moves.index;
  return html`
    <p>${isNothing ? "Nothing has to move: everything is in its place." : `${counted(moves.copies, "copy", "copies")} to build (${bytes(moves.bytes)}), ${counted(moves.active, "active copy moves", "active copies move")}, ${counted(moves.index, "index part moves", "index parts move")}, of ${counted(moves.partitions, "partition")}.`}</p>
    ${moves.fewer > 0 && html`<p><${Badge} kind="warn">fewer copies</${Badge}> ${counted(moves.fewer, "partition has", "partitions have")} fewer copies afterwards than wanted.</p>`}
    ${moves.one_zone > 0 && html`<p><${Badge} kind="warn">one zone</${Badge}> ${counted(moves.one_zone, "partition has", "partitions have")} all copies in one zone.</p>`}`;
}

/** @param {{answer: any}} props */
function Risk({ answer }) {
  return html`<p>${counted(answer.partitions, "partition is", "partitions are")} served by other nodes afterwards.</p>
    ${answer.at_risk?.length ? html`<p><${Badge} kind="bad">at risk</${Badge}> Writes acknowledged at ${answer.at_risk.join(", ")} may be lost.</p>` : html`<p>No acknowledged write is at risk.</p>`}`;
}

/**
 * Confirm a request by a name; with `hasTrial` it is tried first.
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.name
 * @param {string} props.action
 * @param {string} props.op
 * @param {Record<string, any>} props.args
 * @param {boolean} [props.hasTrial]
 * @param {() => void} props.onClose
 * @param {() => void} props.onDone
 * @param {any} [props.children]
 */
export function Confirmed({ title, name, action, op, args, hasTrial = false, onClose, onDone, children }) {
  const send = async () => {
    const answer = await ask(op, args);
    toast(answer.why || "The cluster has taken the request.");
    onDone();
  };
  return html`<${Confirm} title=${title} name=${name} action=${action} onSend=${send} onClose=${onClose}>${children}${hasTrial && html`<${Trial} op=${op} args=${args} />`}</${Confirm}>`;
}

/** @param {{data: any, isRunning: boolean, onClose: () => void, onDone: () => void}} props */
export function Rebalance({ data, isRunning, onClose, onDone }) {
  const [add, setAdd] = useState(/** @type {string[]} */ ([]));
  const [remove, setRemove] = useState(/** @type {string[]} */ ([]));
  const flipped = (/** @type {string[]} */ ids, /** @type {string} */ id) => (ids.includes(id) ? ids.filter((one) => one !== id) : [...ids, id]);
  const comes = data.nodes.filter((/** @type {any} */ one) => ["failed", "leaving"].includes(one.state));
  const goes = data.nodes.filter((/** @type {any} */ one) => one.state === "in");
  return html`<${Confirmed} title="Rebalance" name=${data.cluster.name} action="Rebalance" op="rebalance" args=${{ add, remove }} hasTrial onClose=${onClose} onDone=${onDone}>
    <p>Every node gets its share of copies and index parts. Clients go on meanwhile.${isRunning && " This changes the plan that is under way."}</p>
    ${comes.length > 0 && html`<fieldset><legend>Nodes that stay or come back</legend>${comes.map((/** @type {any} */ one) => html`<${Check} label=${`${one.name} (${one.state})`} isOn=${add.includes(one.id)} onChange=${() => setAdd(flipped(add, one.id))} />`)}</fieldset>`}
    <fieldset><legend>Nodes that leave</legend>${goes.map((/** @type {any} */ one) => html`<${Check} label=${one.name} isOn=${remove.includes(one.id)} onChange=${() => setRemove(flipped(remove, one.id))} hint=${`${whole(one.active)} active, ${whole(one.replica)} replicas`} />`)}</fieldset>
  </${Confirmed}>`;
}

const MODES = [["graceful", "graceful: the node lives and hands over"], ["hard", "hard: the node is dead"], ["force", "force: the node never comes back"]];

/** @param {{node: any, onClose: () => void, onDone: () => void}} props */
export function FailOver({ node, onClose, onDone }) {
  const [mode, setMode] = useState(node.answers ? "graceful" : "hard");
  return html`<${Confirmed} title=${`Fail over ${node.name}?`} name=${node.name} action="Fail over" op="failover" args=${{ node: node.id, mode }} hasTrial onClose=${onClose} onDone=${onDone}>
    <${Field} label="How" value=${mode} onInput=${setMode} choices=${MODES} />
  </${Confirmed}>`;
}
