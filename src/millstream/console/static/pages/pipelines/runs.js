// @ts-check
/** Runs of `millstream pipeline`: what each left in its bucket, with its lag, batches, and the chain of a backup. */
import { get, pathOf } from "../../lib/api.js";
import { bytes, counted, short, Time, whole } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { linkTo } from "../../lib/routes.js";
import { Badge, Empty } from "../../parts/states.js";
import { Table } from "../../parts/table.js";

/** Ids of the documents that runs leave are between these. */
const [FIRST, END] = ["_local/pipeline:", "_local/pipeline:\uffff"];

/**
 * @typedef {object} Run
 * @property {string} key       bucket, name and machine
 * @property {string} bucket
 * @property {string} name
 * @property {string} kind
 * @property {string} subject   directory that it writes or reads, or the node that it asks
 * @property {string} machine
 * @property {number} started_s
 * @property {number} updated_s
 * @property {boolean} is_over
 * @property {number} batch_count
 * @property {number} row_count
 * @property {number} rows_per_s
 * @property {Record<string, number>} lag  by partition, as of the last batch
 * @property {[number, number, number][]} batches  number, rows, seconds
 * @property {{chain?: {id: number, parent: number | null, created: string, rows: number, bytes: number}[]}} figures
 * @property {string} error
 */

/** @param {string} bucket  @param {AbortSignal} signal  @returns {Promise<Run[]>} */
export async function readRuns(bucket, signal) {
  const range = `start_key=${encodeURIComponent(JSON.stringify(FIRST))}&end_key=${encodeURIComponent(JSON.stringify(END))}`;
  const { rows } = await get(`${pathOf(bucket, "_local_docs")}?include_docs=true&${range}`, { signal });
  return rows.map((/** @type {any} */ { id, doc }) => ({ ...doc, bucket, key: `${bucket}/${id.slice(FIRST.length)}` }));
}

/** @param {{runs: Run[], chosen?: string}} props  chosen: a key */
export function Runs({ runs, chosen }) {
  const run = runs.find((one) => one.key === chosen);
  return html`<section class="panel"><header><h2>Runs</h2><span class="muted">as each told this node last</span></header>
    ${runs.length ? html`<${Table} label="Runs" rows=${runs} columns=${COLUMNS} keyOf=${(/** @type {Run} */ row) => row.key}
        linkOf=${(/** @type {Run} */ row) => linkTo(["pipelines"], { run: row.key })} isChosen=${(/** @type {Run} */ row) => row.key === chosen} />`
      : html`<${Empty} title="No pipeline has run on these buckets"><p><code>millstream pipeline run backup</code>, <code>lake</code>, <code>views</code> and others leave a line here, if their user may write to the bucket.</p></${Empty}>`}
    ${run && html`<${Chosen} run=${run} />`}
  </section>`;
}

/** Changes that a run had not read when its last batch ended; null: it did not tell. @param {Run} run */
function lagOf(run) {
  const each = Object.values(run.lag);
  return each.length ? each.reduce((sum, one) => sum + one, 0) : null;
}

const lagText = (/** @type {number | null} */ lag) => (lag === null ? whole(null) : counted(lag, "change"));
const seconds = (/** @type {number} */ at) => html`<${Time} ms=${at * 1000} />`;

/** @param {Run} run @returns {[string, string]} */
const stateOf = (run) => (run.error ? ["bad", run.is_over ? "failed" : "failing"] : run.is_over ? ["plain", "ended"] : ["good", "running"]);

const COLUMNS = [
  { name: "Name", sort: (/** @type {Run} */ row) => row.name, show: (/** @type {Run} */ row) => html`<bdi class="mono roomy">${row.name}</bdi>` },
  { name: "Machine", sort: (/** @type {Run} */ row) => row.machine, show: (/** @type {Run} */ row) => html`<bdi>${row.machine}</bdi>` },
  { name: "Bucket", sort: (/** @type {Run} */ row) => row.bucket, show: (/** @type {Run} */ row) => html`<bdi>${row.bucket}</bdi>` },
  { name: "State", sort: (/** @type {Run} */ row) => stateOf(row)[1], show: (/** @type {Run} */ row) => html`<${Badge} kind=${stateOf(row)[0]}>${stateOf(row)[1]}</${Badge}>` },
  { name: "Told", sort: (/** @type {Run} */ row) => row.updated_s, show: (/** @type {Run} */ row) => seconds(row.updated_s) },
  { name: "Lag", isNumber: true, sort: lagOf, show: (/** @type {Run} */ row) => lagText(lagOf(row)) },
  { name: "Rows", isNumber: true, sort: (/** @type {Run} */ row) => row.row_count, show: (/** @type {Run} */ row) => whole(row.row_count) },
  { name: "Rate", isNumber: true, sort: (/** @type {Run} */ row) => row.rows_per_s, show: (/** @type {Run} */ row) => `${short(row.rows_per_s)}/s` },
];

/** @param {{run: Run}} props */
function Chosen({ run }) {
  const lag = Object.entries(run.lag).map(([partition, behind]) => ({ partition: Number(partition), behind }));
  const { chain } = run.figures;
  return html`<section class="panel" aria-label="Chosen run"><header><h2><bdi>${run.name}</bdi></h2></header>
    ${run.error && html`<div class="error-box" role="alert"><p><strong>It failed.</strong> <bdi>${run.error}</bdi></p></div>`}
    <dl class="facts"><dt>Kind</dt><dd>${run.kind}</dd><dt>Works on</dt><dd class="mono"><bdi>${run.subject}</bdi></dd>
      <dt>Started</dt><dd>${seconds(run.started_s)}</dd><dt>Batches</dt><dd>${whole(run.batch_count)}</dd></dl>
    ${chain && html`<h3>Chain of increments</h3>${chain.length ? html`<${Table} label="Chain of increments" rows=${chain} columns=${CHAIN} keyOf=${(/** @type {any} */ one) => one.id} />` : html`<p class="muted">No backup has ended yet.</p>`}`}
    ${lag.length > 0 && html`<h3>Lag by partition</h3><${Table} label="Lag by partition" rows=${lag} columns=${LAG} height=${320} keyOf=${(/** @type {any} */ one) => one.partition} />`}
    ${run.batches.length > 0 && html`<h3>Last batches</h3><${Table} label="Last batches" rows=${[...run.batches].reverse()} columns=${BATCHES} height=${320} keyOf=${(/** @type {any} */ one) => one[0]} />`}
  </section>`;
}

const CHAIN = [
  { name: "Manifest", isNumber: true, show: (/** @type {any} */ one) => one.id },
  { name: "On top of", isNumber: true, show: (/** @type {any} */ one) => one.parent ?? "full backup" },
  { name: "Made", show: (/** @type {any} */ one) => html`<span class="nowrap"><${Time} ms=${Date.parse(one.created)} /></span>` },
  { name: "Rows", isNumber: true, show: (/** @type {any} */ one) => whole(one.rows) },
  { name: "Size", isNumber: true, show: (/** @type {any} */ one) => bytes(one.bytes) },
];
const LAG = [
  { name: "Partition", isNumber: true, sort: (/** @type {any} */ one) => one.partition, show: (/** @type {any} */ one) => one.partition },
  { name: "Lag, changes", isNumber: true, sort: (/** @type {any} */ one) => one.behind, show: (/** @type {any} */ one) => whole(one.behind) },
];
const BATCHES = [
  { name: "Batch", isNumber: true, show: (/** @type {any} */ one) => one[0] },
  { name: "Rows", isNumber: true, show: (/** @type {any} */ one) => whole(one[1]) },
  { name: "Seconds", isNumber: true, show: (/** @type {any} */ one) => one[2].toFixed(2) },
];
