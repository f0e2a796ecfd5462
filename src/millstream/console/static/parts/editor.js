// @ts-check
/**
 * An editor of JSON or JavaScript, by CodeMirror. It stands in a shadow tree: there its styles are
 * style sheets that a script made, which the Content-Security-Policy allows.
 */
import { EditorState, Compartment } from "../vendor/codemirror-state.js";
import { EditorView, keymap, lineNumbers, highlightActiveLine, drawSelection } from "../vendor/codemirror-view.js";
import { defaultKeymap, history, historyKeymap, indentWithTab } from "../vendor/codemirror-commands.js";
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentOnInput, syntaxHighlighting } from "../vendor/codemirror-language.js";
import { json, jsonParseLinter } from "../vendor/codemirror-lang-json.js";
import { javascript } from "../vendor/codemirror-lang-javascript.js";
import { linter, lintGutter } from "../vendor/codemirror-lint.js";
import { tags } from "../vendor/lezer-highlight.js";
import { html, useEffect, useRef } from "../lib/html.js";

const COLOURED = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--code-name)" },
  { tag: [tags.string, tags.regexp], color: "var(--code-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--code-number)" },
  { tag: [tags.keyword, tags.operatorKeyword, tags.controlKeyword], color: "var(--code-keyword)" },
  { tag: [tags.comment], color: "var(--text-soft)", fontStyle: "italic" },
]);

const THEME = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "var(--field)", fontSize: "13px", height: "100%" },
  "&.cm-focused": { outline: "2px solid var(--focus)", outlineOffset: "-2px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.5", overflow: "auto" },
  ".cm-content": { caretColor: "var(--text)" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "var(--soft)", color: "var(--text-soft)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "var(--hover)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--selection)" },
  ".cm-tooltip": { backgroundColor: "var(--panel)", color: "var(--text)", border: "1px solid var(--line)" },
});

/**
 * Typing over a selection. The browser would keep the colours of what it replaces by a style in the
 * page, which the Content-Security-Policy forbids.
 */
const REPLACE = EditorView.domEventHandlers({
  beforeinput: (/** @type {InputEvent} */ event, /** @type {any} */ view) => {
    if (event.inputType !== "insertText" || !event.data || event.isComposing || view.state.readOnly || view.state.selection.main.empty) return false;
    event.preventDefault();
    view.dispatch(view.state.replaceSelection(event.data), { userEvent: "input.type", scrollIntoView: true });
    return true;
  },
});

/**
 * @param {object} props
 * @param {string} props.label
 * @param {string} props.value             a new value replaces the text
 * @param {(text: string) => void} [props.onChange]
 * @param {"json" | "javascript" | "text"} [props.language]
 * @param {boolean} [props.isReadOnly]
 * @param {() => void} [props.onSave]      Ctrl-S or Cmd-S
 * @param {number} [props.height]          pixels, default 320
 */
export function Editor({ label, value, onChange, language = "json", isReadOnly = false, onSave, height = 320 }) {
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const view = useRef(/** @type {any} */ (null));
  const calls = useRef({ onChange, onSave });
  calls.current = { onChange, onSave };
  const writable = useRef(new Compartment());
  useEffect(() => {
    const place = box.current;
    if (!place) return undefined;
    const root = place.shadowRoot || place.attachShadow({ mode: "open" });
    const lines = [
      lineNumbers(), foldGutter(), history(), drawSelection(), indentOnInput(), bracketMatching(), highlightActiveLine(),
      syntaxHighlighting(COLOURED), THEME, REPLACE, EditorView.lineWrapping,
      keymap.of([{ key: "Mod-s", run: () => (calls.current.onSave?.(), true) }, ...defaultKeymap, ...historyKeymap, ...foldKeymap, indentWithTab]),
      writable.current.of([EditorState.readOnly.of(isReadOnly), EditorView.editable.of(!isReadOnly)]),
      EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
      EditorView.updateListener.of((/** @type {any} */ update) => update.docChanged && calls.current.onChange?.(update.state.doc.toString())),
    ];
    if (language === "json") lines.push(json(), linter((/** @type {any} */ one) => (one.state.doc.length ? jsonParseLinter()(one) : [])), lintGutter());
    if (language === "javascript") lines.push(javascript());
    view.current = new EditorView({ state: EditorState.create({ doc: value, extensions: lines }), parent: root, root });
    return () => {
      view.current.destroy();
      view.current = null;
    };
  }, [language, label]);
  useEffect(() => {
    const one = view.current;
    if (one && one.state.doc.toString() !== value) one.dispatch({ changes: { from: 0, to: one.state.doc.length, insert: value } });
  }, [value]);
  useEffect(() => {
    view.current?.dispatch({ effects: writable.current.reconfigure([EditorState.readOnly.of(isReadOnly), EditorView.editable.of(!isReadOnly)]) });
  }, [isReadOnly]);
  return html`<div class="editor" ref=${box} style=${{ height: `${height}px` }}></div>`;
}
