// @ts-check
/** Sites: replications as a graph of databases and as a table; start, stop and change their jobs. */
import { useResource } from "../lib/api.js";
import { counted, short, UNKNOWN, whole } from "../lib/format.js";
import { html, useRef, useState } from "../lib/html.js";
import { linkTo } from "../lib/routes.js";
import { Badge, Empty, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Graph } from "./sites/graph.js";
import { Job, JobDialog } from "./sites/job.js";
import { KINDS, lagOf, readJobs } from "./sites/jobs.js";

/** `#/sites?job=ID`. @param {import("../app.js").PageProps} props */
export default function Sites({ route }) {
  const before = useRef(/** @type {Map<string, any>} */ (new Map()));
  const jobs = useResource("replications", { every: 2_000, read: async (signal) => {
    const found = await readJobs(signal, before.current);
    before.current = new Map(found.map((one) => [one.id, one]));
    return found;
  } });
  const [isStarting, setStarting] = useState(false);
  const linkOf = (/** @type {string} */ job) => linkTo(["sites"], { job });
  return html`<div class="title"><h1>Sites</h1><button type="button" class="primary" onClick=${() => setStarting(true)}>Start a replication</button></div>
    <${Shown} of=${jobs} what="the replications" rows=${6}>${(/** @type {import("./sites/jobs.js").Job[]} */ rows) => {
      if (!rows.length) {
        return html`<div class="panel"><${Empty} title="No replications on this node"><p>A replication copies a database to another one: of this node, of another site, or of a CouchDB. It goes on from where it was after every pause.</p></${Empty}></div>`;
      }
      const chosen = rows.find((one) => one.id === route.query.job);
      return html`<section class="panel" aria-label="Graph of databases"><${Graph} jobs=${rows} chosen=${route.query.job} linkOf=${linkOf} /></section>
        <${Table} label="Replications" columns=${COLUMNS} rows=${rows} keyOf=${(/** @type {any} */ one) => one.id} linkOf=${(/** @type {any} */ one) => linkOf(one.id)} isChosen=${(/** @type {any} */ one) => one === chosen} />
        ${chosen ? html`<${Job} key=${chosen.id} job=${chosen} onChanged=${jobs.refresh} />` : route.query.job && html`<p class="muted">The chosen job is not on this node any more.</p>`}`;
    }}</${Shown}>
    ${isStarting && html`<${JobDialog} title="Start a replication" stored=${null} onClose=${() => setStarting(false)} onDone=${jobs.refresh} />`}`;
}

const COLUMNS = [
  { name: "Job", sort: (/** @type {any} */ job) => job.doc_id || job.id, show: (/** @type {any} */ job) => html`<bdi class="mono">${job.doc_id || job.id.slice(0, 12)}</bdi>` },
  { name: "From", sort: (/** @type {any} */ job) => job.source, show: (/** @type {any} */ job) => html`<bdi class="mono place">${job.source ?? UNKNOWN}</bdi>` },
  { name: "To", sort: (/** @type {any} */ job) => job.target, show: (/** @type {any} */ job) => html`<bdi class="mono place">${job.target ?? UNKNOWN}</bdi>` },
  { name: "State", sort: (/** @type {any} */ job) => job.state, show: (/** @type {any} */ job) => html`<${Badge} kind=${KINDS[job.state] || "plain"}>${job.state}</${Badge}>` },
  { name: "Lag", isNumber: true, sort: lagOf, show: (/** @type {any} */ job) => (lagOf(job) === null ? whole(null) : counted(/** @type {number} */ (lagOf(job)), "change")) },
  { name: "Rate", isNumber: true, sort: (/** @type {any} */ job) => job.info.docs_written, show: (/** @type {any} */ job) => (job.state === "running" ? `${short(job.rate)}${job.rate === null ? "" : "/s"}` : "–") },
  { name: "Refused", isNumber: true, sort: (/** @type {any} */ job) => job.info.doc_write_failures, show: (/** @type {any} */ job) => whole(job.info.doc_write_failures) },
  { name: "Skipped", isNumber: true, sort: (/** @type {any} */ job) => job.info.skipped, show: (/** @type {any} */ job) => (job.info.docs_read === undefined ? whole(null) : whole(job.info.skipped ?? 0)) },
];
