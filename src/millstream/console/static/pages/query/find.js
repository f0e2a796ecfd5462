// @ts-check
/** Declarative queries: `_find` from an editor, which index answers it, and which index would be better. */
import { pathOf, post, request, useResource } from "../../lib/api.js";
import { counted, duration, whole } from "../../lib/format.js";
import { html, useMemo, useState } from "../../lib/html.js";
import { pretty } from "../../lib/json.js";
import { linkTo, setQuery } from "../../lib/routes.js";
import { FormDialog } from "../../parts/dialog.js";
import { Editor } from "../../parts/editor.js";
import { Field, toast } from "../../parts/form.js";
import { Badge, Empty, Shown } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { cell, Json } from "./results.js";

const FIRST = pretty({ selector: {}, limit: 25 });
const RANGES = new Set(["$lt", "$lte", "$gt", "$gte", "$beginsWith", "$in"]);

/** @param {string} text  @returns {[any, string]}  the query, and what is wrong with it */
function parsed(text) {
  try {
    const query = JSON.parse(text);
    return query?.selector && typeof query.selector === "object" ? [query, ""] : [null, 'A query has a selector: {"selector": {"type": "flight"}}'];
  } catch (error) {
    return [null, `This is no JSON: ${/** @type {Error} */ (error).message}`];
  }
}

/**
 * Return the fields of an index that fits a query: those that equal a value, those of the order,
 * then one that has a range. Empty: no index helps.
 * @param {any} query  of `_find`
 * @returns {string[]}
 */
export function fieldsFor(query) {
  /** @type {string[]} */
  const equal = [];
  /** @type {string[]} */
  const ranged = [];
  const walk = (/** @type {any} */ selector, /** @type {string} */ prefix) => {
    for (const [name, condition] of Object.entries(selector)) {
      if (name === "$and" && Array.isArray(condition)) condition.forEach((one) => walk(one, prefix));
      if (name.startsWith("$")) continue;
      const field = prefix + name;
      const operators = condition && typeof condition === "object" && !Array.isArray(condition) ? Object.keys(condition) : ["$eq"];
      if (operators.includes("$eq")) equal.push(field);
      else if (operators.some((one) => RANGES.has(one))) ranged.push(field);
      else if (operators.length && !operators.some((one) => one.startsWith("$"))) walk(condition, `${field}.`);
    }
  };
  walk(query.selector, "");
  const sorted = (query.sort || []).flatMap((/** @type {any} */ one) => (typeof one === "string" ? [one] : Object.keys(one)));
  return [...new Set([...equal.filter((one) => !sorted.includes(one)), ...sorted, ...(sorted.length ? [] : ranged.slice(0, 1))])].filter((one) => one !== "_id");
}

/** @param {{bucket: string, query: Record<string, string>, canDesign: boolean}} props */
export function Find({ bucket, query, canDesign }) {
  const [text, setText] = useState(query.find || FIRST);
  const [, fault] = useMemo(() => parsed(text), [text]);
  const asked = query.find && !parsed(query.find)[1] ? query.find : null;
  const found = useResource(asked && bucket + asked, { read: async (signal) => {
    const body = parsed(asked || "")[0];
    const began = performance.now();
    const [answer, plan] = await Promise.all([
      request("POST", pathOf(bucket, "_find"), { body: { ...body, execution_stats: true }, signal, timeoutMs: 120_000 }),
      request("POST", pathOf(bucket, "_explain"), { body, signal }),
    ]);
    return { answer, plan, body, took_ms: performance.now() - began };
  } });
  const run = () => {
    if (fault) return;
    if (query.find === text) found.refresh();
    else setQuery({ bucket, find: text });
  };
  return html`<section class="panel">
      <${Editor} label="Query as JSON" value=${text} onChange=${setText} onSave=${run} height=${200} />
      <div class="row last"><span class="muted" role="status">${fault || "Ctrl-S runs it, too."}</span><span class="grow"></span>
        <button type="button" class="primary" disabled=${Boolean(fault)} onClick=${run}>Find</button></div>
    </section>
    ${asked && html`<${Shown} of=${found} what="the documents" rows=${8}>${(/** @type {any} */ data) => html`
      <${Plan} bucket=${bucket} canDesign=${canDesign} ...${data} onCreated=${found.refresh} />
      <${Found} bucket=${bucket} answer=${data.answer} as=${query.as} query=${query} />`}</${Shown}>`}`;
}

/** @param {{bucket: string, canDesign: boolean, answer: any, plan: any, body: any, took_ms: number, onCreated: () => void}} props */
function Plan({ bucket, canDesign, answer, plan, body, took_ms, onCreated }) {
  const [isCreating, setCreating] = useState(false);
  const { index } = plan;
  const isScan = index.type === "special" && !("_id" in body.selector);
  const fields = fieldsFor(body);
  const statistics = answer.execution_stats;
  const names = index.def.fields.flatMap((/** @type {any} */ one) => Object.keys(one));
  return html`<section class="panel" aria-label="How it was found">
    <header><h2>How it was found</h2>${isScan ? html`<${Badge} kind="warn">all documents are read</${Badge}>` : html`<${Badge} kind="good">by an index</${Badge}>`}</header>
    <dl class="facts ${isScan || answer.warning ? "" : "last"}">
      <dt>Index</dt><dd>${index.type === "special" ? "ids of all documents" : html`<bdi>${index.name}</bdi> on <bdi class="mono">${names.join(", ")}</bdi>`}</dd>
      ${index.type !== "special" && html`<dt>Range</dt><dd class="mono">${cell(plan.mrargs.start_key)} to ${cell(plan.mrargs.end_key)}</dd>`}
      <dt>Documents examined</dt><dd>${whole(statistics?.total_docs_examined)} for ${counted(answer.docs.length, "result")}</dd>
      <dt>Time</dt><dd>${duration(took_ms / 1000)}</dd>
    </dl>
    ${answer.warning && html`<p class="stale">${answer.warning}</p>`}
    ${isScan && (fields.length
      ? html`<div class="row last"><p>An index on <bdi class="mono">${fields.join(", ")}</bdi> fits this selector.</p>${canDesign && html`<button type="button" onClick=${() => setCreating(true)}>Create this index</button>`}</div>`
      : html`<p>No index helps this selector: an index needs a field that equals a value or has a range, not under <code>$or</code>, <code>$not</code> or <code>$regex</code>.</p>`)}
    ${isCreating && html`<${CreateIndex} bucket=${bucket} fields=${fields} onClose=${() => setCreating(false)} onCreated=${onCreated} />`}
  </section>`;
}

/** @param {{bucket: string, fields: string[], onClose: () => void, onCreated: () => void}} props */
export function CreateIndex({ bucket, fields, onClose, onCreated }) {
  const [text, setText] = useState(fields.join(", "));
  const [name, setName] = useState(fields.length ? `by-${fields.join("-")}` : "");
  const wanted = text.split(",").map((one) => one.trim()).filter(Boolean);
  const send = async () => {
    const made = await post(pathOf(bucket, "_index"), { index: { fields: wanted }, name, ddoc: name });
    toast(made.result === "exists" ? "This index exists already." : `Created the index ${made.name}.`);
    onCreated();
  };
  return html`<${FormDialog} title="Create index" action="Create" onSend=${send} onClose=${onClose} canSend=${wanted.length > 0 && Boolean(name)}>
    <${Field} label="Fields" value=${text} onInput=${setText} hint="Names with commas between them; a.b is a member of a member. First those that queries compare with one value." />
    <${Field} label="Name" value=${name} onInput=${setName} hint="Of the index and of its design document." />
  </${FormDialog}>`;
}

/** @param {{bucket: string, answer: any, as?: string, query: Record<string, string>}} props */
function Found({ bucket, answer, as, query }) {
  const { docs } = answer;
  const isJson = as === "json";
  const columns = [
    { name: "Document", show: (/** @type {any} */ doc) => html`<bdi class="mono">${doc._id ?? "not asked for"}</bdi>` },
    { name: "Content", show: (/** @type {any} */ { _id, _rev, ...rest }) => html`<bdi class="mono">${cell(rest)}</bdi>` },
  ];
  const choose = (/** @type {string} */ value) => linkTo(["query", "find"], { ...query, bucket, as: value });
  return html`<section class="panel" aria-label="Documents found"><header><h2>${counted(docs.length, "document")}</h2><span class="grow"></span>
    <nav class="choice" aria-label="Show documents as"><a href=${choose("")} aria-current=${isJson ? undefined : "true"}>Table</a><a href=${choose("json")} aria-current=${isJson ? "true" : undefined}>JSON</a></nav></header>
    ${!docs.length ? html`<${Empty} title="No document matches" />`
      : isJson ? html`<${Json} label="Documents as JSON" value=${docs} />`
      : html`<${Table} label="Found documents" columns=${columns} rows=${docs} keyOf=${(/** @type {any} */ _, /** @type {number} */ at) => at}
          linkOf=${(/** @type {any} */ doc) => (doc._id ? linkTo(["documents", bucket, "doc", doc._id]) : undefined)} />`}
  </section>`;
}
