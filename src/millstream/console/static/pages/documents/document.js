// @ts-check
/** One document: its content in an editor, its revisions as a tree, its attachments. */
import { ApiError, del, documentPath, queryOf, request, useResource } from "../../lib/api.js";
import { bytes } from "../../lib/format.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { contentOf, faultOf, parseExact, pretty, withMembers } from "../../lib/json.js";
import { go, linkTo } from "../../lib/routes.js";
import { Confirm } from "../../parts/dialog.js";
import { Editor } from "../../parts/editor.js";
import { Field, toast } from "../../parts/form.js";
import { Badge, Empty, ErrorBox, Shown } from "../../parts/states.js";
import { Attachments } from "./attachments.js";
import { saveAs } from "./export.js";
import { shortRevision } from "./list.js";
import { Revisions, winnerOf } from "./revisions.js";

/** Height of the editor in pixels: as many lines as the content has, within these. */
const [LOW_PX, HIGH_PX, LINE_PX] = [160, 380, 20];
/** Beyond this an editor is slow. */
const LARGE_CHARACTERS = 2 * 2 ** 20;
const NEW = "{\n  \n}";

/**
 * Read all leaves of a document, and one more revision if it is asked for and no leaf.
 * @param {string} bucket  @param {string} id  @param {string} revision  @param {AbortSignal} signal
 * @returns {Promise<{leaves: any[], other: any, known: Record<string, string>}>}  known: revision -> its status
 */
async function readDocument(bucket, id, revision, signal) {
  const path = documentPath(bucket, id);
  const ask = async (/** @type {Record<string, any>} */ query) =>
    parseExact(await request("GET", `${path}${queryOf(query)}`, { signal, as: "text", timeoutMs: 120_000 }));
  const leaves = (await ask({ open_revs: "all", revs: true })).filter((/** @type {any} */ one) => one.ok).map((/** @type {any} */ one) => one.ok);
  if (!leaves.length) throw new ApiError(404, "not_found", "There is no document of this id.");
  const winner = winnerOf(leaves);
  const infos = await ask({ revs_info: true, rev: winner._rev });
  const known = Object.fromEntries(infos._revs_info.map((/** @type {any} */ one) => [one.rev, one.status]));
  const isLeaf = !revision || leaves.some((/** @type {any} */ one) => one._rev === revision);
  return { leaves, known, other: isLeaf ? null : await ask({ rev: revision }) };
}

/** @param {{bucket: string, id: string, revision: string, canWrite: boolean}} props  id: "" for a new document; revision: "" for the winner */
export function Document({ bucket, id, revision, canWrite }) {
  const document = useResource(id ? documentPath(bucket, id) + revision : null, { read: (signal) => readDocument(bucket, id, revision, signal) });
  if (!id) return html`<${Create} bucket=${bucket} />`;
  if (document.error?.status === 404) {
    return html`<div class="panel"><${Empty} title=${document.error.message}><p><a href=${linkTo(["documents", bucket])}>Back to the documents of ${bucket}</a></p></${Empty}></div>`;
  }
  return html`<${Shown} of=${document} what="the document" rows=${8}>${(/** @type {any} */ { leaves, other, known }) => {
    const winner = winnerOf(leaves);
    const shown = other || leaves.find((/** @type {any} */ one) => one._rev === revision) || winner;
    const live = leaves.filter((/** @type {any} */ one) => !one._deleted);
    const isWinner = shown === winner;
    return html`
      <p><span class="mono wrap">${shown._rev}</span> <${State} shown=${shown} winner=${winner} leaves=${leaves} /></p>
      ${live.length > 1 && html`<p class="stale" role="status">This document has ${live.length} versions that were written apart. Choose one under Revisions.</p>`}
      <${Content} key=${shown._rev} bucket=${bucket} id=${id} shown=${shown} canSave=${canWrite && (isWinner || live.includes(shown))} onSaved=${(/** @type {string} */ saved) => (revision && saved ? go(["documents", bucket, "doc", id]) : document.refresh())} />
      <${Revisions} bucket=${bucket} id=${id} leaves=${leaves} known=${known} shown=${shown._rev} canWrite=${canWrite} onChanged=${document.refresh} />
      <${Attachments} bucket=${bucket} id=${id} shown=${shown} canChange=${canWrite && live.includes(shown)} onChanged=${document.refresh} />`;
  }}</${Shown}>`;
}

/** @param {{shown: any, winner: any, leaves: any[]}} props */
function State({ shown, winner, leaves }) {
  if (shown._deleted) return html`<${Badge} kind="plain">deleted</${Badge}>`;
  if (shown === winner) return html`<${Badge} kind="good">current</${Badge}>`;
  return leaves.includes(shown) ? html`<${Badge} kind="warn">conflict</${Badge}>` : html`<${Badge} kind="plain">old</${Badge}>`;
}

/** @param {{bucket: string}} props */
function Create({ bucket }) {
  const [id, setId] = useState("");
  return html`<${Field} label="Id" value=${id} onInput=${setId} placeholder="made by the console if it is empty" />
    <${Content} bucket=${bucket} id=${id} shown=${null} canSave onSaved=${(/** @type {string} */ _, /** @type {string} */ made) => go(["documents", bucket, "doc", made])} />`;
}

/**
 * The editor and what may be done with the content.
 * @param {object} props
 * @param {string} props.bucket
 * @param {string} props.id
 * @param {any} props.shown         null: a new document
 * @param {boolean} props.canSave
 * @param {(revision: string, id: string) => void} props.onSaved  revision "": it was deleted
 */
function Content({ bucket, id, shown, canSave, onSaved }) {
  const first = shown ? pretty(contentOf(shown)) : NEW;
  const [text, setText] = useState(first);
  const [isFast, setFast] = useState(false);
  const [isSaving, setSaving] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [theirs, setTheirs] = useState(/** @type {any} */ (null));
  const [isDeleting, setDeleting] = useState(false);
  const [isLargeAllowed, allowLarge] = useState(first.length <= LARGE_CHARACTERS);
  useEffect(() => {
    if (text === first) return undefined;
    const warn = (/** @type {BeforeUnloadEvent} */ event) => event.preventDefault();
    addEventListener("beforeunload", warn);
    return () => removeEventListener("beforeunload", warn);
  }, [text === first]);
  const fault = text === first ? "" : faultOf(text);
  const save = async (/** @type {string | undefined} */ revision) => {
    if (fault || !canSave || isSaving) return;
    setSaving(true);
    setError(null);
    const name = id || crypto.randomUUID().replaceAll("-", "");
    try {
      const body = withMembers(text, { _rev: revision, _attachments: shown?._attachments });
      const answer = await request("PUT", `${documentPath(bucket, name)}${queryOf({ batch: isFast ? "ok" : "" })}`, { body, type: "application/json" });
      toast(isFast ? "Accepted. It is written to disk soon." : "Saved, and on disk.");
      setTheirs(null);
      onSaved(answer.rev || "", name);
    } catch (failure) {
      if (/** @type {any} */ (failure).status === 409) setTheirs(await latest(bucket, name));
      else setError(failure);
    }
    setSaving(false);
  };
  const remove = async () => {
    await del(`${documentPath(bucket, id)}${queryOf({ rev: shown._rev })}`);
    toast("Deleted.");
    onSaved("", id);
  };
  const download = () => saveAs(new Blob([first], { type: "application/json" }), `${id.replace(/[^\w.-]+/g, "_")}.json`);
  if (!isLargeAllowed) {
    return html`<div class="panel"><${Empty} title=${`This document has ${bytes(first.length)}`}><p>An editor of this size may be slow.</p>
      <div class="row center"><button type="button" onClick=${download}>Download</button><button type="button" onClick=${() => allowLarge(true)}>Edit it all the same</button></div></${Empty}></div>`;
  }
  return html`<section class="panel">
    <${Editor} label="Content of the document" value=${first} onChange=${setText} onSave=${() => save(shown?._rev)} isReadOnly=${!canSave} height=${Math.min(HIGH_PX, Math.max(LOW_PX, (first.split("\n").length + 1) * LINE_PX))} />
    ${theirs ? html`<${Conflict} theirs=${theirs} mine=${text} onMine=${() => save(theirs._rev)} onTheirs=${() => (setTheirs(null), onSaved(theirs._rev || "", id))} />`
      : fault && html`<p class="stale" role="status">${fault}</p>`}
    ${error && html`<${ErrorBox} error=${error} doing="It was not saved." />`}
    ${canSave ? html`<div class="row last">
      <button type="button" class="primary" disabled=${Boolean(fault) || isSaving || (text === first && shown)} onClick=${() => save(shown?._rev)}>${isSaving ? "Saving" : "Save"}</button>
      <${Field} label="Durability" value=${isFast ? "fast" : ""} onInput=${(/** @type {string} */ value) => setFast(value === "fast")} choices=${[["", "answer once it is on disk"], ["fast", "answer at once, write soon"]]} />
      <span class="grow"></span>
      ${shown && !shown._deleted && html`<button type="button" onClick=${download}>Download</button><button type="button" class="danger" onClick=${() => setDeleting(true)}>Delete</button>`}
    </div>` : html`<p class="muted">It is only shown: this is an old revision, or you have no right to write here.</p>`}
    ${isDeleting && html`<${Confirm} title="Delete this document?" name=${id} action="Delete document" onSend=${remove} onClose=${() => setDeleting(false)}>
      <p>Readers of the stream see the deletion. Other versions of a conflict stay.</p></${Confirm}>`}
  </section>`;
}

/** Return the current revision of a document, or one that says that it is deleted. @param {string} bucket  @param {string} id */
async function latest(bucket, id) {
  try {
    return parseExact(await request("GET", documentPath(bucket, id), { as: "text" }));
  } catch (error) {
    return { _deleted: true, reason: /** @type {Error} */ (error).message };
  }
}

/** Somebody else was faster. @param {{theirs: any, mine: string, onMine: () => void, onTheirs: () => void}} props */
function Conflict({ theirs, mine, onMine, onTheirs }) {
  return html`<div class="conflict" role="alert">
    <p><strong>Somebody else changed this document meanwhile.</strong> Nothing was overwritten.</p>
    <div class="halves">
      <div><h3>Now in the database ${theirs._rev && html`<span class="mono muted">${shortRevision(theirs._rev)}</span>`}</h3><pre>${theirs._deleted ? "deleted" : pretty(contentOf(theirs))}</pre></div>
      <div><h3>Yours</h3><pre>${mine}</pre></div>
    </div>
    <div class="row last"><button type="button" onClick=${onTheirs}>Take theirs</button><button type="button" class="primary" onClick=${onMine}>Save mine over it</button></div>
  </div>`;
}

