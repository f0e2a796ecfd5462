// @ts-check
/** Query: views, declarative queries, design documents and the state of indexes of a bucket. */
import { useResource } from "../lib/api.js";
import { html } from "../lib/html.js";
import { setQuery } from "../lib/routes.js";
import { Field, Tabs } from "../parts/form.js";
import { Empty, Shown } from "../parts/states.js";
import { Designs } from "./query/designs.js";
import { Find } from "./query/find.js";
import { Indexes } from "./query/indexes.js";
import { Views } from "./query/views.js";

/** @type {[string, string][]} */
const TABS = [["views", "Views"], ["find", "Find"], ["designs", "Design documents"], ["indexes", "Indexes"]];
/** What belongs to one bucket only: another bucket begins without it. */
const OF_BUCKET = { view: "", design: "", find: "", key: "", keys: "", startkey: "", endkey: "", skip: "" };

/** Whether a user may change design documents and indexes. @param {import("../app.js").Session} session  @param {string} bucket */
const mayDesign = (session, bucket) => session.isAdmin || [`design:${bucket}`, "design:*"].some((role) => session.roles.includes(role));

/** `#/query/TAB?bucket=B`, and what is asked for. @param {import("../app.js").PageProps} props */
export default function Query({ route, session }) {
  const buckets = useResource("/_millstream/buckets", { every: 10_000 });
  const tab = route.parts[0] || "views";
  return html`<h1>Query</h1>
    <${Shown} of=${buckets} what="the buckets">${(/** @type {any} */ found) => {
      const names = found.buckets.filter((/** @type {any} */ one) => one.state === "ready").map((/** @type {any} */ one) => one.name).sort((/** @type {string} */ a, /** @type {string} */ b) => Number(a.startsWith("_")) - Number(b.startsWith("_")));
      if (!names.length) return html`<${Empty} title="No buckets yet"><p><a href="#/documents">Create one on the page Documents.</a></p></${Empty}>`;
      const bucket = names.includes(route.query.bucket) ? route.query.bucket : names[0];
      const props = { bucket, query: route.query, canDesign: mayDesign(session, bucket) };
      return html`<div class="row"><${Field} label="Bucket" value=${bucket} choices=${names} onInput=${(/** @type {string} */ value) => setQuery({ ...OF_BUCKET, bucket: value })} /></div>
        <${Tabs} label="Ways to query" path=${["query"]} tabs=${TABS} now=${tab} query=${{ bucket }} />
        ${tab === "find" ? html`<${Find} key=${bucket} ...${props} />`
          : tab === "designs" ? html`<${Designs} key=${bucket} ...${props} />`
          : tab === "indexes" ? html`<${Indexes} key=${bucket} ...${props} />`
          : html`<${Views} key=${bucket} ...${props} />`}`;
    }}</${Shown}>`;
}
