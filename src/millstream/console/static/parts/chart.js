// @ts-check
/** Series over time, and sparklines, by uPlot. Colours come from the style sheet. */
import vendored from "../vendor/uplot.js";
import { html, useEffect, useRef } from "../lib/html.js";

/** @type {any} */
const uPlot = vendored;

const COLOURS = ["--series-1", "--series-2", "--series-3", "--series-4", "--series-5", "--series-6"];

/** Steps between the names of an axis. */
const NAMED_STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000];

/**
 * Return a colour of the style sheet, as it is in the theme now: `rgb(..)`, which a canvas can draw.
 * @param {HTMLElement} place  @param {string} name  of a CSS variable
 */
function colour(place, name) {
  place.style.color = `var(${name})`;
  const found = getComputedStyle(place).color;
  place.style.color = "";
  return found;
}

/**
 * @typedef {object} Series
 * @property {string} name
 * @property {(number | null)[]} values  null: not known, drawn as a gap
 * @property {"line" | "bars"} [kind]
 */

/**
 * @param {object} props
 * @param {string} props.label       says what is drawn, for screen readers
 * @param {number[]} props.x         seconds of Unix time, or plain numbers
 * @param {Series[]} props.series
 * @param {(value: number) => string} [props.format]  of values, with their unit
 * @param {(string | number)[]} [props.names]   in place of times: names of x
 * @param {number} [props.height]    pixels
 * @param {boolean} [props.isSpark]  no axes, no legend
 */
export function Chart({ label, x, series, format = String, names, height = 200, isSpark = false }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const shape = JSON.stringify([series.map((one) => [one.name, one.kind]), Boolean(names), height, isSpark]);
  const formats = useRef(format);
  formats.current = format;
  const named = useRef(names);
  named.current = names;
  const data = [x, ...series.map((one) => one.values)];
  useEffect(() => {
    const place = box.current;
    if (!place) return undefined;
    const make = () => {
      plot.current?.destroy();
      plot.current = new uPlot(optionsOf(place, series, formats, named, height, isSpark), data, place);
    };
    make();
    const sized = new ResizeObserver(() => place.clientWidth && plot.current?.setSize({ width: place.clientWidth, height }));
    sized.observe(place);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", make);
    addEventListener("themechange", make);
    return () => {
      sized.disconnect();
      scheme.removeEventListener("change", make);
      removeEventListener("themechange", make);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape]);
  useEffect(() => plot.current?.setData(data), [x, ...series.map((one) => one.values)]);
  return html`<div class=${`chart ${isSpark ? "spark" : ""}`} role="img" aria-label=${label} ref=${box} style=${{ minHeight: `${height}px` }}></div>`;
}

function optionsOf(/** @type {HTMLElement} */ place, /** @type {Series[]} */ series, /** @type {any} */ formats, /** @type {any} */ named, /** @type {number} */ height, /** @type {boolean} */ isSpark) {
  const [text, grid] = [colour(place, "--text-soft"), colour(place, "--line")];
  const shown = (/** @type {any} */ _, /** @type {number | null} */ value) => (value == null ? "–" : formats.current(value));
  const isNamed = Boolean(named.current);
  const clock = (/** @type {number} */ seconds, isExact = true) => new Date(seconds * 1000).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: isExact ? "2-digit" : undefined });
  const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "12px system-ui" };
  return {
    width: place.clientWidth || 300,
    height,
    padding: isSpark ? undefined : [null, 36, null, null],
    legend: { show: !isSpark },
    cursor: { show: !isSpark, drag: { setScale: false } },
    scales: { x: isNamed ? { time: false, range: (/** @type {any} */ _, /** @type {number} */ first, /** @type {number} */ last) => [first - 0.5, last + 0.5] } : { time: true }, y: { range: (/** @type {any} */ _, /** @type {number} */ min, /** @type {number} */ max) => [Math.min(0, min ?? 0), (max || 1) * 1.05] } },
    axes: isSpark ? [{ show: false }, { show: false }] : [
      isNamed ? { ...axis, incrs: NAMED_STEPS, values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map((one) => (Number.isInteger(one) ? String(named.current?.[one] ?? "") : "")) }
        : { ...axis, values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map((one) => clock(one, (at[1] ?? 0) - at[0] < 60)) },
      { ...axis, size: 70, values: (/** @type {any} */ _, /** @type {number[]} */ at) => at.map((one) => formats.current(one)) },
    ],
    series: [
      isNamed ? { label: "group", value: (/** @type {any} */ _, /** @type {number | null} */ at) => (at == null ? "–" : String(named.current?.[at] ?? at)) }
        : { label: "Time", value: (/** @type {any} */ _, /** @type {number | null} */ at) => (at == null ? "–" : clock(at)) },
      ...series.map((one, number) => ({
        label: one.name,
        stroke: colour(place, COLOURS[number % COLOURS.length]),
        width: isSpark ? 1.5 : 2,
        fill: isSpark || one.kind === "bars" ? colour(place, COLOURS[number % COLOURS.length]).replace(/^rgb\((.*)\)$/, "rgba($1, 0.2)") : undefined,
        paths: one.kind === "bars" ? uPlot.paths.bars({ size: [0.7, 60] }) : undefined,
        points: { show: false },
        value: shown,
      })),
    ],
  };
}
