// @ts-check
/** Export of a bucket as JSON lines, page by page. */
import { pathOf, queryOf, request } from "../../lib/api.js";
import { parseExact } from "../../lib/json.js";
import { rangeOf } from "./list.js";

const PAGE_DOCUMENTS = 200;

/** Have the browser save data as a file. @param {Blob} data  @param {string} name */
export function saveAs(data, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(data);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/**
 * Save all documents of a bucket as a file with one document in a line.
 * What was read is kept as blobs, which browsers move to disk.
 * @param {string} bucket
 * @param {(written: number) => void} onProgress
 * @param {AbortSignal} signal
 * @returns {Promise<number>} how many
 */
export async function saveBucket(bucket, onProgress, signal) {
  /** @type {Blob[]} */
  const parts = [];
  let [written, size] = [0, PAGE_DOCUMENTS];
  /** @type {string | undefined} */
  let after;
  while (size === PAGE_DOCUMENTS) {
    const path = `${pathOf(bucket, "_all_docs")}${queryOf({ ...rangeOf({ full: "1" }, after), limit: PAGE_DOCUMENTS })}`;
    const text = await request("GET", path, { signal, as: "text", timeoutMs: 120_000 });
    const { rows } = parseExact(text);
    parts.push(new Blob(rows.map((/** @type {any} */ row) => `${JSON.stringify(row.doc)}\n`)));
    [size, written, after] = [rows.length, written + rows.length, rows.at(-1)?.id ?? after];
    onProgress(written);
  }
  saveAs(new Blob(parts, { type: "application/x-ndjson" }), `${bucket.replace(/[^\w.-]+/g, "_")}.jsonl`);
  return written;
}
