// @ts-check
/** A shell: commands of coordination as they are typed, and their replies. */
import { html, useEffect, useRef, useState } from "../../lib/html.js";
import { textOf } from "./asking.js";

const LINES_MAX = 200;

/** What was said while the page is open. @type {{line: string, reply: string, isError: boolean}[]} */
let said = [];

/** Return the words of a line; quotes keep spaces. @param {string} line */
export function wordsOf(line) {
  return [...line.matchAll(/"((?:[^"\\]|\\.)*)"|'([^']*)'|(\S+)/g)].map(([, quoted, single, plain]) => (quoted !== undefined ? quoted.replace(/\\(.)/g, "$1") : single ?? plain));
}

/** @param {{say: import("./asking.js").Say}} props */
export function Shell({ say }) {
  const [lines, setLines] = useState(said);
  const [line, setLine] = useState("");
  const [isBusy, setBusy] = useState(false);
  const place = useRef(0);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    const words = wordsOf(line);
    if (!words.length) return;
    setBusy(true);
    const reply = await say(...words).then((found) => ({ reply: textOf(found), isError: false }), (error) => ({ reply: error.message, isError: true }));
    said = [...said, { line, ...reply }].slice(-LINES_MAX);
    setLines(said);
    setLine("");
    place.current = 0;
    setBusy(false);
  };
  const recall = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
    event.preventDefault();
    place.current = Math.max(0, Math.min(said.length, place.current + (event.key === "ArrowUp" ? 1 : -1)));
    setLine(place.current ? said[said.length - place.current].line : "");
  };
  return html`<section class="panel">
    <div class="shell" ref=${box} role="log" aria-label="Replies" tabindex="0">
      ${lines.length ? lines.map((one, number) => html`<div key=${number}><p class="said">› ${one.line}</p><pre class=${one.isError ? "failed" : ""} dir="auto">${one.reply}</pre></div>`)
        : html`<p class="muted">Type a command, such as <code>VDS /</code>, <code>LIST /app</code> or <code>LOCK WRITE /app/a</code>. Locks that are taken here are released when nothing was said for two minutes.</p>`}
    </div>
    <form class="row" onSubmit=${send}>
      <label class="field grow"><span>Command</span><input class="mono" value=${line} autocomplete="off" spellcheck=${false} onInput=${(/** @type {any} */ event) => setLine(event.currentTarget.value)} onKeyDown=${recall} /></label>
      <button class="primary" disabled=${isBusy || !line.trim()}>${isBusy ? "Please wait" : "Send"}</button>
    </form>
  </section>`;
}
