// @ts-check
/** Logs: the last lines of each process of this node, filtered, and new ones as they come. */
import { follow, queryOf, useResource } from "../lib/api.js";
import { Time } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { setQuery } from "../lib/routes.js";
import { Check, Field } from "../parts/form.js";
import { Badge, Empty, Shown } from "../parts/states.js";

const LINES_MAX = 2_000;
const LEVELS = ["info", "warning", "error"];
/** @type {Record<string, "bad" | "warn" | "plain">} */
const KINDS = { critical: "bad", error: "bad", warning: "warn" };

/**
 * @typedef {object} Line
 * @property {number} n
 * @property {number} at_ms
 * @property {string} process
 * @property {string} level
 * @property {string} logger
 * @property {string} text
 */

/** @param {import("../app.js").PageProps} props */
export default function Logs({ route }) {
  const { process = "", level = "info", text = "" } = route.query;
  const [isLive, setLive] = useState(true);
  const found = useResource(`/_millstream/logs${queryOf({ process, level, text })}`);
  return html`<h1>Logs</h1>
    <div class="row">
      <${Field} label="Process" value=${process} onInput=${(/** @type {string} */ value) => setQuery({ process: value })}
        choices=${[["", "all"], ...(found.data?.processes || []).map((/** @type {string} */ one) => [one, one])]} />
      <${Field} label="Level, at least" value=${level} choices=${LEVELS} onInput=${(/** @type {string} */ value) => setQuery({ level: value })} />
      <${Field} label="Text" value=${text} placeholder="part of a line" onInput=${(/** @type {string} */ value) => setQuery({ text: value })} />
      <${Check} label="New lines as they come" isOn=${isLive} onChange=${setLive} />
    </div>
    <${Shown} of=${found} what="the logs" rows=${10}>${(/** @type {any} */ data) => html`<${Lines} key=${`${process} ${level} ${text}`} first=${data.lines} isLive=${isLive}
      passes=${(/** @type {Line} */ line) => passes(line, process, level, text)} />`}</${Shown}>`;
}

/** @param {Line} line  @param {string} process  @param {string} level  @param {string} text */
function passes(line, process, level, text) {
  const wanted = text.toLowerCase();
  const height = LEVELS.indexOf(line.level);
  return (!process || line.process === process) && (height < 0 || height >= LEVELS.indexOf(level))
    && (!wanted || line.text.toLowerCase().includes(wanted) || line.logger.toLowerCase().includes(wanted));
}

/** @param {{first: Line[], isLive: boolean, passes: (line: Line) => boolean}} props */
function Lines({ first, isLive, passes: passesNow }) {
  const [lines, setLines] = useState(first);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const isAtEnd = useRef(true);
  useEffect(() => {
    if (!isLive) return undefined;
    return follow("/_millstream/events?topics=logs", {
      log: (line) => passesNow(line) && setLines((old) => (old.some((one) => one.n === line.n) ? old : [...old, line].slice(-LINES_MAX))),
    });
  }, [isLive]);
  useEffect(() => {
    if (box.current && isAtEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines.length]);
  if (!lines.length) return html`<${Empty} title="No lines"><p>Nothing was logged that passes the filter. Lines of level debug are not kept.</p></${Empty}>`;
  return html`<div class="log" ref=${box} tabindex="0" role="log" aria-label="Log lines"
      onScroll=${(/** @type {any} */ event) => (isAtEnd.current = event.currentTarget.scrollTop + event.currentTarget.clientHeight > event.currentTarget.scrollHeight - 40)}>
    ${lines.map((line) => html`<p key=${line.n} class=${`level-${line.level}`}>
      <span class="muted"><${Time} ms=${line.at_ms} clock /></span> <${Badge} kind=${KINDS[line.level] || "plain"}>${line.level}</${Badge}>${" "}
      <span class="muted">${line.process} · ${line.logger}</span>${" "}<span class="text">${line.text}</span></p>`)}
  </div>`;
}
