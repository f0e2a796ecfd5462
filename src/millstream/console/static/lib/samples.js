// @ts-check
/** The figures of the last minutes, hours or the last day that the node keeps, and new ones as they come. */
import { follow, useResource } from "./api.js";
import { useEffect, useState } from "./html.js";

/**
 * @typedef {(number | null)[]} Values   null: not known
 * @typedef {Record<string, Values>} Series  name of a figure -> its values
 * @typedef {object} Samples
 * @property {number} interval_s
 * @property {number[]} times_s       seconds of Unix time
 * @property {Series} node
 * @property {Record<string, Series>} buckets
 */

/** Span in seconds -> its text, and milliseconds between two reads. @type {Record<string, [string, number]>} */
export const SPANS = { 300: ["5 minutes", 30_000], 3600: ["1 hour", 10_000], 86400: ["1 day", 60_000] };

/**
 * Return samples with one more at their end, and the oldest left out.
 * @param {Samples} old  @param {any} one  `{at_s, node, buckets}`, each figure a number or null
 * @returns {Samples}
 */
export function withSample(old, one) {
  const length = old.times_s.length;
  if (!length || one.at_s <= old.times_s[length - 1]) return old;
  const grown = (/** @type {Series} */ series = {}, /** @type {Record<string, number | null>} */ now = {}) =>
    Object.fromEntries([...new Set([...Object.keys(series), ...Object.keys(now)])].map((name) => [
      name, [...(series[name] || new Array(length).fill(null)).slice(1), now[name] ?? null],
    ]));
  const buckets = Object.keys(one.buckets).map((name) => [name, grown(old.buckets[name], one.buckets[name])]);
  return { ...old, times_s: [...old.times_s.slice(1), one.at_s], node: grown(old.node, one.node), buckets: Object.fromEntries(buckets) };
}

/**
 * Return the samples of a span, kept up to date.
 * @param {string} span  a key of SPANS
 * @returns {import("./api.js").Resource}  its data are Samples
 */
export function useSamples(span) {
  const resource = useResource(`/_millstream/samples?span=${span}`, { every: SPANS[span][1] });
  const [live, setLive] = useState(/** @type {{of: any, samples: Samples} | null} */ (null));
  useEffect(() => {
    if (span !== "300") return undefined;
    return follow("/_millstream/events?topics=samples", {
      sample: (one) => setLive((old) => old && { of: old.of, samples: withSample(old.samples, one) }),
    }, resource.refresh);
  }, [span]);
  useEffect(() => setLive(resource.data ? { of: resource.data, samples: resource.data } : null), [resource.data]);
  return live && live.of === resource.data ? { ...resource, data: live.samples } : resource;
}

/**
 * Return one series of several, value by value: null where none is known.
 * @param {(Values | undefined)[]} many  @param {(a: number, b: number) => number} [join]  default: the sum
 * @returns {Values}
 */
export function joined(many, join = (a, b) => a + b) {
  const given = many.filter((one) => one !== undefined);
  return (given[0] || []).map((_, at) => given.reduce((/** @type {number | null} */ sum, one) => {
    const value = one[at];
    return value == null ? sum : sum == null ? value : join(sum, value);
  }, null));
}

/** Return the newest value, or null. @param {Values | undefined} values */
export const newest = (values) => values?.at(-1) ?? null;
