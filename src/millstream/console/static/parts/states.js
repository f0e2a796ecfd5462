// @ts-check
/** Loading, empty and error states. Each says what to do next. */
import { html } from "../lib/html.js";

/** @param {{what?: string, rows?: number}} props */
export function Loading({ what = "", rows = 3 }) {
  return html`<div class="loading" role="status" aria-label=${`Loading ${what}`}>
    ${Array.from({ length: rows }, () => html`<div class="skeleton"></div>`)}
  </div>`;
}

/** Nothing is there, which is known. @param {{title: string, children?: any}} props */
export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children}</div>`;
}

const ADVICE = {
  401: "Log in and try again.",
  403: "Ask an administrator for the right.",
  404: "It may have been deleted meanwhile.",
  503: "The node is not ready for this. The page tries again by itself.",
};

/**
 * @param {{error: import("../lib/api.js").ApiError, onRetry?: () => void, doing?: string}} props
 *   doing: what failed, such as "The list could not be read."
 */
export function ErrorBox({ error, onRetry, doing = "" }) {
  const advice = ADVICE[/** @type {keyof typeof ADVICE} */ (error.status)];
  return html`<div class="error-box" role="alert">
    <p>${doing && html`<strong>${doing} </strong>`}${error.message}</p>
    ${advice && html`<p class="muted">${advice}</p>`}
    ${onRetry && html`<button type="button" onClick=${onRetry}>Try again</button>`}
  </div>`;
}

/**
 * Show a resource: its skeleton, its error, or its data; old data stay with a line that says so.
 * @param {{of: import("../lib/api.js").Resource, what?: string, rows?: number, children: (data: any) => any}} props
 */
export function Shown({ of, what = "", rows, children }) {
  const show = Array.isArray(children) ? children[0] : children;
  if (of.isLoading) return html`<${Loading} what=${what} rows=${rows} />`;
  if (of.data === undefined) {
    return html`<${ErrorBox} error=${of.error} onRetry=${of.refresh} doing=${what && `Reading ${what} failed.`} />`;
  }
  return html`${of.isStale && html`<p class="stale" role="status">Not up to date: ${of.error?.message}</p>`}${show(of.data)}`;
}

/** A coloured word for a state. @param {{kind: "good" | "warn" | "bad" | "plain", children: any, title?: string}} props */
export function Badge({ kind, children, title }) {
  return html`<span class=${`badge ${kind}`} title=${title}>${children}</span>`;
}
