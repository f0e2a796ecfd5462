// @ts-check
/** The documents of a bucket by prefix or range, read page by page as one scrolls. */
import { get, pathOf, queryOf, useResource } from "../../lib/api.js";
import { bytes, whole } from "../../lib/format.js";
import { html, useCallback, useEffect, useRef, useState } from "../../lib/html.js";
import { may } from "../../lib/rights.js";
import { go, linkTo, setQuery } from "../../lib/routes.js";
import { Check, Field, toast } from "../../parts/form.js";
import { Empty, ErrorBox, Loading, Shown } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { BucketActions } from "./buckets.js";
import { saveBucket } from "./export.js";

const PAGE_ROWS = 1_000;
/** With contents: a document has up to 20 MiB. */
const PAGE_DOCUMENTS = 50;
const PREVIEW_CHARACTERS = 300;
/** The last of all characters: an id with a prefix is below prefix + this. */
const LAST = "\u{10FFFF}";

/** @param {{bucket: string, query: Record<string, string>, session: import("../../app.js").Session}} props */
export function List({ bucket, query, session }) {
  const info = useResource(pathOf(bucket));
  const [id, setId] = useState("");
  const [saving, setSaving] = useState(/** @type {{written: number, stop: AbortController} | null} */ (null));
  const open = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (id) go(["documents", bucket, "doc", id]);
  };
  const save = async () => {
    const stop = new AbortController();
    setSaving({ written: 0, stop });
    await saveBucket(bucket, (written) => setSaving({ written, stop }), stop.signal).then(
      (written) => toast(`Exported ${whole(written)} documents.`),
      (error) => stop.signal.aborted || toast(error.message, "bad"),
    );
    setSaving(null);
  };
  return html`
    <div class="title"><h1 class="name" dir="auto">${bucket}</h1><div class="row last">
      ${may(session, "write", bucket) && html`<a class="button primary" href=${linkTo(["documents", bucket, "new"])}>New document</a>
        <a class="button" href=${linkTo(["documents", bucket, "import"])}>Import</a>`}
      ${saving ? html`<button type="button" onClick=${() => saving.stop.abort()}>Stop the export (${whole(saving.written)})</button>`
        : html`<button type="button" onClick=${save}>Export</button>`}
      <${BucketActions} bucket=${bucket} session=${session} />
    </div></div>
    <div class="row">
      <div class="grow"><${Shown} of=${info} what="the bucket" rows=${1}>${(/** @type {any} */ data) => html`<p class="muted last">
        ${whole(data.doc_count)} documents, ${whole(data.doc_del_count)} deleted, ${bytes(data.sizes.file)} on disk</p>`}</${Shown}></div>
      <form class="row" onSubmit=${open}><${Field} label="Open by id" value=${id} onInput=${setId} /><button disabled=${!id}>Open</button></form>
    </div>
    <div class="row">
      <${Typed} label="Ids that begin with" value=${query.prefix || ""} onChange=${(/** @type {string} */ prefix) => setQuery({ prefix, from: "", to: "" })} />
      <${Typed} label="From id" value=${query.from || ""} onChange=${(/** @type {string} */ from) => setQuery({ from, prefix: "" })} />
      <${Typed} label="To id" value=${query.to || ""} onChange=${(/** @type {string} */ to) => setQuery({ to, prefix: "" })} />
      <${Check} label="Backwards" isOn=${Boolean(query.down)} onChange=${(/** @type {boolean} */ isOn) => setQuery({ down: isOn ? "1" : "" })} />
      <${Check} label="Show contents" isOn=${Boolean(query.full)} onChange=${(/** @type {boolean} */ isOn) => setQuery({ full: isOn ? "1" : "" })} />
    </div>
    <${Rows} key=${JSON.stringify([query.prefix, query.from, query.to, query.down, query.full])} bucket=${bucket} query=${query} canWrite=${may(session, "write", bucket)} />`;
}

/** A field that waits until typing pauses. @param {{label: string, value: string, onChange: (value: string) => void}} props */
function Typed({ label, value, onChange }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    if (text === value) return undefined;
    const timer = setTimeout(() => onChange(text), 300);
    return () => clearTimeout(timer);
  }, [text]);
  return html`<${Field} label=${label} value=${text} onInput=${setText} />`;
}

/** @param {{bucket: string, query: Record<string, string>, canWrite: boolean}} props  its key is the query: a new query begins anew */
function Rows({ bucket, query, canWrite }) {
  const [rows, setRows] = useState(/** @type {any[]} */ ([]));
  const [isWhole, setWhole] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const reading = useRef(false);
  const more = useCallback(async () => {
    if (reading.current) return;
    reading.current = true;
    setError(null);
    try {
      const size = query.full ? PAGE_DOCUMENTS : PAGE_ROWS;
      const page = await get(`${pathOf(bucket, "_all_docs")}${queryOf({ ...rangeOf(query, rows.at(-1)?.id), limit: size })}`);
      setRows([...rows, ...page.rows]);
      setWhole(page.rows.length < size);
    } catch (failure) {
      setError(failure);
    }
    reading.current = false;
  }, [rows]);
  useEffect(() => void more(), []);
  if (!rows.length && error) return html`<${ErrorBox} error=${error} onRetry=${more} doing="The documents could not be read." />`;
  if (!rows.length && !isWhole) return html`<${Loading} what="documents" rows=${8} />`;
  if (!rows.length) {
    return html`<div class="panel"><${Empty} title="No documents here">
      <p>${query.prefix || query.from || query.to ? "Try another range." : canWrite && html`<a href=${linkTo(["documents", bucket, "new"])}>Write the first one</a>, or <a href=${linkTo(["documents", bucket, "import"])}>import a file</a>.`}</p>
    </${Empty}></div>`;
  }
  const columns = [
    { name: "Id", width: query.full ? "30%" : "60%", show: (/** @type {any} */ row) => html`<bdi class="mono">${row.id}</bdi>` },
    { name: "Revision", width: query.full ? "10rem" : undefined, show: (/** @type {any} */ row) => html`<span class="mono muted">${shortRevision(row.value.rev)}</span>` },
    ...(query.full ? [{ name: "Content", show: (/** @type {any} */ row) => html`<bdi class="mono">${preview(row.doc)}</bdi>` }] : []),
  ];
  return html`
    <${Table} label=${`Documents of ${bucket}`} columns=${columns} rows=${rows} keyOf=${(/** @type {any} */ row) => row.id} onEnd=${isWhole ? undefined : more}
      linkOf=${(/** @type {any} */ row) => linkTo(["documents", bucket, "doc", row.id])} />
    <p class="muted" role="status">${whole(rows.length)} ${isWhole ? "documents, that is all" : "documents read; scroll for more"}</p>
    ${error && html`<${ErrorBox} error=${error} onRetry=${more} doing="More documents could not be read." />`}`;
}

/** 3-1624d9163aea4f48b29a061640ce8ee4 -> 3-1624d9 @param {string} revision */
export const shortRevision = (revision) => revision.replace(/^(\d+-.{6}).*$/, "$1");

function preview(/** @type {any} */ document) {
  const { _id, _rev, ...rest } = document || {};
  return JSON.stringify(rest).slice(0, PREVIEW_CHARACTERS);
}

/**
 * Return the parameters of `_all_docs` for what is asked for.
 * @param {Record<string, string>} query
 * @param {string} [after]  the id that was read last
 */
export function rangeOf(query, after) {
  const [low, high] = query.prefix ? [query.prefix, query.prefix + LAST] : [query.from, query.to];
  const [first, last] = query.down ? [high, low] : [low, high];
  const start = after ?? first;
  return {
    startkey: start && JSON.stringify(start), endkey: last && JSON.stringify(last),
    skip: after === undefined ? undefined : 1, descending: query.down ? true : undefined,
    include_docs: query.full ? true : undefined,
  };
}
