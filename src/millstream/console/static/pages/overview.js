// @ts-check
/** Overview: health with reasons, what the node does now, its buckets, the last minutes or the last day. */
import { useResource } from "../lib/api.js";
import { bytes, counted, duration, short, whole } from "../lib/format.js";
import { html } from "../lib/html.js";
import { linkTo } from "../lib/routes.js";
import { joined, newest, SPANS, useSamples } from "../lib/samples.js";
import { Chart } from "../parts/chart.js";
import { Bar, Spark } from "../parts/spark.js";
import { Badge, Empty, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";

/** @typedef {import("../lib/samples.js").Samples} Samples */

const most = (/** @type {number} */ a, /** @type {number} */ b) => Math.max(a, b);
const rate = (/** @type {number | null} */ value) => (value == null ? short(value) : `${short(value)}/s`);
const byteRate = (/** @type {number | null} */ value) => (value == null ? bytes(value) : `${bytes(value)}/s`);
const milliseconds = (/** @type {number | null} */ value) => duration(value == null ? null : value / 1000);

/**
 * @typedef {object} Figure
 * @property {string} text
 * @property {(value: number | null) => string} format
 * @property {boolean} [isOfNode]   of the node; others are of each bucket
 * @property {(a: number, b: number) => number} [join]  how those of several buckets become one; default: sum
 */

/** Name of a figure in the samples -> how it is shown. @type {Record<string, Figure>} */
const FIGURES = {
  writes_per_s: { text: "Writes", format: rate },
  reads_per_s: { text: "Reads", format: rate },
  bytes_in_per_s: { text: "Received by kv", format: byteRate },
  bytes_out_per_s: { text: "Answered by kv", format: byteRate },
  log_bytes_per_s: { text: "Written to the log", format: byteRate },
  sent_bytes_per_s: { text: "Sent to readers", format: byteRate },
  stream_lag: { text: "Stream lag", format: (value) => (value == null ? short(value) : counted(value, "change")), join: most },
  unflushed: { text: "Not on disk yet", format: (value) => (value == null ? short(value) : counted(value, "change")) },
  documents_in_memory: { text: "Documents in memory", format: whole },
  disk_bytes: { text: "Data on disk", format: bytes },
  memory_bytes: { text: "Memory of the node", format: bytes, isOfNode: true },
  disk_free_bytes: { text: "Free on disk", format: bytes, isOfNode: true },
  connections: { text: "Connections", format: whole, isOfNode: true },
  loop_lag_ms: { text: "Delay of the engine", format: milliseconds, isOfNode: true },
};

/** @param {import("../app.js").PageProps} props */
export default function Overview({ route, session }) {
  const span = Object.hasOwn(SPANS, route.query.span) ? route.query.span : "300";
  const figure = Object.hasOwn(FIGURES, route.query.figure) ? route.query.figure : "writes_per_s";
  return html`
    <div class="title"><h1>Overview</h1>
      ${session.isAdmin && html`<nav class="choice" aria-label="Span of time">${Object.entries(SPANS).map(
        ([value, [text]]) => html`<a href=${linkTo(["overview"], { ...route.query, span: value })} aria-current=${span === value ? "true" : undefined}>${text}</a>`,
      )}</nav>`}
    </div>
    <${Health} />
    ${session.isAdmin ? html`<${Figures} span=${span} figure=${figure} query=${route.query} />` : html`<${Buckets} />`}
    <${Node} isAdmin=${session.isAdmin} />`;
}

function Health() {
  const health = useResource("/_millstream/health", { every: 5_000 });
  return html`<section class="panel" aria-label="Health"><${Shown} of=${health} what="health">${(/** @type {any} */ { state, reasons }) =>
    state === "ok" || !reasons.length
      ? html`<p class="last"><${Badge} kind="good">healthy</${Badge}> Nothing needs your attention.</p>`
      : html`<ul class="reasons">${reasons.map(
          (/** @type {any} */ one) => html`<li>
            <${Badge} kind=${one.severity === "warning" ? "warn" : one.severity === "failed" ? "bad" : "plain"}>${one.severity}</${Badge}>
            <div><strong>${one.what}</strong><p>${one.do}</p></div>
          </li>`,
        )}</ul>`}</${Shown}></section>`;
}

/** @param {{span: string, figure: string, query: Record<string, string>}} props */
function Figures({ span, figure, query }) {
  const resource = useSamples(span);
  return html`<${Shown} of=${resource} what="figures" rows=${8}>${(/** @type {Samples} */ samples) => html`
    <div class="figures">${Object.entries(FIGURES).map(([name, { text, format }]) => {
      const values = valuesOf(samples, name);
      return html`<a class="panel figure" href=${linkTo(["overview"], { ...query, figure: name })} aria-current=${name === figure ? "true" : undefined}>
        <span>${text}</span><strong>${format(newest(values))}</strong>
        <${Spark} values=${values} label=${`${text}, last ${SPANS[span][0]}, at most ${format(Math.max(...values.map((one) => one ?? 0)))}`} />
      </a>`;
    })}</div>
    <${Series} samples=${samples} name=${figure} span=${span} />
    <${Buckets} samples=${samples} />`}</${Shown}>`;
}

/** Return a figure of the whole node. @param {Samples} samples  @param {string} name */
function valuesOf(samples, name) {
  if (FIGURES[name].isOfNode) return samples.node[name] || [];
  return joined(Object.values(samples.buckets).map((series) => series[name]), FIGURES[name].join);
}

/** @param {{samples: Samples, name: string, span: string}} props */
function Series({ samples, name, span }) {
  const { text, format, isOfNode } = FIGURES[name];
  const largest = Object.entries(samples.buckets).sort(([, a], [, b]) => (newest(b[name]) ?? 0) - (newest(a[name]) ?? 0)).slice(0, 6);
  const series = isOfNode ? [{ name: "this node", values: samples.node[name] || [] }]
    : largest.map(([bucket, one]) => ({ name: bucket, values: one[name] || [] })).sort((a, b) => (a.name < b.name ? -1 : 1));
  return html`<section class="panel">
    <header><h2>${text}${isOfNode ? "" : " by bucket"}</h2><span class="muted">last ${SPANS[span][0]}, on this node</span></header>
    ${series.length ? html`<${Chart} label=${`${text} over time`} x=${samples.times_s} series=${series} format=${format} height=${220} />`
      : html`<${Empty} title="No buckets yet" />`}
  </section>`;
}

/** @param {{samples?: Samples}} props */
function Buckets({ samples }) {
  const buckets = useResource("/_millstream/buckets", { every: 5_000 });
  const now = (/** @type {any} */ bucket, /** @type {string} */ name) => newest(samples?.buckets[bucket.name]?.[name]);
  const figure = (/** @type {string} */ name, /** @type {string} */ text, /** @type {(value: number | null) => string} */ format) => ({
    name: text, isNumber: true, sort: (/** @type {any} */ row) => now(row, name), show: (/** @type {any} */ row) => format(now(row, name)),
  });
  const columns = [
    { name: "Bucket", sort: (/** @type {any} */ row) => row.name, show: (/** @type {any} */ row) => html`<bdi>${row.name}</bdi>` },
    { name: "State", show: (/** @type {any} */ row) => (row.state === "ready" ? html`<${Badge} kind="good">ready</${Badge}>` : html`<${Badge} kind="bad">${row.state}</${Badge}> ${row.reason}`) },
    ...(samples ? [
      figure("documents_in_memory", "Documents in memory", whole),
      { name: "Memory of documents", sort: (/** @type {any} */ row) => now(row, "memory_bytes"), show: (/** @type {any} */ row) => html`<${Bar} part=${now(row, "memory_bytes")} whole=${row.memory_quota_bytes} label=${`Memory of ${row.name}`}>${bytes(now(row, "memory_bytes"))} of ${bytes(row.memory_quota_bytes)}</${Bar}>` },
      figure("disk_bytes", "Disk", bytes), figure("writes_per_s", "Writes", rate), figure("reads_per_s", "Reads", rate),
      figure("stream_lag", "Stream lag", FIGURES.stream_lag.format),
    ] : [{ name: "Changes", isNumber: true, show: (/** @type {any} */ row) => whole(row.high_seqno) }]),
  ];
  return html`<section class="panel"><header><h2>Buckets</h2></header><${Shown} of=${buckets} what="buckets">${(/** @type {any} */ data) =>
    data.buckets.length
      ? html`<${Table} label="Buckets" columns=${columns} rows=${data.buckets} keyOf=${(/** @type {any} */ row) => row.name} linkOf=${(/** @type {any} */ row) => linkTo(["documents", row.name])} />`
      : html`<${Empty} title="No buckets yet"><p><a href="#/documents">Create one on the page Documents.</a></p></${Empty}>`}</${Shown}></section>`;
}

function Node(/** @type {{isAdmin: boolean}} */ { isAdmin }) {
  const node = useResource("/_millstream/node", { every: 30_000 });
  const cluster = useResource(isAdmin ? "/_millstream/cluster" : null, { every: 5_000 });
  const sessions = cluster.data?.nodes.filter((/** @type {any} */ one) => one.has_session).length;
  return html`<section class="panel"><header><h2>This node</h2></header><${Shown} of=${node} what="the node">${(/** @type {any} */ data) => html`
    <dl class="facts last">
      <dt>Version</dt><dd>${data.version}</dd>
      <dt>Identity</dt><dd class="mono">${data.uuid}</dd>
      ${cluster.data && html`<dt>Cluster</dt><dd><a href="#/cluster">${cluster.data.cluster.name}</a>, ${sessions} of ${counted(cluster.data.nodes.length, "node")} heard now</dd>`}
      ${cluster.error?.code === "not_managed" && html`<dt>Cluster</dt><dd>none. <a href="#/cluster">Make one</a></dd>`}
      ${Object.entries(data.listeners).filter(([, address]) => address).map(([name, address]) => html`<dt>${LISTENERS[name] ?? name}</dt><dd class="mono">${address}</dd>`)}
    </dl>`}</${Shown}></section>`;
}

/** @type {Record<string, string>} */
const LISTENERS = {
  kv: "Documents and streams", memcached: "memcached", http: "HTTP", coord: "Coordination", ninep: "Namespaces as files", peer: "Node to node",
};
