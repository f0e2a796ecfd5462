// @ts-check
/** Fields with labels, tabs, and short messages. */
import { html, useEffect, useState } from "../lib/html.js";
import { linkTo } from "../lib/routes.js";

/**
 * @param {object} props
 * @param {string} props.label
 * @param {string | number} props.value
 * @param {(value: string) => void} props.onInput
 * @param {string} [props.type]
 * @param {string} [props.hint]
 * @param {string} [props.placeholder]
 * @param {(string | [string, string])[]} [props.choices]  makes it a list: values, or [value, text]
 * @param {Record<string, any>} [props.more]     other attributes of the field
 */
export function Field({ label, value, onInput, type = "text", hint, placeholder, choices, more = {} }) {
  const take = (/** @type {any} */ event) => onInput(event.currentTarget.value);
  return html`<label class="field"><span>${label}</span>
    ${choices
      ? html`<select value=${value} onChange=${take} ...${more}>${choices.map((one) => html`<option value=${Array.isArray(one) ? one[0] : one}>${Array.isArray(one) ? one[1] : one}</option>`)}</select>`
      : html`<input type=${type} value=${value} placeholder=${placeholder} onInput=${take} autocomplete="off" spellcheck=${false} ...${more} />`}
    ${hint && html`<small>${hint}</small>`}
  </label>`;
}

/** @param {{label: string, isOn: boolean, onChange: (isOn: boolean) => void, hint?: string}} props */
export function Check({ label, isOn, onChange, hint }) {
  return html`<label class="check"><input type="checkbox" checked=${isOn} onChange=${(/** @type {any} */ event) => onChange(event.currentTarget.checked)} />
    <span>${label}</span>${hint && html`<small>${hint}</small>`}</label>`;
}

/**
 * Tabs that are addresses.
 * @param {{label: string, path: string[], tabs: [string, string][], now: string, query?: Record<string, string>}} props
 *   tabs: [last part of the address, text]
 */
export function Tabs({ label, path, tabs, now, query = {} }) {
  return html`<nav class="tabs" aria-label=${label}>${tabs.map(
    ([part, text]) => html`<a href=${linkTo([...path, part], query)} aria-current=${part === now ? "page" : undefined}>${text}</a>`,
  )}</nav>`;
}

/** A message that was told last. @type {((text: string, kind: string) => void) | null} */
let tell = null;

/** Show a short message at the edge of the page. @param {string} text  @param {"good" | "bad"} [kind] */
export function toast(text, kind = "good") {
  tell?.(text, kind);
}

/** Where short messages appear; once in the page. */
export function Toasts() {
  const [shown, setShown] = useState(/** @type {{text: string, kind: string} | null} */ (null));
  useEffect(() => {
    tell = (text, kind) => setShown({ text, kind });
    return () => void (tell = null);
  }, []);
  useEffect(() => {
    if (!shown) return undefined;
    const timer = setTimeout(() => setShown(null), 6_000);
    return () => clearTimeout(timer);
  }, [shown]);
  return html`<div class="toasts" role="status" aria-live="polite">${shown && html`<p class=${shown.kind}>${shown.text}</p>`}</div>`;
}
