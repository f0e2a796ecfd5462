// @ts-check
/** Import of a file: preview of ids, then batches, one at a time, so that memory stays bounded. */
import { ApiError, pathOf, post, request } from "../../lib/api.js";
import { bytes, whole } from "../../lib/format.js";
import { html, useEffect, useRef, useState } from "../../lib/html.js";
import { linkTo } from "../../lib/routes.js";
import { Field } from "../../parts/form.js";
import { Badge, ErrorBox } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { freed, idOf, readerOf } from "./reading.js";

const [BATCH_DOCUMENTS, BATCH_CHARACTERS] = [1_000, 4 * 2 ** 20];
const [PREVIEW_BYTES, PREVIEW_ROWS, ERRORS_MAX] = [256 * 1024, 10, 100];
const [TRIES, PAUSE_MS] = [10, 1_000];

/**
 * @typedef {object} Progress
 * @property {number} read      bytes of the file
 * @property {number} written   documents
 * @property {number} existed   documents that were left as they are
 * @property {number} failed
 * @property {{id: string, reason: string}[]} errors  the first ones
 * @property {"running" | "done" | "stopped"} state
 */

/** @param {{bucket: string}} props */
export function Import({ bucket }) {
  const [file, setFile] = useState(/** @type {File | null} */ (null));
  const [documents, setDocuments] = useState(/** @type {any[]} */ ([]));
  const [template, setTemplate] = useState("");
  const [mode, setMode] = useState("leave");
  const [error, setError] = useState(/** @type {any} */ (null));
  const [progress, setProgress] = useState(/** @type {Progress | null} */ (null));
  const stop = useRef(/** @type {AbortController | null} */ (null));
  useEffect(() => () => stop.current?.abort(), []);
  const take = async (/** @type {File | undefined} */ one) => {
    if (!one) return;
    setError(null);
    setProgress(null);
    setFile(one);
    try {
      const first = await firstOf(one);
      const names = Object.keys(first[0] || {});
      setDocuments(first);
      setTemplate(["_id", "id", "key"].filter((name) => names.includes(name)).map((name) => `{${name}}`)[0] || "");
      if (!first.length) setError(new Error("The file has no documents."));
    } catch (failure) {
      setDocuments([]);
      setError(failure);
    }
  };
  const start = async () => {
    if (!file) return;
    stop.current = new AbortController();
    setError(null);
    await importFile(file, { bucket, template, replaces: mode === "replace", signal: stop.current.signal }, setProgress).catch((failure) => {
      setError(failure);
      setProgress((old) => old && { ...old, state: "stopped" });
    });
  };
  const isRunning = progress?.state === "running";
  return html`
    ${!isRunning && html`<${Drop} onFile=${take} />`}
    ${error && html`<${ErrorBox} error=${error} doing="The import failed." />`}
    ${file && documents.length > 0 && html`<section class="panel">
      <header><h2><bdi>${file.name}</bdi></h2><span class="muted">${bytes(file.size)}</span></header>
      <div class="row upper">
        <${Field} label="Id of each document" value=${template} onInput=${setTemplate} placeholder="made by the node" hint="Members stand in braces, as in flight:{carrier}:{number}." more=${{ disabled: isRunning }} />
        <${Field} label="Documents that exist" value=${mode} onInput=${setMode} choices=${[["leave", "leave as they are"], ["replace", "replace"]]} more=${{ disabled: isRunning }} />
        ${isRunning ? html`<button type="button" onClick=${() => stop.current?.abort()}>Stop</button>`
          : html`<button type="button" class="primary" onClick=${start}>Import into ${bucket}</button>`}
      </div>
      ${progress ? html`<${Told} progress=${progress} size=${file.size} bucket=${bucket} />` : html`<${Preview} documents=${documents} template=${template} />`}
    </section>`}`;
}

/** @param {{onFile: (file: File | undefined) => void}} props */
function Drop({ onFile }) {
  const [isOver, setOver] = useState(false);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const over = (/** @type {DragEvent} */ event) => (event.preventDefault(), setOver(true));
  const drop = (/** @type {DragEvent} */ event) => {
    event.preventDefault();
    setOver(false);
    onFile(event.dataTransfer?.files[0]);
  };
  return html`<div class=${isOver ? "drop over" : "drop"} onDragOver=${over} onDragLeave=${() => setOver(false)} onDrop=${drop}>
    <p>Drop a file here: CSV with names in its first line, a JSON array, or JSON lines.</p>
    <button type="button" onClick=${() => input.current?.click()}>Choose a file</button>
    <input ref=${input} type="file" hidden accept=".csv,.tsv,.json,.jsonl,.ndjson" aria-label="File to import" onChange=${(/** @type {any} */ event) => onFile(event.currentTarget.files[0])} />
  </div>`;
}

/** @param {{documents: any[], template: string}} props */
function Preview({ documents, template }) {
  const rows = documents.slice(0, PREVIEW_ROWS).map((document) => {
    try {
      return { document, id: idOf(template, document) ?? "made by the node", isGood: true };
    } catch (error) {
      return { document, id: `no id: ${/** @type {Error} */ (error).message}`, isGood: false };
    }
  });
  const columns = [
    { name: "Id", show: (/** @type {any} */ row) => (row.isGood ? html`<bdi class="mono">${row.id}</bdi>` : html`<${Badge} kind="bad">${row.id}</${Badge}>`) },
    { name: "Content", show: (/** @type {any} */ row) => html`<bdi class="mono">${JSON.stringify(row.document).slice(0, 200)}</bdi>` },
  ];
  return html`<h3>The first documents</h3><${Table} label="Preview" columns=${columns} rows=${rows} keyOf=${(/** @type {any} */ _, /** @type {number} */ at) => at} />`;
}

/** @param {{progress: Progress, size: number, bucket: string}} props */
function Told({ progress, size, bucket }) {
  const { read, written, existed, failed, errors, state } = progress;
  const columns = [
    { name: "Id", show: (/** @type {any} */ row) => html`<bdi class="mono">${row.id}</bdi>` },
    { name: "Why it was not written", show: (/** @type {any} */ row) => row.reason },
  ];
  return html`
    <progress max=${size} value=${state === "done" ? size : read} aria-label="Progress of the import"></progress>
    <p role="status">${state === "done" ? "Done: " : state === "stopped" ? "Stopped: " : ""}${whole(written)} written${existed ? `, ${whole(existed)} left as they were` : ""}${failed ? `, ${whole(failed)} failed` : ""}, ${bytes(read)} of ${bytes(size)}
      ${state !== "running" && html` <a href=${linkTo(["documents", bucket])}>Show the documents</a>`}</p>
    ${errors.length > 0 && html`<${Table} label="Documents that were not written" columns=${columns} rows=${errors} keyOf=${(/** @type {any} */ _, /** @type {number} */ at) => at} />`}`;
}

/** Return the first documents of a file. @param {File} file */
async function firstOf(file) {
  const reader = readerOf(file.name);
  const text = await file.slice(0, PREVIEW_BYTES).text();
  const found = reader(text);
  return file.size <= PREVIEW_BYTES ? [...found, ...reader(null)] : found;
}

/**
 * Read a file and write its documents.
 * @param {File} file
 * @param {{bucket: string, template: string, replaces: boolean, signal: AbortSignal}} how
 * @param {(progress: Progress) => void} onProgress
 */
export async function importFile(file, how, onProgress) {
  const reader = readerOf(file.name);
  /** @type {Progress} */
  let progress = { read: 0, written: 0, existed: 0, failed: 0, errors: [], state: "running" };
  /** @type {any[]} */
  let [batch, characters] = [[], 0];
  const fail = (/** @type {string} */ id, /** @type {string} */ reason) => {
    const errors = progress.errors.length < ERRORS_MAX ? [...progress.errors, { id, reason }] : progress.errors;
    progress = { ...progress, failed: progress.failed + 1, errors };
  };
  const flush = async () => {
    for (const [at, answer] of (await sent(batch, how)).entries()) {
      if (!answer.error) progress = { ...progress, written: progress.written + 1 };
      else if (answer.error === "conflict") progress = { ...progress, existed: progress.existed + 1 };
      else fail(answer.id ?? batch[at]._id ?? "", answer.reason || answer.error);
    }
    [batch, characters] = [[], 0];
    onProgress(progress);
  };
  const take = async (/** @type {Record<string, any>[]} */ documents) => {
    for (const document of documents) {
      try {
        batch.push(freed(document, idOf(how.template, document)));
      } catch (error) {
        fail(JSON.stringify(document).slice(0, 80), /** @type {Error} */ (error).message);
        continue;
      }
      characters += JSON.stringify(batch.at(-1)).length;
      if (batch.length >= BATCH_DOCUMENTS || characters >= BATCH_CHARACTERS) await flush();
    }
  };
  onProgress(progress);
  const decoder = new TextDecoder();
  const pieces = file.stream().getReader();
  for (let piece = await pieces.read(); !piece.done; piece = await pieces.read()) {
    if (how.signal.aborted) break;
    progress = { ...progress, read: progress.read + piece.value.length };
    await take(reader(decoder.decode(piece.value, { stream: true })));
  }
  if (!how.signal.aborted) await take([...reader(decoder.decode()), ...reader(null)]);
  await flush();
  onProgress({ ...progress, state: how.signal.aborted ? "stopped" : "done" });
}

/** Write a batch; a node that is not ready is asked again. @param {any[]} batch  @param {{bucket: string, replaces: boolean, signal: AbortSignal}} how */
async function sent(batch, { bucket, replaces, signal }) {
  if (!batch.length || signal.aborted) return [];
  const docs = replaces ? await withRevisions(bucket, batch) : batch;
  for (let tries = 1; ; tries += 1) {
    try {
      return await post(pathOf(bucket, "_bulk_docs"), { docs }, { timeoutMs: 120_000 });
    } catch (error) {
      if (!(error instanceof ApiError) || ![0, 503].includes(error.status) || tries === TRIES || signal.aborted) throw error;
      await new Promise((done) => setTimeout(done, PAUSE_MS));
    }
  }
}

/** Return documents with the revisions that they replace. @param {string} bucket  @param {any[]} batch */
async function withRevisions(bucket, batch) {
  const keys = batch.map((one) => one._id).filter((id) => id !== undefined);
  const { rows } = await request("POST", pathOf(bucket, "_all_docs"), { body: { keys } });
  const known = new Map(rows.filter((/** @type {any} */ row) => row.value && !row.value.deleted).map((/** @type {any} */ row) => [row.id, row.value.rev]));
  return batch.map((one) => (known.has(one._id) ? { ...one, _rev: known.get(one._id) } : one));
}
