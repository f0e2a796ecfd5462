// @ts-check
/** Streams: who reads a bucket, how far each is, histories that diverged, and a live tail. */
import { pathOf, useResource } from "../lib/api.js";
import { Time, bytes, counted, duration, whole } from "../lib/format.js";
import { html } from "../lib/html.js";
import { linkTo, setQuery } from "../lib/routes.js";
import { Field, Tabs } from "../parts/form.js";
import { Badge, Empty, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { History } from "./streams/history.js";
import { Tail } from "./streams/tail.js";

/** Kind of a reader -> its text. @type {Record<string, string>} */
const KINDS = {
  copy: "copy on another node", index: "view index", consumer: "consumer",
  bulk: "Spark, dump or backup", other: "other client",
};
/** @type {[string, string][]} */
const TABS = [["readers", "Readers"], ["history", "History of a partition"], ["tail", "Live tail"]];

/** @param {import("../app.js").PageProps} props */
export default function Streams({ route }) {
  const buckets = useResource("/_millstream/buckets", { every: 10_000 });
  const tab = route.parts[0] || "readers";
  return html`<h1>Streams</h1>
    <${Shown} of=${buckets} what="the buckets">${(/** @type {any} */ found) => {
      const names = found.buckets.filter((/** @type {any} */ one) => one.state === "ready").map((/** @type {any} */ one) => one.name);
      if (!names.length) return html`<${Empty} title="No buckets yet"><p><a href="#/documents">Create one on the page Documents.</a></p></${Empty}>`;
      const bucket = names.includes(route.query.bucket) ? route.query.bucket : names[0];
      return html`<div class="row"><${Field} label="Bucket" value=${bucket} choices=${names} onInput=${(/** @type {string} */ value) => setQuery({ bucket: value, partition: "", reader: "" })} /></div>
        <${Tabs} label="Views of the stream" path=${["streams"]} tabs=${TABS} now=${tab} query=${{ bucket }} />
        ${tab === "history" ? html`<${History} key=${bucket} bucket=${bucket} number=${Number(route.query.partition || 0)} />`
          : tab === "tail" ? html`<${Tail} key=${bucket} bucket=${bucket} />`
          : html`<${Readers} bucket=${bucket} chosen=${route.query.reader} />`}`;
    }}</${Shown}>`;
}

/** @param {{bucket: string, chosen?: string}} props */
function Readers({ bucket, chosen }) {
  const found = useResource(pathOf("_millstream", "buckets", bucket, "readers"), { every: 2_000 });
  return html`<${Shown} of=${found} what="the readers">${(/** @type {any} */ { readers, leases, past_rollbacks: past }) => html`
    ${readers.length ? html`<${Table} label=${`Readers of ${bucket}`} rows=${readers} keyOf=${(/** @type {any} */ row) => row.name} columns=${COLUMNS}
        linkOf=${(/** @type {any} */ row) => linkTo(["streams", "readers"], { bucket, reader: row.name })} isChosen=${(/** @type {any} */ row) => row.name === chosen} />`
      : html`<${Empty} title="Nobody reads this bucket from this node"><p>Copies, view indexes, Spark queries, <code>millstream tail</code> and backups appear here while they are connected.</p></${Empty}>`}
    ${chosen && html`<${Reader} reader=${readers.find((/** @type {any} */ one) => one.name === chosen)} name=${chosen} />`}
    ${past.length > 0 && html`<section class="panel"><header><h2>Rollbacks of readers that have gone</h2><span class="muted">a reader may have come back under another name</span></header>
      <${Table} label="Rollbacks" rows=${past} keyOf=${(/** @type {any} */ row) => `${row.name} ${row.at_ms}`} height=${320} columns=${PAST} /></section>`}
    <${Leases} leases=${leases} />`}</${Shown}>`;
}

const COLUMNS = [
  { name: "Reader", sort: (/** @type {any} */ row) => row.name, show: (/** @type {any} */ row) => html`<bdi class="mono roomy">${row.name}</bdi>` },
  { name: "What it is", sort: (/** @type {any} */ row) => row.kind, show: (/** @type {any} */ row) => html`<div class="roomy">${KINDS[row.kind] || row.kind}<div class="muted">${row.address}${row.user && ` as ${row.user}`}, since <${Time} ms=${row.since_ms} /></div></div>` },
  { name: "Partitions", isNumber: true, sort: (/** @type {any} */ row) => row.streams.length, show: (/** @type {any} */ row) => whole(row.streams.length) },
  { name: "Lag", isNumber: true, sort: (/** @type {any} */ row) => row.lag, show: (/** @type {any} */ row) => html`<${Badge} kind=${row.lag ? "warn" : "good"}>${counted(row.lag, "change")}</${Badge}>` },
  { name: "Behind by", isNumber: true, sort: (/** @type {any} */ row) => row.lag_s ?? Infinity, show: (/** @type {any} */ row) => behind(row.lag_s) },
  { name: "Sent", isNumber: true, sort: (/** @type {any} */ row) => row.sent_bytes, show: (/** @type {any} */ row) => html`${bytes(row.sent_bytes)}<div class="muted" title="sent and not acknowledged">${bytes(row.bytes_waiting)} waiting</div>` },
  { name: "Last rollback", sort: (/** @type {any} */ row) => row.last_rollback?.at_ms ?? 0, show: (/** @type {any} */ row) => rolledBack(row.last_rollback) },
];

const PAST = [
  { name: "Reader", sort: (/** @type {any} */ row) => row.name, show: (/** @type {any} */ row) => html`<bdi class="mono">${row.name}</bdi>` },
  { name: "Rollback", sort: (/** @type {any} */ row) => row.at_ms, show: rolledBack },
];

/** Text of a lag; unknown where the oldest change is in the log alone. @param {number | null} seconds */
const behind = (seconds) => (seconds === 0 ? "nothing" : duration(seconds));

/** @param {{partition: number, from_seqno: number, to_seqno: number, at_ms: number} | null} one */
function rolledBack(one) {
  if (!one) return "none since it connected";
  return html`partition ${one.partition}: from seqno ${whole(one.from_seqno)} to ${whole(one.to_seqno)}, <${Time} ms=${one.at_ms} />`;
}

/** @param {{reader: any, name: string}} props */
function Reader({ reader, name }) {
  if (!reader) return html`<section class="panel"><p class="last">The reader <bdi class="mono">${name}</bdi> is not connected any more.</p></section>`;
  return html`<section class="panel"><header><h2>Partitions of <bdi>${name}</bdi></h2></header>
    <${Table} label="Partitions of the reader" rows=${reader.streams} keyOf=${(/** @type {any} */ row) => row.partition} height=${320} columns=${[
      { name: "Partition", isNumber: true, sort: (/** @type {any} */ row) => row.partition, show: (/** @type {any} */ row) => row.partition },
      { name: "Reads", show: (/** @type {any} */ row) => row.state },
      { name: "Sent up to seqno", isNumber: true, sort: (/** @type {any} */ row) => row.sent_seqno, show: (/** @type {any} */ row) => whole(row.sent_seqno) },
      { name: "Lag, changes", isNumber: true, sort: (/** @type {any} */ row) => row.lag, show: (/** @type {any} */ row) => whole(row.lag) },
      { name: "Behind by", isNumber: true, sort: (/** @type {any} */ row) => row.lag_s ?? Infinity, show: (/** @type {any} */ row) => behind(row.lag_s) },
    ]} /></section>`;
}

/** @param {{leases: any[]}} props */
function Leases({ leases }) {
  if (!leases.length) return html`<p class="muted">No leases are held: no batch read is under way.</p>`;
  return html`<section class="panel"><header><h2>Leases</h2><span class="muted">old versions that are kept for batch reads</span></header>
    <${Table} label="Leases" rows=${leases} keyOf=${(/** @type {any} */ row) => row.lease} height=${320} columns=${[
      { name: "Lease", show: (/** @type {any} */ row) => html`<code>${row.lease}</code>` },
      { name: "Partitions", isNumber: true, sort: (/** @type {any} */ row) => row.holds.length, show: (/** @type {any} */ row) => whole(row.holds.length) },
      { name: "Ends in", isNumber: true, sort: (/** @type {any} */ row) => row.seconds_left, show: (/** @type {any} */ row) => duration(row.seconds_left) },
    ]} /></section>`;
}
