// @ts-check
/** Rows of a view as a table, as JSON or as a chart; `as` and `member` in the address say which. */
import { counted, duration, short, whole } from "../../lib/format.js";
import { html, useMemo } from "../../lib/html.js";
import { pretty } from "../../lib/json.js";
import { linkTo, routeOf, setQuery } from "../../lib/routes.js";
import { Chart } from "../../parts/chart.js";
import { Field } from "../../parts/form.js";
import { Badge, Empty } from "../../parts/states.js";
import { Table } from "../../parts/table.js";

const CELL_CHARACTERS = 300;
const JSON_CHARACTERS = 200_000;
const CHART_ROWS = 300;
const MEMBERS_MAX = 8;
/** @type {[string, string][]} */
const FORMS = [["table", "Table"], ["json", "JSON"], ["bars", "Bars"], ["lines", "Lines"]];

/** Return a value as one line of text, cut if it is long. @param {any} value */
export function cell(value) {
  const text = JSON.stringify(value) ?? "";
  return text.length > CELL_CHARACTERS ? `${text.slice(0, CELL_CHARACTERS)}…` : text;
}

/** Long JSON is cut: nobody reads it, and the page stays quick. @param {{label: string, value: any}} props */
export function Json({ label, value }) {
  const text = pretty(value) ?? "null";
  return html`<pre tabindex="0" role="region" aria-label=${label} dir="auto">${text.slice(0, JSON_CHARACTERS)}</pre>
    ${text.length > JSON_CHARACTERS && html`<p class="muted">The first ${whole(JSON_CHARACTERS)} of ${whole(text.length)} characters.</p>`}`;
}

/** Return the members that values have, if all values are small objects. @param {any[]} rows */
function membersOf(rows) {
  const names = new Set();
  for (const { value } of rows) {
    if (value === null || typeof value !== "object" || Array.isArray(value)) return [];
    Object.keys(value).forEach((name) => names.add(name));
    if (names.size > MEMBERS_MAX) return [];
  }
  return /** @type {string[]} */ ([...names]);
}

/** @param {{bucket: string, answer: any, query: Record<string, string>, limit: number}} props */
export function Results({ bucket, answer, query, limit }) {
  const { rows } = answer;
  const form = FORMS.some(([name]) => name === query.as) ? query.as : "table";
  const members = useMemo(() => membersOf(rows), [rows]);
  const skip = Number(query.skip || 0);
  const { page, parts } = routeOf(location.hash);
  return html`<section class="panel" aria-label="Rows">
    <header><h2>${counted(rows.length, "row")}</h2>
      <span class="muted">${answer.total_rows != null && `of ${whole(answer.total_rows)} in the view, `}in ${duration(answer.took_ms / 1000)}</span><span class="grow"></span>
      <nav class="choice" aria-label="Show rows as">${FORMS.map(([name, text]) => html`<a href=${linkTo([page, ...parts], { ...query, bucket, as: name })} aria-current=${form === name ? "true" : undefined}>${text}</a>`)}</nav>
    </header>
    ${!rows.length ? html`<${Empty} title="No rows"><p>${skip ? "There are no more." : "No document emits a key in this range."}</p></${Empty}>`
      : form === "json" ? html`<${Json} label="Rows as JSON" value=${rows} />`
      : form === "table" ? html`<${Rows} bucket=${bucket} rows=${rows} members=${members} />`
      : html`<${Drawn} rows=${rows} kind=${form === "bars" ? "bars" : "line"} members=${members} member=${query.member} />`}
    ${(skip > 0 || rows.length === limit) && html`<div class="row last">
      <button type="button" disabled=${!skip} onClick=${() => setQuery({ skip: Math.max(0, skip - limit) || "" })}>Previous rows</button>
      <button type="button" disabled=${rows.length < limit || !limit} onClick=${() => setQuery({ skip: skip + limit })}>Next rows</button>
    </div>`}
  </section>`;
}

/** @param {{bucket: string, rows: any[], members: string[]}} props */
function Rows({ bucket, rows, members }) {
  const shown = (/** @type {any} */ value) => (typeof value === "number" ? String(value) : html`<bdi class="mono">${cell(value)}</bdi>`);
  const isNumber = rows.every((row) => typeof row.value === "number");
  const columns = [
    { name: "Key", show: (/** @type {any} */ row) => html`<bdi class="mono">${cell(row.key)}</bdi>` },
    ...(members.length
      ? members.map((name) => ({ name, isNumber: rows.every((row) => typeof row.value[name] === "number"), sort: (/** @type {any} */ row) => row.value[name], show: (/** @type {any} */ row) => shown(row.value[name]) }))
      : [{ name: "Value", isNumber, sort: isNumber ? (/** @type {any} */ row) => row.value : undefined, show: (/** @type {any} */ row) => shown(row.value) }]),
    ...("id" in rows[0] ? [{ name: "Document", show: (/** @type {any} */ row) => html`<a href=${linkTo(["documents", bucket, "doc", row.id])}><bdi class="mono">${row.id}</bdi></a>` }] : []),
    ...("doc" in rows[0] ? [{ name: "Content", show: (/** @type {any} */ row) => html`<bdi class="mono">${cell(row.doc)}</bdi>` }] : []),
    ...(rows.some((row) => row.error) ? [{ name: "Error", show: (/** @type {any} */ row) => row.error && html`<${Badge} kind="bad">${row.error}</${Badge}>` }] : []),
  ];
  return html`<${Table} label="Rows of the view" columns=${columns} rows=${rows} keyOf=${(/** @type {any} */ _, /** @type {number} */ at) => at} />`;
}

/** @param {{rows: any[], kind: "bars" | "line", members: string[], member?: string}} props */
function Drawn({ rows, kind, members, member }) {
  const numeric = members.filter((name) => rows.some((row) => typeof row.value[name] === "number"));
  const chosen = member && numeric.includes(member) ? member : numeric[0];
  const drawn = useMemo(() => {
    const first = rows.slice(0, CHART_ROWS);
    const values = first.map((row) => (chosen ? row.value[chosen] : row.value)).map((/** @type {any} */ value) => (typeof value === "number" ? value : null));
    const names = first.map((row) => (Array.isArray(row.key) ? row.key.map(plain).join(" ") : plain(row.key)));
    return { x: values.map((_, at) => at), series: [{ name: chosen || "value", values, kind }], names };
  }, [rows, chosen, kind]);
  if (drawn.series[0].values.every((/** @type {any} */ value) => value === null)) {
    return html`<${Empty} title="These values are no numbers"><p>Choose a view with a reduce function such as <code>_count</code>, and groups.</p></${Empty}>`;
  }
  return html`${numeric.length > 1 && html`<div class="row"><${Field} label="Drawn member" value=${chosen} choices=${numeric} onInput=${(/** @type {string} */ value) => setQuery({ member: value })} /></div>`}
    <${Chart} key=${kind} label="Values by key" ...${drawn} format=${short} height=${320} />
    ${rows.length > CHART_ROWS && html`<p class="muted">The first ${CHART_ROWS} rows are drawn.</p>`}`;
}

const plain = (/** @type {any} */ value) => (value === null ? "all" : typeof value === "string" ? value.slice(0, 30) : (JSON.stringify(value) ?? "").slice(0, 30));
