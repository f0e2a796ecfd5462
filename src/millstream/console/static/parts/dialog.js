// @ts-check
/** Dialogs. What destroys something asks for the name of the thing. */
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { ErrorBox } from "./states.js";

/**
 * A window over the page, by the browser's own <dialog>: focus stays in it, Escape closes it. The
 * first field of its form has the focus.
 * @param {{title: string, onClose: () => void, children: any}} props
 */
export function Dialog({ title, onClose, children }) {
  const box = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    box.current?.showModal();
    /** @type {HTMLElement | null | undefined} */ (box.current?.querySelector("form :is(input, select, textarea, button)"))?.focus();
  }, []);
  return html`<dialog ref=${box} aria-label=${title} onClose=${onClose}>
    <header><h2>${title}</h2><button type="button" class="quiet" aria-label="Close" onClick=${() => box.current?.close()}>✕</button></header>
    ${children}
  </dialog>`;
}

/**
 * A form in a dialog: it sends, shows what is wrong, and closes once it was done.
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.action            word on the button
 * @param {() => Promise<void>} props.onSend
 * @param {() => void} props.onClose
 * @param {boolean} [props.isDangerous]
 * @param {boolean} [props.canSend]
 * @param {any} props.children
 */
export function FormDialog({ title, action, onSend, onClose, isDangerous = false, canSend = true, children }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isSending, setSending] = useState(false);
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setSending(true);
    setError(null);
    try {
      await onSend();
      onClose();
    } catch (failure) {
      setError(failure);
      setSending(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form onSubmit=${send}>
      ${children}
      ${error && html`<${ErrorBox} error=${error} />`}
      <footer>
        <button type="button" onClick=${onClose}>Cancel</button>
        <button class=${isDangerous ? "danger" : "primary"} disabled=${!canSend || isSending}>${isSending ? "Please wait" : action}</button>
      </footer>
    </form>
  </${Dialog}>`;
}

/**
 * Ask for the name of what is destroyed.
 * @param {object} props
 * @param {string} props.title
 * @param {string} props.name              what has to be typed
 * @param {string} props.action            word on the button, such as "Drop bucket"
 * @param {() => Promise<void>} props.onSend
 * @param {() => void} props.onClose
 * @param {any} props.children             what is lost
 */
export function Confirm({ title, name, action, onSend, onClose, children }) {
  const [typed, setTyped] = useState("");
  return html`<${FormDialog} title=${title} action=${action} onSend=${onSend} onClose=${onClose} isDangerous canSend=${typed === name}>
    ${children}
    <label class="field"><span>Type <strong class="name">${name}</strong> to confirm</span>
      <input value=${typed} autocomplete="off" spellcheck=${false} onInput=${(/** @type {any} */ event) => setTyped(event.currentTarget.value)} />
    </label>
  </${FormDialog}>`;
}
