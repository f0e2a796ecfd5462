// @ts-check
/**
 * Commands of coordination. They are said as the user, who is asked for the password once: a cookie
 * is not enough there. The password is kept while the page is open, and never stored.
 */
import { post } from "../../lib/api.js";
import { html, useMemo, useState } from "../../lib/html.js";
import { ErrorBox } from "../../parts/states.js";

/** Says a command; resolves with its reply. @typedef {(...words: string[]) => Promise<any>} Say */

/** One session of coordination for each page that is open: locks that it takes are its own. */
const SESSION = Math.random().toString(36).slice(2);

/** @param {string | null} name  @param {string} password  @returns {Say} */
export function useCoordination(name, password) {
  return useMemo(() => sayer(name, password), [name, password]);
}

/** @param {string | null} name  @param {string} password  @returns {Say} */
function sayer(name, password) {
  const bytes = new TextEncoder().encode(`${name}:${password}`);
  /** @type {Record<string, string>} */
  const headers = name ? { Authorization: `Basic ${btoa(String.fromCharCode(...bytes))}` } : {};
  return async (...words) => (await post("/_millstream/coordination/command", { words, session: SESSION }, { headers })).reply;
}

/** @param {{name: string, onPassword: (password: string) => void}} props */
export function PasswordForm({ name, onPassword }) {
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await sayer(name, typed)("PING");
      onPassword(typed);
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<form class="panel narrow" onSubmit=${send}>
    <p>Coordination checks who asks by itself. Type the password of <strong>${name}</strong> once more; it is kept until this page is closed.</p>
    <label class="field"><span>Password</span><input type="password" autocomplete="current-password" value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.currentTarget.value)} /></label>
    ${error && html`<${ErrorBox} error=${error} />`}
    <button class="primary" disabled=${!typed}>Go on</button>
  </form>`;
}

/** Return a reply as text. @param {any} reply */
export const textOf = (reply) => (reply === null ? "(nothing)" : typeof reply === "string" ? reply : JSON.stringify(reply, null, 2));
