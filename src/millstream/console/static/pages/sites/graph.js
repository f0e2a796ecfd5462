// @ts-check
/** Replications as a graph: databases of this node on the left, those of other sites on the right. Jobs that name no databases are left out. */
import { counted, short } from "../../lib/format.js";
import { html, useMemo } from "../../lib/html.js";
import { isRemote, KINDS, lagOf } from "./jobs.js";

const WIDTH = 860;
const BOX = { width: 270, height: 34, gap: 22 };
const LEFT = 60;
const RIGHT = WIDTH - BOX.width - LEFT;
const NAME_CHARACTERS = 34;

/**
 * Return where each database is, by name.
 * @param {import("./jobs.js").Job[]} jobs
 * @returns {{places: Map<string, {x: number, y: number, isRemote: boolean}>, height: number}}
 */
function layout(jobs) {
  const names = [...new Set(jobs.flatMap((job) => [job.source ?? "", job.target ?? ""]))].filter(Boolean).sort();
  const places = new Map();
  const heights = [0, 0];
  for (const name of names) {
    const side = Number(isRemote(name));
    places.set(name, { x: side ? RIGHT : LEFT, y: 34 + heights[side] * (BOX.height + BOX.gap), isRemote: Boolean(side) });
    heights[side] += 1;
  }
  return { places, height: 34 + Math.max(...heights) * (BOX.height + BOX.gap) };
}

/**
 * Return the curve of a job from its source to its target, and the place of its text.
 * @param {{x: number, y: number, isRemote: boolean}} from
 * @param {{x: number, y: number, isRemote: boolean}} to
 * @param {number} number  among the jobs between these two
 */
function curve(from, to, number) {
  const shift = (from.y < to.y || (from.y === to.y && !from.isRemote) ? -7 : 7) + number * 6;
  const [y1, y2] = [from.y + BOX.height / 2 + shift, to.y + BOX.height / 2 + shift];
  if (from.isRemote === to.isRemote) {
    const x = from.isRemote ? RIGHT + BOX.width : LEFT;
    const out = x + (from.isRemote ? 52 : -52);
    return { path: `M${x},${y1} C${out},${y1} ${out},${y2} ${x},${y2}`, x: null, y: 0 };
  }
  const [x1, x2] = from.isRemote ? [RIGHT, LEFT + BOX.width] : [LEFT + BOX.width, RIGHT];
  const middle = (x1 + x2) / 2;
  const end = from.isRemote ? y1 : y2;
  return { path: `M${x1},${y1} C${middle},${y1} ${middle},${y2} ${x2},${y2}`, x: RIGHT - 16, y: end + (shift < 0 ? -5 : 14) };
}

/** @param {{jobs: import("./jobs.js").Job[], chosen?: string, linkOf: (job: string) => string}} props */
export function Graph({ jobs, chosen, linkOf }) {
  const shape = jobs.map((job) => [job.source, job.target].join("\n")).join("\n");
  const { places, height } = useMemo(() => layout(jobs), [shape]);
  /** Jobs so far by their two ends; only the first at a remote end has a text. @type {Record<string, number>} */
  const seen = {};
  return html`<div class="graph" tabindex="0" role="region" aria-label="Databases and replications between them">
    <svg width=${WIDTH} height=${height} viewBox="0 0 ${WIDTH} ${height}">
      <defs>${["good", "warn", "bad", "plain"].map((kind) => html`<marker id="arrow-${kind}" class=${kind} viewBox="0 0 10 10" refX="9" refY="5" markerUnits="userSpaceOnUse" markerWidth="13" markerHeight="13" orient="auto"><path d="M0,0 L10,5 L0,10 z" /></marker>`)}</defs>
      <text class="side-name" x=${LEFT} y="18">This node</text><text class="side-name" x=${RIGHT} y="18">Other sites</text>
      ${jobs.map((job) => {
        const [from, to] = [places.get(job.source ?? ""), places.get(job.target ?? "")];
        if (!from || !to) return null;
        const pair = `${job.source}\n${job.target}`;
        const end = from.isRemote ? `${job.source}\n` : `\n${job.target}`;
        const isFirst = !(end in seen);
        seen[end] = seen[pair] = (seen[pair] ?? -1) + 1;
        const { path, x, y } = curve(from, to, seen[pair]);
        const kind = KINDS[job.state] || "plain";
        const told = textOf(job);
        return html`<a key=${job.id} href=${linkOf(job.id)} aria-label=${`${job.source} to ${job.target}: ${job.state}, ${told}`} class=${`edge ${kind} ${job.id === chosen ? "shown" : ""}`}>
          <title>${`${job.source} to ${job.target}: ${job.state}, ${told}`}</title>
          <path class="wide" d=${path} /><path class="line" d=${path} marker-end="url(#arrow-${kind})" />
          ${x !== null && isFirst && html`<text x=${x} y=${y} text-anchor="end">${told}</text>`}
        </a>`;
      })}
      ${[...places].map(([name, { x, y }]) => html`<g key=${name} class="database"><title>${name}</title>
        <rect x=${x} y=${y} width=${BOX.width} height=${BOX.height} rx="6" /><text x=${x + 12} y=${y + 22}>${shortName(name)}</text></g>`)}
    </svg></div>`;
}

/** @param {import("./jobs.js").Job} job */
function textOf(job) {
  if (job.state !== "running") return job.state;
  const lag = lagOf(job);
  const behind = lag === null ? "lag unknown" : lag ? `${counted(lag, "change")} behind` : "up to date";
  return job.rate ? `${short(job.rate)}/s, ${behind}` : behind;
}

/** Return a name that fits into its box: of an address the end tells most. @param {string} name */
function shortName(name) {
  const text = name.replace(/^https?:\/\//, "").replace(/\/$/, "");
  return text.length <= NAME_CHARACTERS ? text : `${text.slice(0, 14)}…${text.slice(15 - NAME_CHARACTERS)}`;
}
