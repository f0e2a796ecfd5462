// @ts-check
/** The changes of a bucket as they come. */
import { documentPath, pathOf } from "../../lib/api.js";
import { Time, whole } from "../../lib/format.js";
import { html, useEffect, useRef, useState } from "../../lib/html.js";
import { linkTo } from "../../lib/routes.js";
import { Field } from "../../parts/form.js";
import { Badge, Empty } from "../../parts/states.js";

const ROWS_MAX = 500;
const TEXT_MAX = 400;
const SHOW_MS = 250;

/** @typedef {{n: number, at_ms: number, id: string, rev: string, isDeleted: boolean, text: string}} Row */

/** @param {{bucket: string}} props */
export function Tail({ bucket }) {
  const [rows, setRows] = useState(/** @type {Row[]} */ ([]));
  const [count, setCount] = useState(0);
  const [filter, setFilter] = useState("");
  const [isPaused, setPaused] = useState(false);
  const [isOpen, setOpen] = useState(false);
  const coming = useRef(/** @type {Row[]} */ ([]));
  const total = useRef(0);
  const wanted = useRef("");
  wanted.current = filter.toLowerCase();
  useEffect(() => {
    if (isPaused) return undefined;
    const source = new EventSource(`${pathOf(bucket, "_changes")}?feed=eventsource&since=now&include_docs=true&heartbeat=10000`);
    source.onopen = () => setOpen(true);
    source.onerror = () => setOpen(false);
    source.onmessage = (event) => {
      if (!event.data) return;
      const row = rowOf(event.data, (total.current += 1));
      if (row && (!wanted.current || row.id.toLowerCase().includes(wanted.current) || row.text.toLowerCase().includes(wanted.current))) coming.current.unshift(row);
      if (coming.current.length > ROWS_MAX) coming.current.length = ROWS_MAX;
    };
    const timer = setInterval(() => {
      const found = coming.current;
      coming.current = [];
      setCount(total.current);
      if (found.length) setRows((old) => [...found, ...old].slice(0, ROWS_MAX));
    }, SHOW_MS);
    return () => {
      clearInterval(timer);
      source.close();
      setOpen(false);
    };
  }, [bucket, isPaused]);
  return html`<div class="row">
      <${Field} label="Filter" value=${filter} placeholder="part of an id or of a document" onInput=${setFilter} />
      <button type="button" onClick=${() => setPaused(!isPaused)}>${isPaused ? "Go on" : "Pause"}</button>
      <button type="button" onClick=${() => setRows([])}>Clear</button>
      <span role="status"><${Badge} kind=${isOpen ? "good" : "plain"}>${isPaused ? "paused" : isOpen ? "connected" : "connecting"}</${Badge}> ${whole(count)} changes seen</span>
    </div>
    ${rows.length ? html`<div class="table-box" tabindex="0" role="region" aria-label="Changes"><table>
        <thead><tr><th scope="col">Seen at</th><th scope="col">Id</th><th scope="col">Revision</th><th scope="col">Document</th></tr></thead>
        <tbody>${rows.map((row) => html`<tr key=${row.n}>
          <td class="nowrap"><${Time} ms=${row.at_ms} clock /></td>
          <td><a href=${linkTo(["documents", bucket, "doc", row.id])}><bdi>${row.id}</bdi></a></td>
          <td class="mono">${row.rev.slice(0, 12)}</td>
          <td>${row.isDeleted ? html`<${Badge} kind="warn">deleted</${Badge}>` : html`<bdi class="mono">${row.text}</bdi>`}</td>
        </tr>`)}</tbody></table></div>`
      : html`<${Empty} title="No changes yet"><p>The newest ${ROWS_MAX} changes that pass the filter appear here. Write a document to see one: <code>PUT ${documentPath(bucket, "id")}</code>.</p></${Empty}>`}`;
}

/** @param {string} data  @param {number} n  @returns {Row | null} */
function rowOf(data, n) {
  try {
    const { id, changes = [], deleted = false, doc } = JSON.parse(data);
    const { _id, _rev, ...rest } = doc || {};
    return { n, at_ms: Date.now(), id: String(id), rev: String(changes[0]?.rev ?? ""), isDeleted: Boolean(deleted), text: JSON.stringify(rest).slice(0, TEXT_MAX) };
  } catch {
    return null;
  }
}
