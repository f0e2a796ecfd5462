// @ts-check
/** Buckets, which are databases: their figures; create, change, drop. */
import { del, pathOf, post, put, request, useResource } from "../../lib/api.js";
import { bytes, Time, whole } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { go, linkTo } from "../../lib/routes.js";
import { Confirm, FormDialog } from "../../parts/dialog.js";
import { Check, Field, toast } from "../../parts/form.js";
import { Badge, Empty, Shown } from "../../parts/states.js";
import { Table } from "../../parts/table.js";

/** A cluster answers after up to 30 s. */
const WAIT = { timeoutMs: 40_000 };
const PARTITIONS = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024].map(String);

/** Return the bytes that "256 MiB", "1.5 GiB" or "1000" mean; NaN if it means nothing. @param {string} text */
export function bytesOf(text) {
  const found = /^\s*([\d.]+)\s*(?:([KMGT])i?)?B?\s*$/i.exec(text);
  return found ? Math.round(Number(found[1]) * 1024 ** (found[2] ? "KMGT".indexOf(found[2].toUpperCase()) + 1 : 0)) : NaN;
}

/** Read the buckets the user may see, with their counts of documents. @param {AbortSignal} signal */
async function readBuckets(signal) {
  const { buckets } = await request("GET", "/_millstream/buckets", { signal });
  const ready = buckets.filter((/** @type {any} */ one) => one.state === "ready").map((/** @type {any} */ one) => one.name);
  for (let at = 0; at < ready.length; at += 100) {
    const infos = await post("/_dbs_info", { keys: ready.slice(at, at + 100) }, { signal });
    for (const { key, info } of infos) Object.assign(buckets.find((/** @type {any} */ one) => one.name === key), { info });
  }
  return buckets;
}

/** @param {{session: import("../../app.js").Session}} props */
export function Buckets({ session }) {
  const buckets = useResource("buckets", { every: 10_000, read: readBuckets });
  const cluster = useResource(session.isAdmin ? "/_millstream/cluster" : null);
  const [isCreating, setCreating] = useState(false);
  const columns = [
    { name: "Bucket", sort: (/** @type {any} */ row) => row.name, show: (/** @type {any} */ row) => html`<bdi>${row.name}</bdi>` },
    { name: "State", show: (/** @type {any} */ row) => (row.state === "ready" ? html`<${Badge} kind="good">ready</${Badge}>` : html`<${Badge} kind="bad">${row.state}</${Badge}> ${row.reason}`) },
    { name: "Documents", isNumber: true, sort: (/** @type {any} */ row) => row.info?.doc_count, show: (/** @type {any} */ row) => whole(row.info?.doc_count) },
    { name: "On disk", isNumber: true, sort: (/** @type {any} */ row) => row.info?.sizes.file, show: (/** @type {any} */ row) => bytes(row.info?.sizes.file) },
    { name: "Memory quota", isNumber: true, show: (/** @type {any} */ row) => bytes(row.memory_quota_bytes) },
    { name: "Partitions", isNumber: true, show: (/** @type {any} */ row) => whole(row.partitions) },
    { name: "Created", show: (/** @type {any} */ row) => html`<${Time} ms=${Date.parse(row.created)} />` },
  ];
  return html`<section class="panel">
    <header><h2>Buckets</h2><span class="grow"></span>
      ${session.isAdmin && html`<button type="button" class="primary" onClick=${() => setCreating(true)}>Create bucket</button>`}</header>
    <${Shown} of=${buckets} what="buckets">${(/** @type {any[]} */ rows) => rows.length
      ? html`<${Table} label="Buckets" columns=${columns} rows=${rows} keyOf=${(/** @type {any} */ row) => row.name} linkOf=${(/** @type {any} */ row) => linkTo(["documents", row.name])} />`
      : html`<${Empty} title="No buckets yet"><p>${session.isAdmin ? "Create one: it is a database over HTTP, and a bucket for clients of Couchbase." : "An administrator creates buckets and gives rights in them."}</p></${Empty}>`}</${Shown}>
    ${isCreating && html`<${Create} nodes=${cluster.data ? cluster.data.nodes.length : 0} onClose=${() => setCreating(false)} />`}
  </section>`;
}

/** @param {{nodes: number, onClose: () => void}} props  nodes: of the cluster, 0: there is none */
function Create({ nodes, onClose }) {
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState("64");
  const [quota, setQuota] = useState("");
  const [replicas, setReplicas] = useState(nodes > 1 ? "1" : "0");
  const isQuotaGood = !quota || bytesOf(quota) > 0;
  const send = async () => {
    /** @type {Record<string, any>} */
    const body = { partitions: Number(partitions) };
    if (quota) body.memory_quota_bytes = bytesOf(quota);
    if (nodes) body.replicas = Number(replicas);
    const made = await put(pathOf("_millstream", "buckets", name), body, WAIT);
    toast(made.reason || `Created the bucket ${name}.`);
    go(["documents", name]);
  };
  return html`<${FormDialog} title="Create bucket" action="Create" onSend=${send} onClose=${onClose} canSend=${Boolean(name) && isQuotaGood}>
    <${Field} label="Name" value=${name} onInput=${setName} more=${{ required: true }} />
    <${Field} label="Partitions" value=${partitions} onInput=${setPartitions} choices=${PARTITIONS} hint="Fixed from now on. 64 suits most; Couchbase has 1024." />
    <${Field} label="Memory quota" value=${quota} onInput=${setQuota} placeholder="as the node has it" hint=${isQuotaGood ? "Such as 512 MiB or 2 GiB." : "Write a number and a unit, such as 512 MiB."} />
    ${nodes > 0 && html`<${Replicas} value=${replicas} onInput=${setReplicas} />`}
  </${FormDialog}>`;
}

/** @param {{value: string, onInput: (value: string) => void}} props */
function Replicas({ value, onInput }) {
  return html`<${Field} label="Replicas" value=${value} onInput=${onInput} choices=${["0", "1", "2", "3"]} hint="Copies of each partition on other nodes." />`;
}

/**
 * Buttons that change or drop a bucket.
 * @param {{bucket: string, session: import("../../app.js").Session}} props
 */
export function BucketActions({ bucket, session }) {
  const [open, setOpen] = useState("");
  const cluster = useResource(session.isAdmin ? "/_millstream/cluster" : null);
  if (!session.isAdmin) return null;
  const drop = async () => {
    const answer = await del(pathOf("_millstream", "buckets", bucket), WAIT);
    toast(answer.reason || `Dropped the bucket ${bucket}.`);
    go(["documents"]);
  };
  const compact = async () => {
    await post(pathOf("_millstream", "buckets", bucket, "compact"));
    toast("The log of the bucket is compacted soon.");
  };
  const shared = cluster.data?.buckets.find((/** @type {any} */ one) => one.name === bucket);
  return html`
    ${shared && html`<button type="button" onClick=${() => setOpen("change")}>Settings</button>`}
    <button type="button" onClick=${() => compact().catch((error) => toast(error.message, "bad"))}>Compact</button>
    <button type="button" class="danger" onClick=${() => setOpen("drop")}>Drop bucket</button>
    ${open === "change" && html`<${Change} bucket=${shared} onClose=${() => setOpen("")} />`}
    ${open === "drop" && html`<${Confirm} title="Drop this bucket?" name=${bucket} action="Drop bucket" onSend=${drop} onClose=${() => setOpen("")}>
      <p>All its documents, attachments, indexes and history are removed${cluster.data ? " on all nodes" : ""}. Nothing brings them back but a backup.</p></${Confirm}>`}`;
}

/** @param {{bucket: any, onClose: () => void}} props  bucket: as the status of the cluster has it */
function Change({ bucket, onClose }) {
  const before = bucket.settings.memory_quota_bytes;
  const [quota, setQuota] = useState(before ? bytes(before) : "");
  const [replicas, setReplicas] = useState(String(bucket.replicas));
  const [hasIndexes, setIndexes] = useState(bucket.index_replicas > 0);
  const send = async () => {
    /** @type {Record<string, any>} */
    const body = { replicas: Number(replicas), index_replicas: Number(hasIndexes) };
    if (quota && quota !== bytes(before)) body.memory_quota_bytes = bytesOf(quota);
    const answer = await request("PATCH", pathOf("_millstream", "buckets", bucket.name), { body, ...WAIT });
    toast(answer.reason || (answer.moves?.copies ? "Changed. A rebalance moves the copies." : "Changed."));
  };
  return html`<${FormDialog} title="Settings of the bucket" action="Change" onSend=${send} onClose=${onClose} canSend=${!quota || bytesOf(quota) > 0}>
    <${Field} label="Memory quota" value=${quota} onInput=${setQuota} placeholder="as each node has it" hint="Such as 512 MiB or 2 GiB." />
    <${Replicas} value=${replicas} onInput=${setReplicas} />
    <${Check} label="Index the replicas, too" isOn=${hasIndexes} onChange=${setIndexes} hint="Views are ready at once after a fail-over." />
  </${FormDialog}>`;
}
