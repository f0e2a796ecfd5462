// @ts-check
/** One replication: its figures, why it crashed, what was refused or skipped; pause, stop, run it again, change it. */
import { del, documentPath, get, pathOf, post, put } from "../../lib/api.js";
import { counted, duration, Time, UNKNOWN, whole } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { pretty } from "../../lib/json.js";
import { Confirm, FormDialog } from "../../parts/dialog.js";
import { Check, Field, toast } from "../../parts/form.js";
import { Badge } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { forget, HIDDEN, JOBS, KINDS, lagOf, pause, resume, shownEnd } from "./jobs.js";

/** A database may be made first. */
const WAIT = { timeoutMs: 40_000 };

/** @param {{job: import("./jobs.js").Job, onChanged: () => void}} props */
export function Job({ job, onChanged }) {
  const [open, setOpen] = useState(/** @type {any} */ (null));
  const told = (/** @type {any} */ error) => toast(error.message, "bad");
  const path = documentPath(JOBS, job.doc_id || "");
  const name = job.doc_id || job.id.slice(0, 12);
  const isPaused = job.state === "paused";
  const stop = async () => {
    if (isPaused) await forget(name);
    else if (job.doc_id) await del(`${path}?rev=${(await get(path))._rev}`);
    else await post("/_replicate", { cancel: true, id: job.id });
    toast(`Stopped ${name}.`);
    onChanged();
  };
  const again = async () => {
    await put(path, await get(path));
    toast(`${name} begins again from its last checkpoint.`);
    onChanged();
  };
  const pausing = async () => {
    await (isPaused ? resume(name) : pause(name));
    toast(isPaused ? `${name} goes on from its last checkpoint.` : `Paused ${name}.`);
    onChanged();
  };
  return html`<section class="panel" aria-label="Chosen replication">
    <header><h2><bdi>${name}</bdi></h2><${Badge} kind=${KINDS[job.state] || "plain"}>${job.state}</${Badge}><span class="grow"></span>
      ${job.doc_id && html`<button type="button" onClick=${() => pausing().catch(told)}>${isPaused ? "Go on" : "Pause"}</button>`}
      ${job.doc_id && !isPaused && html`<button type="button" onClick=${() => again().catch(told)}>${job.state === "crashing" ? "Try now" : "Run again"}</button>
        <button type="button" onClick=${() => get(path).then((stored) => setOpen({ stored })).catch(told)}>Change</button>`}
      <button type="button" class="danger" onClick=${() => setOpen({ stop: true })}>${isPaused ? "Remove" : job.doc_id ? "Stop and remove" : "Stop"}</button></header>
    ${isPaused && html`<p>Paused since <${Time} ms=${job.paused_ms} />. Nothing is copied. It goes on from its last checkpoint.</p>`}
    ${job.info.error && html`<div class="error-box" role="alert"><p><strong>${job.state === "failed" ? "It failed." : `It crashed ${counted(job.crashes, "time")} in a row.`}</strong> <bdi>${job.info.error}</bdi></p>
      ${job.state === "crashing" && html`<p>The node tries again: after 30 s, then after twice as long each time, up to 8 h.</p>`}</div>`}
    ${job.info.source_error && html`<p class="stale">Reading the source failed and is repeated: <bdi>${job.info.source_error}</bdi></p>`}
    <${Figures} job=${job} />
    ${job.info.refused && html`<h3>Refused documents</h3><p class="muted">Each later run tries them again. These are the last ones.</p>
      <${Table} label="Refused documents" rows=${job.info.refused} keyOf=${(/** @type {any} */ one) => one.id} columns=${REFUSED} />`}
    ${job.history.length > 0 && html`<h3>What happened</h3><${Table} label="History of the job" rows=${job.history} keyOf=${(/** @type {any} */ _, /** @type {number} */ at) => at} columns=${HISTORY} />`}
    ${open?.stop && html`<${Confirm} title="Stop this replication?" name=${name} action="Stop" onSend=${stop} onClose=${() => setOpen(null)}>
      <p>${job.doc_id ? "Its document is removed." : "It is in no document: it has to be started anew."} Databases and their documents stay. A replication of the same two databases goes on from the last checkpoint.</p></${Confirm}>`}
    ${open?.stored && html`<${JobDialog} title="Change the replication" stored=${open.stored} onClose=${() => setOpen(null)} onDone=${onChanged} />`}
  </section>`;
}

/** @param {{job: import("./jobs.js").Job}} props */
function Figures({ job }) {
  const { info } = job;
  const isKnown = info.docs_read !== undefined;
  return html`<dl class="facts">
    <dt>From</dt><dd class="mono"><bdi>${job.source ?? UNKNOWN}</bdi></dd>
    <dt>To</dt><dd class="mono"><bdi>${job.target ?? UNKNOWN}</bdi></dd>
    ${job.start_time && html`<dt>Since</dt><dd><${Time} ms=${Date.parse(job.start_time)} />, ${duration(Math.max(0, (job.read_ms - Date.parse(job.start_time)) / 1000))} ago</dd>`}
    ${isKnown && html`
      <dt>Lag</dt><dd>${lagOf(job) === null ? "unknown: the source does not tell" : counted(/** @type {number} */ (lagOf(job)), "change")}</dd>
      <dt>In this run</dt><dd>${whole(info.revisions_checked)} revisions compared, ${whole(info.docs_read)} documents read, ${whole(info.docs_written)} written, ${whole(info.doc_write_failures)} refused</dd>
      <dt>Skipped</dt><dd>${info.skipped ? html`${counted(info.skipped, "change")} that came through <bdi class="mono">${info.covered_through.join(", ")}</bdi>` : "nothing came another way"}</dd>`}
  </dl>`;
}

const REFUSED = [
  { name: "Document", show: (/** @type {any} */ one) => html`<bdi class="mono">${one.id}</bdi>` },
  { name: "Reason", show: (/** @type {any} */ one) => html`${one.error}: <bdi>${one.reason}</bdi>` },
];
const HISTORY = [
  { name: "When", show: (/** @type {any} */ one) => html`<${Time} ms=${Date.parse(one.timestamp)} />` },
  { name: "What", show: (/** @type {any} */ one) => html`<${Badge} kind=${one.type === "crashed" ? "bad" : "plain"}>${one.type}</${Badge}>` },
  { name: "Why", show: (/** @type {any} */ one) => html`<bdi>${one.reason ?? ""}</bdi>` },
];

/**
 * Ask for a job and store it in a document.
 * @param {{title: string, stored: any, onClose: () => void, onDone: () => void}} props  stored: its document, null: a new one
 */
export function JobDialog({ title, stored, onClose, onDone }) {
  const [source, setSource] = useState(shownEnd(stored?.source));
  const [target, setTarget] = useState(shownEnd(stored?.target));
  const [id, setId] = useState("");
  const [isContinuous, setContinuous] = useState(stored ? stored.continuous === true : true);
  const [isCreating, setCreating] = useState(stored?.create_target === true);
  const [isTransitive, setTransitive] = useState(stored?.transitive !== false);
  const [selector, setSelector] = useState(stored?.selector ? JSON.stringify(stored.selector) : "");
  const fault = faultOf(selector);
  const send = async () => {
    const body = {
      ...stored, continuous: isContinuous, create_target: isCreating, transitive: isTransitive ? undefined : false,
      source: stored && source === shownEnd(stored.source) ? stored.source : source,
      target: stored && target === shownEnd(stored.target) ? stored.target : target,
      selector: selector ? JSON.parse(selector) : undefined,
    };
    if (stored) await put(documentPath(JOBS, stored._id), body, WAIT);
    else if (id) await put(pathOf(JOBS, id), body, WAIT);
    else await post(pathOf(JOBS), body, WAIT);
    toast(stored ? "Changed. It begins again from its last checkpoint." : "Started.");
    onDone();
  };
  const hint = `A database of this node, or an address: https://user:password@host/database.${stored ? ` ${HIDDEN} stands for the password that is kept.` : ""}`;
  return html`<${FormDialog} title=${title} action=${stored ? "Change" : "Start"} onSend=${send} onClose=${onClose} canSend=${Boolean(source && target) && !fault}>
    <${Field} label="From" value=${source} onInput=${setSource} hint=${hint} />
    <${Field} label="To" value=${target} onInput=${setTarget} />
    ${!stored && html`<${Field} label="Name" value=${id} onInput=${setId} placeholder="made by the node if it is empty" hint="Id of the document of the job in _replicator." />`}
    <${Check} label="Go on with new changes" isOn=${isContinuous} onChange=${setContinuous} hint="Otherwise it ends once it has copied what is there." />
    <${Check} label="Create the target if it does not exist" isOn=${isCreating} onChange=${setCreating} />
    <${Check} label="Skip what came through a third database" isOn=${isTransitive} onChange=${setTransitive} />
    <${Field} label="Only documents that match" value=${selector} onInput=${setSelector} placeholder=${'{"type": "flight"}'} hint=${fault || "A selector as for Find; empty: all documents."} />
    ${stored && html`<details><summary>Other members of the document</summary><pre tabindex="0">${pretty(othersOf(stored))}</pre></details>`}
  </${FormDialog}>`;
}

/** @param {string} text */
function faultOf(text) {
  if (!text) return "";
  try {
    return JSON.parse(text)?.constructor === Object ? "" : "A selector is a JSON object.";
  } catch {
    return "A selector is a JSON object.";
  }
}

/** Return what the form has no fields for; not what may have passwords. @param {any} stored */
function othersOf(stored) {
  const own = new Set(["_id", "_rev", "source", "target", "continuous", "create_target", "transitive", "selector", "proxy", "source_proxy", "target_proxy"]);
  return Object.fromEntries(Object.entries(stored).filter(([name]) => !own.has(name)));
}
