// @ts-check
/** Small drawings in text: a sparkline, and a bar that shows a part of a whole. */
import { html } from "../lib/html.js";

const [WIDTH, HEIGHT] = [200, 40];

/**
 * A line without axes; it fills its box.
 * @param {{values: (number | null)[], label: string}} props  values: null is drawn as a gap
 */
export function Spark({ values, label }) {
  const most = Math.max(1e-9, ...values.map((one) => one ?? 0));
  const step = WIDTH / Math.max(1, values.length - 1);
  let [line, area, start] = ["", "", -1];
  values.forEach((value, at) => {
    const point = value == null ? "" : `${(at * step).toFixed(1)} ${(HEIGHT - 1 - (value / most) * (HEIGHT - 3)).toFixed(1)}`;
    if (point) {
      line += `${start < 0 ? "M" : "L"}${point}`;
      area += `${start < 0 ? `M${(at * step).toFixed(1)} ${HEIGHT}L` : "L"}${point}`;
      if (start < 0) start = at;
    }
    if (start >= 0 && (!point || at === values.length - 1)) {
      area += `L${((point ? at : at - 1) * step).toFixed(1)} ${HEIGHT}Z`;
      start = -1;
    }
  });
  return html`<svg class="spark" viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label=${label}>
    <path class="spark-area" d=${area} /><path class="spark-line" d=${line} vector-effect="non-scaling-stroke" />
  </svg>`;
}

/**
 * A bar that is filled by a part of a whole; above 90 % it warns.
 * @param {{part: number | null | undefined, whole: number | null | undefined, label: string, children?: any}} props
 */
export function Bar({ part, whole, label, children }) {
  if (part == null || !whole) return html`<span>${children}</span>`;
  const percent = Math.min(100, (100 * part) / whole);
  return html`<span class="bar-box">${children}
    <span class="bar" role="meter" aria-label=${label} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${Math.round(percent)}>
      <span class=${percent >= 90 ? "full" : ""} style=${{ width: `${percent}%` }}></span>
    </span></span>`;
}
