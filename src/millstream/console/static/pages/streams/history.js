// @ts-check
/** The history of one partition: its branches as lines, and where its readers are. */
import { pathOf, useResource } from "../../lib/api.js";
import { whole } from "../../lib/format.js";
import { html } from "../../lib/html.js";
import { setQuery } from "../../lib/routes.js";
import { Field } from "../../parts/form.js";
import { Shown } from "../../parts/states.js";

const WIDTH = 900;
const ROW = 44;
const LEFT = 150;
const READERS_MAX = 12;

/** @param {{bucket: string, number: number}} props */
export function History({ bucket, number }) {
  const partition = useResource(pathOf("_millstream", "buckets", bucket, "partitions", number), { every: 3_000 });
  const readers = useResource(pathOf("_millstream", "buckets", bucket, "readers"), { every: 3_000 });
  return html`<div class="row"><${Field} label="Partition" type="number" value=${number} more=${{ min: 0 }} onInput=${(/** @type {string} */ value) => setQuery({ partition: value })} /></div>
    <${Shown} of=${partition} what="the history">${(/** @type {any} */ one) => html`
      <dl class="facts"><dt>Copy on this node</dt><dd>${one.state}</dd><dt>Changes up to</dt><dd>seqno ${whole(one.high_seqno)}, durable up to ${whole(one.persisted_seqno)}</dd>
        <dt>Deletions forgotten up to</dt><dd>seqno ${whole(one.purge_seqno)}</dd>${one.follows && html`<dt>Follows</dt><dd>${one.follows.node}${one.follows.is_streaming ? "" : `, not now: ${one.follows.failure}`}</dd>`}</dl>
      <${Drawing} log=${one.failover_log} high=${one.high_seqno} readers=${positionsOf(readers.data?.readers || [], number)} />
      <p class="muted">Each line is a branch of the history. A branch begins where a node took over, or came back without its newest changes: what the branch above had beyond that point was lost, and its readers roll back to there.</p>`}</${Shown}>`;
}

/** @param {any[]} readers  @param {number} number */
function positionsOf(readers, number) {
  return readers.flatMap((reader) => reader.streams.filter((/** @type {any} */ one) => one.partition === number).map((/** @type {any} */ one) => ({ name: reader.name, seqno: one.sent_seqno, uuid: one.uuid }))).slice(0, READERS_MAX);
}

/**
 * @param {object} props
 * @param {{uuid: string, seqno: number, branch: number}[]} props.log  newest branch first
 * @param {number} props.high
 * @param {{name: string, seqno: number, uuid: string}[]} props.readers  each is drawn on its branch
 */
function Drawing({ log, high, readers }) {
  const branches = [...log].reverse();
  const most = Math.max(high, ...readers.map((one) => one.seqno), ...branches.map((one) => one.seqno), 1);
  const at = (/** @type {number} */ seqno) => LEFT + (seqno / most) * (WIDTH - LEFT - 30);
  const last = branches.length - 1;
  const y = (/** @type {number} */ branch) => 30 + branch * ROW;
  const branchOf = (/** @type {string} */ uuid) => Math.max(0, branches.findIndex((one) => one.uuid === uuid));
  const height = y(last) + 40 + readers.length * 20;
  const summary = `${branches.length} branches; the newest begins at seqno ${branches[last]?.seqno ?? 0} and has changes up to ${high}`;
  return html`<div class="drawing"><svg viewBox=${`0 0 ${WIDTH} ${height}`} role="img" aria-label=${summary}>
    ${branches.map((one, branch) => {
      const end = branch === last ? high : branches[branch + 1].seqno;
      return html`<g key=${one.uuid}>
        ${branch > 0 && html`<line x1=${at(one.seqno)} y1=${y(branch - 1)} x2=${at(one.seqno)} y2=${y(branch)} class="fork" />`}
        <line x1=${at(one.seqno)} y1=${y(branch)} x2=${at(Math.max(end, one.seqno))} y2=${y(branch)} class=${branch === last ? "branch now" : "branch"} />
        <circle cx=${at(one.seqno)} cy=${y(branch)} r="5" class="begin" />
        <text x="4" y=${y(branch) + 4} class="label">${one.uuid}</text>
        <text x=${at(one.seqno)} y=${y(branch) - 10} class="seqno">${whole(one.seqno)}</text>
      </g>`;
    })}
    <text x=${at(high)} y=${y(last) - 10} class="seqno" text-anchor="end">${whole(high)}</text>
    ${readers.map((one, number) => html`<g key=${one.name}>
      <line x1=${at(one.seqno)} y1=${y(branchOf(one.uuid))} x2=${at(one.seqno)} y2=${y(last) + 24 + number * 20} class="reader" />
      <circle cx=${at(one.seqno)} cy=${y(branchOf(one.uuid))} r="4" class="reader" />
      <text x=${at(one.seqno) > WIDTH / 2 ? at(one.seqno) - 6 : at(one.seqno) + 6} y=${y(last) + 28 + number * 20} text-anchor=${at(one.seqno) > WIDTH / 2 ? "end" : "start"} class="label">${one.name} at ${whole(one.seqno)}</text>
    </g>`)}
  </svg></div>`;
}
