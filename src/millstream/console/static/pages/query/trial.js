// @ts-check
/** Functions are tried on documents before they are saved: rows, errors and the reduced value. */
import { ApiError, pathOf, post } from "../../lib/api.js";
import { counted } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { linkTo } from "../../lib/routes.js";
import { Field } from "../../parts/form.js";
import { Badge, Empty, ErrorBox } from "../../parts/states.js";
import { cell } from "./results.js";

const DOCUMENTS = 10;

/** @param {{bucket: string, language: string, map: string, reduce: string}} props */
export function Trial({ bucket, language, map, reduce }) {
  const [ids, setIds] = useState("");
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isRunning, setRunning] = useState(false);
  const run = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setRunning(true);
    setError(null);
    const wanted = ids.split(/[\s,]+/).filter(Boolean).slice(0, DOCUMENTS);
    try {
      setTold(await post(pathOf("_millstream", "buckets", bucket, "try"), {
        map, language, limit: DOCUMENTS, ...(reduce && { reduce }), ...(wanted.length && { ids: wanted }),
      }));
    } catch (failure) {
      setTold(null);
      setError(failure instanceof ApiError ? failure : new ApiError(-1, "console_error", String(failure)));
    }
    setRunning(false);
  };
  return html`<section aria-label="Trial">
    <h3>Try it on ten documents</h3>
    <form class="row" onSubmit=${run}>
      <${Field} label="Ids of documents" value=${ids} onInput=${setIds} placeholder="the first ten" />
      <button disabled=${isRunning}>${isRunning ? "Trying" : "Try it"}</button>
    </form>
    ${error && html`<${ErrorBox} error=${error} doing="The functions were not tried." />`}
    ${told && html`<${Outcome} bucket=${bucket} told=${told} hasReduce=${Boolean(reduce)} />`}
  </section>`;
}

/** @param {{bucket: string, told: any, hasReduce: boolean}} props */
function Outcome({ bucket, told, hasReduce }) {
  if (told.error) return html`<${ErrorBox} error=${new ApiError(200, "function", told.error)} doing="The function failed." />`;
  if (!told.documents.length) return html`<${Empty} title="No documents to try it on"><p>Write one on the page Documents.</p></${Empty}>`;
  return html`${hasReduce && html`<p>Reduced: <bdi class="mono wrap">${cell(told.reduced)}</bdi></p>`}
    <div class="table-box" tabindex="0" role="region" aria-label="Emitted rows"><table>
      <thead><tr><th scope="col">Document</th><th scope="col">Key</th><th scope="col">Value</th></tr></thead>
      <tbody>${told.documents.map((/** @type {any} */ one) => html`
        ${one.rows.map((/** @type {any} */ row, /** @type {number} */ at) => html`<tr>
          <td>${at === 0 && html`<${Id} bucket=${bucket} id=${one.id} />`}</td>
          <td><bdi class="mono">${cell(row.key)}</bdi></td><td><bdi class="mono">${cell(row.value)}</bdi></td></tr>`)}
        ${one.emitted > one.rows.length && html`<tr><td></td><td colspan="2" class="muted">and ${counted(one.emitted - one.rows.length, "more row")}</td></tr>`}
        ${(one.error || !one.rows.length) && html`<tr><td><${Id} bucket=${bucket} id=${one.id} /></td>
          <td colspan="2">${one.error ? html`<${Badge} kind="bad">failed</${Badge}> <bdi>${one.error}</bdi>` : html`<span class="muted">emits nothing</span>`}</td></tr>`}`)}</tbody>
    </table></div>`;
}

/** @param {{bucket: string, id: string}} props */
function Id({ bucket, id }) {
  return html`<a href=${linkTo(["documents", bucket, "doc", id])}><bdi class="mono">${id}</bdi></a>`;
}
