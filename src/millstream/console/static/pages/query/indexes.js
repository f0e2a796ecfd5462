// @ts-check
/** The state of each index of a bucket: what it has, what it has not read yet, what its functions failed on. */
import { ApiError, del, get, pathOf, post, useResource } from "../../lib/api.js";
import { Time, bytes, counted, whole } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { linkTo } from "../../lib/routes.js";
import { Confirm } from "../../parts/dialog.js";
import { toast } from "../../parts/form.js";
import { Badge, Empty, Shown } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { CreateIndex } from "./find.js";

/** At most so many requests for states at once. */
const AT_ONCE = 4;

/**
 * Read design documents with views, each with the state of its index or the reason why there is none.
 * @param {string} bucket  @param {AbortSignal} signal
 * @returns {Promise<any[]>}
 */
async function readIndexes(bucket, signal) {
  const [{ rows }, tasks] = await Promise.all([get(`${pathOf(bucket, "_design_docs")}?include_docs=true`, { signal }), get("/_active_tasks", { signal })]);
  const designs = rows.map((/** @type {any} */ row) => row.doc).filter((/** @type {any} */ doc) => Object.keys(doc.views || {}).length);
  /** @type {any[]} */
  const found = [];
  for (let at = 0; at < designs.length; at += AT_ONCE) {
    found.push(...await Promise.all(designs.slice(at, at + AT_ONCE).map(async (/** @type {any} */ doc) => {
      const name = doc._id.slice("_design/".length);
      const task = tasks.find((/** @type {any} */ one) => one.type === "indexer" && one.design_documents.includes(doc._id) && one.database === bucket);
      try {
        return { name, doc, task, info: (await get(pathOf(bucket, "_design", name, "_info"), { signal })).view_index };
      } catch (error) {
        if (signal.aborted || !(error instanceof ApiError) || error.status <= 0) throw error;
        return { name, doc, task, error };
      }
    })));
  }
  return found;
}

/** @param {{bucket: string, canDesign: boolean}} props */
export function Indexes({ bucket, canDesign }) {
  const indexes = useResource(`indexes of ${bucket}`, { every: 3_000, read: (signal) => readIndexes(bucket, signal) });
  const [dropped, setDropped] = useState(/** @type {any} */ (null));
  const [isCreating, setCreating] = useState(false);
  const compact = (/** @type {string} */ name) =>
    post(pathOf(bucket, "_compact", name)).then(() => toast(`The index of ${name} is compacted.`), (error) => toast(error.message, "bad"));
  const drop = async () => {
    const [view] = Object.keys(dropped.doc.views);
    await (dropped.doc.language === "query" && Object.keys(dropped.doc.views).length === 1
      ? del(pathOf(bucket, "_index", dropped.name, "json", view))
      : del(`${pathOf(bucket, "_design", dropped.name)}?rev=${dropped.doc._rev}`));
    indexes.refresh();
  };
  const columns = [
    { name: "Design document", sort: (/** @type {any} */ row) => row.name, show: (/** @type {any} */ row) => html`<bdi>${row.name}</bdi>` },
    { name: "Kind", show: (/** @type {any} */ row) => (row.doc.language === "query" ? "fields" : `views, ${row.doc.language || "javascript"}${row.info?.engine === "spark" ? ", built by Spark" : ""}`) },
    { name: "State", show: (/** @type {any} */ row) => html`<${State} row=${row} />` },
    { name: "Not indexed yet", isNumber: true, sort: (/** @type {any} */ row) => row.info?.updates_pending.total, show: (/** @type {any} */ row) => (row.info ? counted(row.info.updates_pending.total, "change") : whole(null)) },
    { name: "Rows", show: (/** @type {any} */ row) => (row.info ? Object.entries(row.info.rows || {}).map(([name, count]) => html`<div><bdi>${row.doc.language === "query" ? "" : `${name}: `}</bdi>${whole(/** @type {number} */ (count))}</div>`) : whole(null)) },
    { name: "Rollback points", isNumber: true, sort: (/** @type {any} */ row) => row.info?.rollback_points?.count, show: (/** @type {any} */ row) => points(row.info?.rollback_points) },
    { name: "On disk", isNumber: true, sort: (/** @type {any} */ row) => row.info?.sizes.file, show: (/** @type {any} */ row) => bytes(row.info?.sizes.file) },
    ...(canDesign ? [{ name: "Actions", show: (/** @type {any} */ row) => html`<button type="button" onClick=${() => compact(row.name)}>Compact</button> <button type="button" class="danger" onClick=${() => setDropped(row)}>Delete</button>` }] : []),
  ];
  return html`<section class="panel"><header><h2>Indexes</h2><span class="grow"></span>${canDesign && html`<button type="button" onClick=${() => setCreating(true)}>Create index of fields</button>`}</header>
    <${Shown} of=${indexes} what="the indexes">${(/** @type {any[]} */ rows) => (rows.length
      ? html`<${Table} label=${`Indexes of ${bucket}`} columns=${columns} rows=${rows} keyOf=${(/** @type {any} */ row) => row.name}
            linkOf=${(/** @type {any} */ row) => (row.doc.language === "query" ? undefined : linkTo(["query", "designs"], { bucket, design: row.name }))} />
          ${rows.map((row) => html`<${Failures} row=${row} bucket=${bucket} />`)}`
      : html`<${Empty} title="No indexes yet"><p>${canDesign ? html`A <a href=${linkTo(["query", "designs"], { bucket, design: "+" })}>design document</a> with a view makes one, and so does “Create index of fields”.` : "Who has the right design in this bucket makes them."}</p></${Empty}>`)}</${Shown}>
    ${isCreating && html`<${CreateIndex} bucket=${bucket} fields=${[]} onClose=${() => setCreating(false)} onCreated=${indexes.refresh} />`}
    ${dropped && html`<${Confirm} title="Delete this design document?" name=${dropped.name} action="Delete" onSend=${drop} onClose=${() => setDropped(null)}>
      <p>Its views and indexes go with it. Documents stay.</p></${Confirm}>`}
  </section>`;
}

/** How many commits the index can go back to, and since when. @param {{count: number, oldest_ms: number | null} | undefined} kept */
function points(kept) {
  if (!kept?.oldest_ms) return whole(kept?.count);
  return html`${whole(kept.count)}, since <${Time} ms=${kept.oldest_ms} />`;
}

/** @param {{row: any}} props */
function State({ row }) {
  if (row.error) return html`<${Badge} kind="bad">${row.error.status === 503 ? "not available" : "broken"}</${Badge}> ${row.error.message}`;
  if (row.info.error) return html`<${Badge} kind="bad">not updated</${Badge}> ${row.info.error}`;
  if (row.task) return html`<${Badge} kind="warn">${row.task.phase === "first_build" ? "building" : "updating"}</${Badge}> ${whole(row.task.progress)} %, ${whole(row.task.changes_per_second)} changes/s`;
  if (row.info.updater_running) return html`<${Badge} kind="warn">updating</${Badge}>`;
  if (row.info.updates_pending.total) return html`<${Badge} kind="plain">behind</${Badge}>`;
  return html`<${Badge} kind="good">up to date</${Badge}>${row.info.compact_running && " compacting"}`;
}

/** Documents on which map functions failed. @param {{row: any, bucket: string}} props */
function Failures({ row, bucket }) {
  const failed = Object.entries(/** @type {Record<string, any>} */ (row.info?.map_errors || {})).filter(([, one]) => one.count);
  return failed.map(([view, { count, last }]) => html`<details><summary>${row.name}, view ${view}: the map failed on ${counted(count, "document")}</summary>
    <${Table} label=${`Failures of ${view}`} rows=${last} keyOf=${(/** @type {any} */ _, /** @type {number} */ at) => at} columns=${[
      { name: "Document", show: (/** @type {any} */ one) => html`<a href=${linkTo(["documents", bucket, "doc", one.id])}><bdi class="mono">${one.id}</bdi></a>` },
      { name: "Reason", show: (/** @type {any} */ one) => html`<bdi>${one.message}</bdi>` },
    ]} /></details>`);
}
