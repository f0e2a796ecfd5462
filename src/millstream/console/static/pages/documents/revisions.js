// @ts-check
/**
 * The revision tree of a document as a drawing, and the choice between versions that were written
 * apart. Long runs without a branch are drawn as one step that says how many it leaves out.
 */
import { pathOf, post } from "../../lib/api.js";
import { counted } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { linkTo } from "../../lib/routes.js";
import { Confirm } from "../../parts/dialog.js";
import { toast } from "../../parts/form.js";
import { Badge } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { shortRevision } from "./list.js";

const [STEP_X, STEP_Y, EDGE] = [130, 46, 42];
/** Revisions drawn at each end of a run; those between are counted. */
const RUN_SHOWN = 2;

const generation = (/** @type {string} */ revision) => Number(revision.split("-")[0]);

/** Return the leaf that the database shows: a live one, the longest history, then the larger digest. @param {any[]} leaves */
export function winnerOf(leaves) {
  const key = (/** @type {any} */ one) => /** @type {[number, number, string]} */ ([one._deleted ? 0 : 1, generation(one._rev), one._rev.split("-")[1]]);
  return leaves.reduce((best, one) => {
    const [a, b] = [key(best), key(one)];
    const at = a.findIndex((value, index) => value !== b[index]);
    return at >= 0 && a[at] < b[at] ? one : best;
  });
}

/**
 * @typedef {object} Drawn
 * @property {string} revision
 * @property {string | null} parent   the drawn revision before it
 * @property {number} left_out        revisions between the parent and this
 * @property {number} column
 * @property {number} row
 */

/**
 * Return where each revision is drawn.
 * @param {any[]} leaves  with `_revisions`; the first is in the first row
 * @returns {Drawn[]}
 */
export function layOut(leaves) {
  const paths = leaves.map(({ _revisions: { start, ids } }) => ids.map((/** @type {string} */ id, /** @type {number} */ at) => `${start - at}-${id}`).reverse());
  /** @type {Map<string, Set<string>>} */
  const children = new Map();
  for (const path of paths) path.forEach((/** @type {string} */ one, /** @type {number} */ at) => at && children.set(path[at - 1], (children.get(path[at - 1]) || new Set()).add(one)));
  /** @type {Map<string, Drawn>} */
  const drawn = new Map();
  paths.forEach((path, row) => {
    const ends = path.map((/** @type {string} */ one, /** @type {number} */ at) => at === 0 || at === path.length - 1 || (children.get(one)?.size ?? 0) > 1);
    const isNear = (/** @type {number} */ at) => ends.slice(Math.max(0, at - RUN_SHOWN + 1), at + RUN_SHOWN).some(Boolean);
    let [parent, left_out] = [/** @type {string | null} */ (null), 0];
    path.forEach((/** @type {string} */ revision, /** @type {number} */ at) => {
      if (!drawn.has(revision) && !isNear(at)) return void (left_out += 1);
      const column = parent === null ? 0 : /** @type {Drawn} */ (drawn.get(parent)).column + (left_out ? 2 : 1);
      if (!drawn.has(revision)) drawn.set(revision, { revision, parent, left_out, column, row });
      [parent, left_out] = [revision, 0];
    });
  });
  return [...drawn.values()];
}

/**
 * @param {object} props
 * @param {string} props.bucket
 * @param {string} props.id
 * @param {any[]} props.leaves
 * @param {Record<string, string>} props.known  revision -> "available", "missing" or "deleted"
 * @param {string} props.shown                  the revision that is shown
 * @param {boolean} props.canWrite
 * @param {() => void} props.onChanged
 */
export function Revisions({ bucket, id, leaves, known, shown, canWrite, onChanged }) {
  const [chosen, setChosen] = useState(/** @type {any} */ (null));
  const winner = winnerOf(leaves);
  const live = leaves.filter((one) => !one._deleted);
  const ordered = [winner, ...leaves.filter((one) => one !== winner)];
  const resolve = async () => {
    const others = live.filter((one) => one !== chosen);
    const answers = await post(pathOf(bucket, "_bulk_docs"), { docs: others.map((one) => ({ _id: id, _rev: one._rev, _deleted: true })) });
    const refused = answers.find((/** @type {any} */ one) => one.error);
    if (refused) throw new Error(`A version was not deleted: ${refused.reason || refused.error}.`);
    toast("The conflict is resolved.");
    onChanged();
  };
  const columns = [
    { name: "Revision", show: (/** @type {any} */ row) => html`<span class="mono">${shortRevision(row._rev)}</span>` },
    { name: "State", show: (/** @type {any} */ row) => (row._deleted ? html`<${Badge} kind="plain">deleted</${Badge}>` : row === winner ? html`<${Badge} kind="good">current</${Badge}>` : html`<${Badge} kind="warn">conflict</${Badge}>`) },
    ...(canWrite && live.length > 1 ? [{ name: "Resolve", show: (/** @type {any} */ row) => !row._deleted && html`<button type="button" onClick=${() => setChosen(row)}>Keep this one</button>` }] : []),
  ];
  return html`<section class="panel">
    <header><h2>Revisions</h2><span class="muted">${counted(leaves.length, "branch", "branches")}, ${counted(live.length, "live version")}</span></header>
    <${Tree} bucket=${bucket} id=${id} ordered=${ordered} known=${known} shown=${shown} winner=${winner} />
    ${leaves.length > 1 && html`<${Table} label="Branches" columns=${columns} rows=${ordered} keyOf=${(/** @type {any} */ row) => row._rev} isChosen=${(/** @type {any} */ row) => row._rev === shown}
      linkOf=${(/** @type {any} */ row) => linkTo(["documents", bucket, "doc", id], { rev: row._rev })} />`}
    ${chosen && html`<${Confirm} title="Keep this version?" name=${id} action="Keep it, delete the others" onSend=${resolve} onClose=${() => setChosen(null)}>
      <p>Revision <span class="mono">${shortRevision(chosen._rev)}</span> becomes the current one. ${counted(live.length - 1, "other version is", "other versions are")} deleted.</p></${Confirm}>`}
  </section>`;
}

/** @param {{bucket: string, id: string, ordered: any[], known: Record<string, string>, shown: string, winner: any}} props */
function Tree({ bucket, id, ordered, known, shown, winner }) {
  const drawn = layOut(ordered);
  const at = new Map(drawn.map((one) => [one.revision, one]));
  const leaves = new Map(ordered.map((one) => [one._rev, one]));
  const width = (Math.max(...drawn.map((one) => one.column)) + 1) * STEP_X;
  const place = (/** @type {Drawn} */ one) => [EDGE + one.column * STEP_X, EDGE + one.row * STEP_Y];
  return html`<div class="tree" tabindex="0" role="group" aria-label="Tree of revisions"><svg width=${width } height=${ordered.length * STEP_Y + 8} viewBox="0 22 ${width} ${ordered.length * STEP_Y + 8}">
    ${drawn.map((one) => {
      const before = one.parent && at.get(one.parent);
      if (!before) return null;
      const [[x0, y0], [x, y]] = [place(before), place(one)];
      return html`<g><path class="edge" d=${`M${x0} ${y0}C${x0 + STEP_X / 2} ${y0} ${x0 + STEP_X / 4} ${y} ${x0 + STEP_X / 1.6} ${y}L${x} ${y}`} />
        ${one.left_out > 0 && html`<text x=${(x0 + STEP_X / 1.6 + x) / 2} y=${y - 7} text-anchor="middle">${counted(one.left_out, "more")}</text>`}</g>`;
    })}
    ${drawn.map((one) => {
      const [x, y] = place(one);
      const leaf = leaves.get(one.revision);
      const kind = !leaf ? (known[one.revision] === "missing" ? "gone" : "inner") : leaf._deleted ? "deleted" : leaf === winner ? "winner" : "rival";
      const told = { gone: "an old revision whose content is gone", inner: "an old revision", deleted: "deleted", winner: "current", rival: "in conflict" }[kind];
      return html`<a href=${linkTo(["documents", bucket, "doc", id], leaf === winner ? {} : { rev: one.revision })} aria-label=${`${shortRevision(one.revision)}, ${told}`}>
        <circle class=${`${kind} ${one.revision === shown ? "shown" : ""}`} cx=${x} cy=${y} r=${leaf ? 9 : 6} />
        ${kind === "deleted" && html`<path class="cross" d=${`M${x - 4} ${y - 4}l8 8m0-8l-8 8`} />`}
        <text x=${x} y=${y + 24} text-anchor="middle">${shortRevision(one.revision)}</text></a>`;
    })}
  </svg></div>`;
}
