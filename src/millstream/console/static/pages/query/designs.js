// @ts-check
/** Design documents: their list; the functions of one in editors, tried on documents before they are saved. */
import { ApiError, del, get, pathOf, put, useResource } from "../../lib/api.js";
import { html, useState } from "../../lib/html.js";
import { pretty } from "../../lib/json.js";
import { setQuery } from "../../lib/routes.js";
import { Confirm } from "../../parts/dialog.js";
import { Editor } from "../../parts/editor.js";
import { Field, toast } from "../../parts/form.js";
import { Empty, ErrorBox, Shown } from "../../parts/states.js";
import { Trial } from "./trial.js";

/** The design document that is not there yet. */
const NEW = "+";
const MAP = "function (doc) {\n  emit(doc._id, null);\n}";
/** @type {[string, string][]} */
const LANGUAGES = [["javascript", "JavaScript"], ["python", "Python (registered functions)"]];
/** @type {[string, string][]} */
const REDUCES = [
  ["", "none"], ["_count", "_count: number of rows"], ["_sum", "_sum of values"], ["_stats", "_stats: sum, count, min, max"],
  ["_approx_count_distinct", "_approx_count_distinct: different keys"], ["function", "a function"],
];
const REDUCE = "function (keys, values, rereduce) {\n  return sum(values);\n}";
/** Members that have fields of their own. */
const OWN = new Set(["_id", "_rev", "language", "views"]);

/** @param {{bucket: string, query: Record<string, string>, canDesign: boolean}} props */
export function Designs({ bucket, query, canDesign }) {
  const designs = useResource(`${pathOf(bucket, "_design_docs")}?include_docs=true`);
  return html`<${Shown} of=${designs} what="the design documents">${(/** @type {any} */ { rows }) => {
    const docs = rows.map((/** @type {any} */ row) => row.doc).filter((/** @type {any} */ doc) => doc.language !== "query");
    const names = docs.map((/** @type {any} */ doc) => doc._id.slice("_design/".length));
    const name = query.design || names[0];
    const choices = [...names.map((/** @type {string} */ one) => [one, one]), ...(canDesign ? [[NEW, "a new one"]] : [])];
    const doc = name === NEW ? { views: { all: { map: MAP } } } : docs[names.indexOf(name)];
    if (!name) {
      return html`<div class="panel"><${Empty} title="No design documents yet"><p>Their functions say which rows a view has.</p>
        ${canDesign && html`<button type="button" class="primary" onClick=${() => setQuery({ bucket, design: NEW })}>Write the first one</button>`}</${Empty}></div>`;
    }
    return html`<div class="row"><${Field} label="Design document" value=${name} choices=${choices} onInput=${(/** @type {string} */ value) => setQuery({ bucket, design: value, function: "" })} />
        ${canDesign && name !== NEW && html`<button type="button" onClick=${() => setQuery({ bucket, design: NEW, function: "" })}>New design document</button>`}</div>
      ${doc ? html`<${Design} key=${`${name} ${doc._rev}`} canDesign=${canDesign} bucket=${bucket} name=${name === NEW ? "" : name} doc=${doc} view=${query.function} onChanged=${designs.refresh} />`
        : html`<div class="panel"><${Empty} title="There is no such design document"><p>It may have been deleted. Choose another one.</p></${Empty}></div>`}`;
  }}</${Shown}>`;
}

/** Return the text of the members that have no fields of their own. @param {any} doc */
const othersOf = (doc) => pretty(Object.fromEntries(Object.entries(doc).filter(([name]) => !OWN.has(name))));

/** @param {string} text  @returns {any}  null: this is no JSON object */
function objectOf(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** @param {{bucket: string, canDesign: boolean, name: string, doc: any, view?: string, onChanged: () => void}} props  name: "" for a new one */
function Design({ bucket, canDesign, name, doc, view, onChanged }) {
  const [title, setTitle] = useState(name);
  const [language, setLanguage] = useState(doc.language || "javascript");
  const [views, setViews] = useState(/** @type {Record<string, any>} */ (doc.views || {}));
  const [others, setOthers] = useState(() => othersOf(doc));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isDropping, setDropping] = useState(false);
  const shown = view && view in views ? view : Object.keys(views).find((one) => one !== "lib");
  const path = pathOf(bucket, "_design", title);
  const more = objectOf(others);
  const change = (/** @type {any} */ changes) => shown && setViews({ ...views, [shown]: { ...views[shown], ...changes } });
  const store = async (/** @type {string | undefined} */ revision) => {
    setError(null);
    try {
      const made = await put(path, { ...more, language, views, _rev: revision });
      toast(`Saved as ${made.rev.split("-")[0]}. Its index is built.`);
      setQuery({ bucket, design: title });
      onChanged();
    } catch (failure) {
      setError(failure);
    }
  };
  const save = () => void (canDesign && title && more && store(doc._rev));
  const overwrite = async () => store((await get(path))._rev).catch(setError);
  const drop = async () => {
    await del(`${path}?rev=${doc._rev}`);
    toast(`Deleted the design document ${name}.`);
    setQuery({ design: "", function: "" });
    onChanged();
  };
  return html`<section class="panel" aria-label="Design document">
    <div class="row">
      ${!name && html`<${Field} label="Name" value=${title} onInput=${setTitle} />`}
      <${Field} label="Language" value=${language} choices=${LANGUAGES} onInput=${setLanguage} />
      <span class="grow"></span>
      ${canDesign && name && html`<button type="button" class="danger" onClick=${() => setDropping(true)}>Delete</button>`}
      ${canDesign ? html`<button type="button" class="primary" disabled=${!title || !more} onClick=${save}>Save</button>` : html`<p class="muted">To change it you need the right design in this bucket.</p>`}
    </div>
    ${error instanceof ApiError && error.status === 409
      ? html`<div class="error-box" role="alert"><p><strong>Somebody saved this design document meanwhile.</strong> Look at their version first, or replace it by yours.</p>
          <div class="row last"><button type="button" onClick=${onChanged}>Show their version</button><button type="button" onClick=${overwrite}>Replace it by mine</button></div></div>`
      : error && html`<${ErrorBox} error=${error} doing="It was not saved." />`}
    <${Names} views=${views} shown=${shown} onChange=${setViews} />
    ${shown ? html`<${View} key=${shown} canDesign=${canDesign} bucket=${bucket} language=${language} view=${views[shown]} onChange=${change} onSave=${save} />`
      : html`<${Empty} title="It has no views"><p>Add one by its name.</p></${Empty}>`}
    <${Others} text=${others} isGood=${Boolean(more)} onChange=${setOthers} />
    ${isDropping && html`<${Confirm} title="Delete this design document?" name=${name} action="Delete" onSend=${drop} onClose=${() => setDropping(false)}>
      <p>Its views and their index go with it. Documents stay.</p></${Confirm}>`}
  </section>`;
}

/** The names of the views: choose, add, remove. @param {{views: Record<string, any>, shown?: string, onChange: (views: Record<string, any>) => void}} props */
function Names({ views, shown, onChange }) {
  const [name, setName] = useState("");
  const names = Object.keys(views).filter((one) => one !== "lib");
  const add = (/** @type {Event} */ event) => {
    event.preventDefault();
    onChange({ ...views, [name]: { map: MAP } });
    setQuery({ function: name });
    setName("");
  };
  const remove = () => onChange(Object.fromEntries(Object.entries(views).filter(([one]) => one !== shown)));
  return html`<div class="row">
    ${shown && html`<${Field} label="View" value=${shown} choices=${names} onInput=${(/** @type {string} */ value) => setQuery({ function: value })} />
      <button type="button" onClick=${remove}>Remove this view</button>`}
    <form class="row" onSubmit=${add}><${Field} label="Another view" value=${name} onInput=${setName} placeholder="name" /><button disabled=${!name || name in views}>Add view</button></form>
  </div>`;
}

/** @param {{bucket: string, canDesign: boolean, language: string, view: any, onChange: (changes: any) => void, onSave: () => void}} props */
function View({ bucket, canDesign, language, view, onChange, onSave }) {
  const reduce = view.reduce || "";
  const kind = REDUCES.some(([name]) => name === reduce) ? reduce : "function";
  const code = language === "javascript" ? "javascript" : "text";
  /** @type {[string, string][]} */
  const choices = reduce && kind === "function" && reduce.startsWith("_") ? [...REDUCES, [reduce, reduce]] : REDUCES;
  return html`<div class="halves">
    <div>
      <h3>Map</h3>
      <${Editor} label="Map function" language=${code} value=${view.map} onChange=${(/** @type {string} */ map) => onChange({ map })} onSave=${onSave} height=${240} />
      <${Field} label="Reduce" value=${choices === REDUCES ? kind : reduce} choices=${choices} onInput=${(/** @type {string} */ value) => onChange({ reduce: value === "function" ? REDUCE : value || undefined })} />
      ${choices === REDUCES && kind === "function" && html`<${Editor} label="Reduce function" language=${code} value=${reduce} onChange=${(/** @type {string} */ text) => onChange({ reduce: text })} onSave=${onSave} height=${140} />`}
    </div>
    ${canDesign && html`<${Trial} bucket=${bucket} language=${language} map=${view.map} reduce=${reduce} />`}
  </div>`;
}

/** Filters, update functions, options: as JSON. @param {{text: string, isGood: boolean, onChange: (text: string) => void}} props */
function Others({ text, isGood, onChange }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details onToggle=${(/** @type {any} */ event) => setOpen(event.currentTarget.open)}>
    <summary>Other members: filters, update functions, validation, options</summary>
    ${isOpen && html`<${Editor} label="Other members as JSON" value=${text} onChange=${onChange} height=${200} />`}
    ${!isGood && html`<p class="stale" role="status">This is no JSON object.</p>`}
  </details>`;
}

