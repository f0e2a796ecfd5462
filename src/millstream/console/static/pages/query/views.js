// @ts-check
/** Views: which one, with which options, and its rows. The address has all options. */
import { pathOf, queryOf, request, useResource } from "../../lib/api.js";
import { html, useState } from "../../lib/html.js";
import { linkTo, setQuery } from "../../lib/routes.js";
import { Check, Field } from "../../parts/form.js";
import { Empty, Shown } from "../../parts/states.js";
import { Results } from "./results.js";

const LIMIT = 100;
/** Members of the address that are options of a view, as the form has them. */
const OPTIONS = ["key", "keys", "startkey", "endkey", "exclusive", "group", "rows", "descending", "skip", "limit", "update", "docs"];
const KEYS = ["key", "keys", "startkey", "endkey"];
/** @type {[string, string][]} */
const GROUPS = [["", "all rows as one"], ["all", "by the whole key"], ...[1, 2, 3, 4, 5].map((level) => /** @type {[string, string]} */ ([String(level), `by ${level === 1 ? "the first element" : `the first ${level} elements`}`]))];
/** @type {[string, string][]} */
const UPDATES = [["", "first, then answer"], ["false", "not at all"], ["lazy", "after the answer"]];

/** Return the views of design documents that have functions, as "DESIGN/VIEW" -> the view. @param {any[]} rows  of `_design_docs` */
function viewsOf(rows) {
  /** @type {Record<string, any>} */
  const found = {};
  for (const { doc } of rows) {
    if (doc.language === "query") continue;
    for (const [name, view] of Object.entries(doc.views || {})) {
      if (/** @type {any} */ (view)?.map) found[`${doc._id.slice("_design/".length)}/${name}`] = view;
    }
  }
  return found;
}

/** @param {{bucket: string, query: Record<string, string>, canDesign: boolean}} props */
export function Views({ bucket, query, canDesign }) {
  const designs = useResource(`${pathOf(bucket, "_design_docs")}?include_docs=true`);
  return html`<${Shown} of=${designs} what="the design documents">${(/** @type {any} */ { rows }) => {
    const views = viewsOf(rows);
    if (!Object.keys(views).length) {
      return html`<div class="panel"><${Empty} title="No views yet"><p>${canDesign ? html`<a href=${linkTo(["query", "designs"], { bucket, design: "+" })}>Write a design document</a> with a map function.` : "Who has the right design in this bucket writes them."}</p></${Empty}></div>`;
    }
    const name = query.view in views ? query.view : Object.keys(views)[0];
    return html`<${View} key=${name} bucket=${bucket} names=${Object.keys(views)} name=${name} hasReduce=${Boolean(views[name].reduce)} query=${query} />`;
  }}</${Shown}>`;
}

/** Return what is wrong with a key that was typed, or undefined. @param {string | undefined} text  @param {boolean} [isList] */
function faultOf(text, isList = false) {
  if (!text) return undefined;
  try {
    const value = JSON.parse(text);
    return isList && !Array.isArray(value) ? "Write a list: [1, 2]" : undefined;
  } catch {
    return 'Write JSON: "text", 12, ["a", 1]';
  }
}

/** Return the parameters of a request of the options in the address. @param {Record<string, string>} query  @param {boolean} hasReduce */
function parametersOf(query, hasReduce) {
  const isGrouped = hasReduce && !query.rows;
  return {
    key: query.key, startkey: query.startkey, endkey: query.endkey, inclusive_end: query.exclusive && false,
    reduce: hasReduce ? isGrouped : undefined,
    group: isGrouped && query.group === "all" ? true : undefined,
    group_level: isGrouped && query.group !== "all" ? query.group : undefined,
    descending: query.descending && true, skip: query.skip, limit: query.limit || LIMIT, update: query.update,
    include_docs: !isGrouped && query.docs ? true : undefined,
  };
}

/** @param {{bucket: string, names: string[], name: string, hasReduce: boolean, query: Record<string, string>}} props */
function View({ bucket, names, name, hasReduce, query }) {
  const [draft, setDraft] = useState(() => Object.fromEntries(OPTIONS.map((option) => [option, query[option] || ""])));
  const change = (/** @type {string} */ option) => (/** @type {any} */ value) => setDraft((old) => ({ ...old, [option]: value === true ? "1" : value || "" }));
  const isGood = KEYS.every((option) => !faultOf(draft[option], option === "keys"));
  const [design, view] = name.split(/\/([^/]+)$/);
  const path = pathOf(bucket, "_design", design, "_view", view) + queryOf(parametersOf(query, hasReduce));
  const found = useResource(path + (query.keys || ""), { read: async (signal) => {
    const began = performance.now();
    const body = query.keys ? { keys: JSON.parse(query.keys) } : undefined;
    const answer = await request(body ? "POST" : "GET", path, { body, signal, timeoutMs: 120_000 });
    return { ...answer, took_ms: performance.now() - began };
  } });
  const run = (/** @type {Event} */ event) => {
    event.preventDefault();
    const isSame = OPTIONS.every((option) => (query[option] || "") === draft[option]);
    if (isSame) found.refresh();
    else setQuery({ bucket, view: name, ...draft });
  };
  const text = (/** @type {string} */ option, /** @type {string} */ label, /** @type {any} */ more = {}) =>
    html`<${Field} label=${label} value=${draft[option]} onInput=${change(option)} hint=${KEYS.includes(option) ? faultOf(draft[option], option === "keys") : undefined} ...${more} />`;
  const check = (/** @type {string} */ option, /** @type {string} */ label) => html`<${Check} label=${label} isOn=${Boolean(draft[option])} onChange=${change(option)} />`;
  const isGrouped = hasReduce && !draft.rows;
  return html`<form class="panel" onSubmit=${run}>
      <div class="fields">
        <${Field} label="View" value=${name} choices=${names} onInput=${(/** @type {string} */ value) => setQuery({ bucket, view: value, group: "", rows: "" })} />
        ${text("startkey", "From key", { placeholder: "JSON" })}
        ${text("endkey", "To key", { placeholder: "JSON" })}
        ${text("key", "Exactly the key", { placeholder: "JSON" })}
        ${text("keys", "These keys", { placeholder: "[..]" })}
        ${isGrouped && text("group", "Groups", { choices: GROUPS })}
        ${text("limit", "Limit", { type: "number", placeholder: String(LIMIT), more: { min: 0 } })}
        ${text("skip", "Skip", { type: "number", placeholder: "0", more: { min: 0 } })}
        ${text("update", "Update the index", { choices: UPDATES })}
      </div>
      <div class="row last">
        ${check("descending", "Backwards")}
        ${check("exclusive", "Without the last key")}
        ${hasReduce && check("rows", "Rows instead of groups")}
        ${!isGrouped && check("docs", "With documents")}
        <span class="grow"></span>
        <a class="button" href=${linkTo(["query", "designs"], { bucket, design, function: view })}>Show functions</a>
        <button class="primary" disabled=${!isGood}>Run</button>
      </div>
    </form>
    <${Shown} of=${found} what="the rows" rows=${8}>${(/** @type {any} */ answer) => html`<${Results} bucket=${bucket} answer=${answer} query=${query} limit=${Number(query.limit || LIMIT)} />`}</${Shown}>`;
}
