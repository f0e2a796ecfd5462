// @ts-check
/** Pipelines: what of Spark, dumps and backups this node can see: runs that told it, bulk readers, leases, and sinks in buckets. */
import { get, pathOf, useResource } from "../lib/api.js";
import { bytes, counted, duration, whole } from "../lib/format.js";
import { html } from "../lib/html.js";
import { linkTo } from "../lib/routes.js";
import { Badge, Empty, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { readRuns, Runs } from "./pipelines/runs.js";

/** How the keys of a pipeline's state in a bucket begin. */
const STATE = "_millstream:";
const STATES_MAX = 200;

/** `#/pipelines?run=KEY`. @param {import("../app.js").PageProps} props */
export default function Pipelines({ route }) {
  const found = useResource("pipelines", { every: 3_000, read: readPipelines });
  return html`<h1>Pipelines</h1>
    <p class="muted">A node knows a pipeline by what it leaves here: a record of each run, connections that read in bulk (Spark, <code>dump</code>, backups), leases of batch reads, and the state of sinks that write into a bucket. What runs where is in Spark's own pages, and in <code>millstream pipeline status</code>.</p>
    <${Shown} of=${found} what="the pipelines">${(/** @type {Bucket[]} */ buckets) => {
      const readers = buckets.flatMap((one) => one.readers.map((reader) => ({ ...reader, bucket: one.name })));
      const leases = buckets.flatMap((one) => one.leases.map((lease) => ({ ...lease, bucket: one.name })));
      const states = buckets.flatMap((one) => one.states.map((state) => ({ state, bucket: one.name })));
      return html`<${Runs} runs=${buckets.flatMap((one) => one.runs)} chosen=${route.query.run} />
        <section class="panel"><header><h2>Reading now</h2></header>${readers.length ? html`<${Table} label="Bulk readers" rows=${readers} keyOf=${(/** @type {any} */ row) => row.name} columns=${READERS}
          linkOf=${(/** @type {any} */ row) => linkTo(["streams", "readers"], { bucket: row.bucket, reader: row.name })} />` : html`<${Empty} title="Nothing reads in bulk now"><p>Spark connects for each batch, so a stream that waits for changes shows here for moments only.</p></${Empty}>`}</section>
        <section class="panel"><header><h2>Leases</h2><span class="muted">old versions that batch reads still need</span></header>${leases.length ? html`<${Table} label="Leases" rows=${leases} keyOf=${(/** @type {any} */ row) => `${row.bucket} ${row.lease}`} columns=${LEASES} />` : html`<${Empty} title="No leases" />`}</section>
        <section class="panel"><header><h2>Sinks that write here</h2><span class="muted">state that a pipeline keeps in its target bucket</span></header>${states.length ? html`<${Table} label="Sinks" rows=${states} keyOf=${(/** @type {any} */ row) => `${row.bucket} ${row.state.name}`} columns=${SINKS} />` : html`<${Empty} title="No sinks"><p>A <code>BucketTarget</code> or a transactional sink leaves its state in its bucket.</p></${Empty}>`}</section>`;
    }}</${Shown}>`;
}

/** @typedef {{name: string, runs: import("./pipelines/runs.js").Run[], readers: any[], leases: any[], states: {name: string, partitions: number}[]}} Bucket */

/** @param {AbortSignal} signal  @returns {Promise<Bucket[]>} */
async function readPipelines(signal) {
  const { buckets } = await get("/_millstream/buckets", { signal });
  return Promise.all(buckets.filter((/** @type {any} */ one) => one.state === "ready").map(async (/** @type {any} */ { name }) => {
    const [{ readers, leases }, { keys }, runs] = await Promise.all([
      get(pathOf("_millstream", "buckets", name, "readers"), { signal }),
      get(`${pathOf("_millstream", "buckets", name, "keys")}?prefix=${encodeURIComponent(STATE)}&limit=${STATES_MAX}`, { signal }),
      readRuns(name, signal),
    ]);
    /** @type {Map<string, Set<string>>} */
    const sinks = new Map();
    for (const key of keys) {
      const [sink, partition = ""] = key.slice(STATE.length).split(":");
      sinks.set(sink, (sinks.get(sink) || new Set()).add(partition));
    }
    return { name, runs, leases, readers: readers.filter((/** @type {any} */ one) => one.kind === "bulk"), states: [...sinks].map(([sink, parts]) => ({ name: sink, partitions: parts.size })) };
  }));
}

const bucketColumn = { name: "Bucket", sort: (/** @type {any} */ row) => row.bucket, show: (/** @type {any} */ row) => html`<bdi>${row.bucket}</bdi>` };
const READERS = [
  { name: "Reader", sort: (/** @type {any} */ row) => row.name, show: (/** @type {any} */ row) => html`<code>${row.name}</code>` },
  bucketColumn,
  { name: "From", show: (/** @type {any} */ row) => row.address },
  { name: "Partitions", isNumber: true, show: (/** @type {any} */ row) => whole(row.streams.length) },
  { name: "Lag", isNumber: true, sort: (/** @type {any} */ row) => row.lag, show: (/** @type {any} */ row) => html`<${Badge} kind=${row.lag ? "warn" : "good"}>${counted(row.lag, "change")}</${Badge}>` },
  { name: "Sent", isNumber: true, show: (/** @type {any} */ row) => bytes(row.sent_bytes) },
];
const LEASES = [
  { name: "Lease", show: (/** @type {any} */ row) => html`<code>${row.lease}</code>` },
  bucketColumn,
  { name: "Partitions", isNumber: true, show: (/** @type {any} */ row) => whole(row.holds.length) },
  { name: "Ends in", isNumber: true, sort: (/** @type {any} */ row) => row.seconds_left, show: (/** @type {any} */ row) => duration(row.seconds_left) },
];
const SINKS = [
  { name: "Name", sort: (/** @type {any} */ row) => row.state.name, show: (/** @type {any} */ row) => html`<bdi class="mono">${row.state.name}</bdi>` },
  bucketColumn,
  { name: "Partitions with state", isNumber: true, show: (/** @type {any} */ row) => whole(row.state.partitions) },
];
