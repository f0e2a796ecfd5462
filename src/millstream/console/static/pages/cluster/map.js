// @ts-check
/** Where the partitions of a bucket are: a grid coloured by node, and the same as a table. */
import { pathOf, useResource } from "../../lib/api.js";
import { counted, whole } from "../../lib/format.js";
import { html, useMemo, useState } from "../../lib/html.js";
import { setQuery } from "../../lib/routes.js";
import { Field } from "../../parts/form.js";
import { Empty, Shown } from "../../parts/states.js";
import { Table } from "../../parts/table.js";

const CELL = 20;
/** Colours of the style sheet; beyond, they repeat. */
const COLOURS = 6;
/** In the address: coloured by who answers for the index of a partition. */
const INDEX = "index";

/** @param {{data: any, query: Record<string, string>}} props  data: the status of the cluster */
export function PartitionMap({ data, query }) {
  const bucket = data.buckets.find((/** @type {any} */ one) => one.name === query.bucket) || data.buckets[0];
  const map = useResource(bucket ? `${pathOf("_millstream", "buckets", bucket.name, "map")}?${bucket.generation}.${bucket.revision}` : null);
  const [last, setLast] = useState(/** @type {any} */ (null));
  const place = query.place === INDEX ? INDEX : Number(query.place || 0);
  if (map.data && map.data !== last) setLast(map.data);
  if (!bucket) return html`<section class="panel"><h2>Partitions</h2><${Empty} title="No buckets yet"><p><a href="#/documents">Create one on the page Documents.</a></p></${Empty}></section>`;
  const shown = map.data === undefined && last?.uuid === bucket.uuid ? { ...map, data: last, isLoading: false } : map;
  const places = [...Array.from({ length: bucket.replicas + 1 }, (_, at) => [String(at), at ? `replica ${at}` : "active copy"]), [INDEX, "index"]];
  return html`<section class="panel">
    <header><h2>Partitions</h2><span class="muted">${whole(bucket.served)} of ${counted(bucket.partitions, "partition")} served, ${whole(bucket.whole)} with all copies, ${whole(bucket.moving)} moving, ${whole(bucket.indexed)} indexed</span></header>
    <div class="row">
      <${Field} label="Bucket" value=${bucket.name} onInput=${(/** @type {string} */ name) => setQuery({ bucket: name, place: "" })} choices=${data.buckets.map((/** @type {any} */ one) => one.name)} />
      <${Field} label="Colour by the node of" value=${String(place)} onInput=${(/** @type {string} */ at) => setQuery({ place: at === "0" ? "" : at })} choices=${places} />
    </div>
    <${Shown} of=${shown} what="the map">${(/** @type {any} */ found) => html`<${Grid} rows=${found.rows} place=${place} bucket=${bucket} nodes=${data.nodes} />`}</${Shown}>
  </section>`;
}

/** @param {{rows: (string | null)[][], place: number | string, bucket: any, nodes: any[]}} props */
function Grid({ rows, place, bucket, nodes }) {
  const [pointed, setPointed] = useState("");
  const columns = rows.length <= 64 ? 32 : 64;
  const number = new Map(nodes.map((one, at) => [one.id, at]));
  const names = new Map(nodes.map((one) => [one.id, one.name]));
  const nameOf = (/** @type {string | null | undefined} */ id) => (id ? names.get(id) || id : "nowhere");
  const troubles = JSON.stringify([bucket.unserved, bucket.unknown, bucket.indexed_by]);
  const indexer = useMemo(() => new Map(Object.entries(/** @type {Record<string, number[]>} */ (bucket.indexed_by)).flatMap(([id, owned]) => owned.map((at) => [at, id]))), [troubles]);
  const cells = useMemo(() => rows.map((row, at) => {
    const owner = typeof place === "number" ? row[place] : indexer.get(at);
    const colour = owner == null ? "none" : `of-${((number.get(owner) ?? 0) % COLOURS) + 1}`;
    const state = bucket.unserved.includes(at) ? "unserved" : bucket.unknown.includes(at) ? "unknown" : row.includes(null) || row.length <= bucket.replicas ? "fewer" : "";
    return html`<rect class=${`${colour} ${state}`} data-partition=${at} x=${(at % columns) * CELL + 1} y=${Math.floor(at / columns) * CELL + 1} width=${CELL - 2} height=${CELL - 2} rx="3" />`;
  }), [rows, place, troubles, nodes.map((one) => one.id).join()]);
  const height = Math.ceil(rows.length / columns) * CELL;
  const tell = (/** @type {any} */ event) => {
    if (event.target.dataset.partition === undefined) return;
    const at = Number(event.target.dataset.partition);
    const [active, ...replicas] = rows[at];
    setPointed(`Partition ${at}: active on ${nameOf(active)}${replicas.length ? `, replicas on ${replicas.map(nameOf).join(", ")}` : ""}, index ${indexer.has(at) ? `on ${nameOf(indexer.get(at))}` : "nowhere"}`);
  };
  const count = (/** @type {string} */ id, /** @type {(row: (string | null)[]) => (string | null)[]} */ part) => rows.filter((row) => part(row).includes(id)).length;
  const summary = [
    { name: "Node", show: (/** @type {any} */ row) => html`<span class=${`swatch of-${((number.get(row.id) ?? 0) % COLOURS) + 1}`}></span> ${row.name}` },
    { name: "Active", isNumber: true, show: (/** @type {any} */ row) => whole(count(row.id, (one) => one.slice(0, 1))) },
    { name: "Replicas", isNumber: true, show: (/** @type {any} */ row) => whole(count(row.id, (one) => one.slice(1))) },
    { name: "Index parts", isNumber: true, show: (/** @type {any} */ row) => whole(bucket.indexed_by[row.id]?.length ?? 0) },
    { name: "Index parts, all buckets", isNumber: true, show: (/** @type {any} */ row) => whole(row.index) },
  ];
  return html`<div class="map-box">
    <svg class="partition-map" viewBox="0 0 ${columns * CELL} ${height}" style=${{ maxWidth: `${columns * 26}px` }} role="img" aria-label=${`Map of ${counted(rows.length, "partition")}; the table below has its sums`} onPointerMove=${tell} onPointerLeave=${() => setPointed("")}>${cells}</svg>
    <p class="muted pointed">${pointed || "Pale: fewer copies than wanted. Red frame: not served. Dashed: not known. Point at a partition to see its nodes."}</p>
    <${Table} label="Partitions by node" columns=${summary} rows=${nodes} keyOf=${(/** @type {any} */ row) => row.id} />
  </div>`;
}
