// @ts-check
/** Figures and times as people read them: always with units, times in the user's zone. */
import { html } from "./html.js";

const WHOLE = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const BYTE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
/** What is shown for a figure that is not known. */
export const UNKNOWN = "unknown";

/** 1234567 -> "1,234,567". @param {number | null | undefined} value */
export const whole = (value) => (value == null ? UNKNOWN : WHOLE.format(value));

/** 1234567 -> "1.2M". @param {number | null | undefined} value */
export const short = (value) => (value == null ? UNKNOWN : SHORT.format(value));

/** 1536 -> "1.5 KiB". @param {number | null | undefined} value */
export function bytes(value) {
  if (value == null) return UNKNOWN;
  let unit = 0;
  let size = value;
  while (Math.abs(size) >= 1024 && unit < BYTE_UNITS.length - 1) {
    size /= 1024;
    unit += 1;
  }
  return `${unit && Math.abs(size) < 100 ? size.toFixed(1) : Math.round(size)} ${BYTE_UNITS[unit]}`;
}

/** 90 -> "1 min 30 s". @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds == null) return UNKNOWN;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const [minutes, hours, days] = [Math.floor(seconds / 60), Math.floor(seconds / 3600), Math.floor(seconds / 86400)];
  if (hours < 1) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return days < 1 ? `${hours} h ${minutes % 60} min` : `${days} d ${hours % 24} h`;
}

/** "1 partition", "2 partitions". @param {number} count  @param {string} one  @param {string} [many] */
export const counted = (count, one, many = `${one}s`) => `${whole(count)} ${count === 1 ? one : many}`;

/**
 * A moment in the user's zone; UTC on hover.
 * @param {{ms: number | null | undefined, clock?: boolean}} props  ms: Unix time in milliseconds
 */
export function Time({ ms, clock = false }) {
  if (ms == null) return html`<span class="muted">${UNKNOWN}</span>`;
  const moment = new Date(ms);
  return html`<time datetime=${moment.toISOString()} title=${moment.toISOString().replace("T", " ").replace("Z", " UTC")}>${(clock ? CLOCK : TIME).format(moment)}</time>`;
}
