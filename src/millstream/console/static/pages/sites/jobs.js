// @ts-check
/** The replications of this node: those of documents in `_replicator`, and those that only run. */
import { del, documentPath, get, pathOf, put, queryOf } from "../../lib/api.js";

const LIMIT = 1000;
/** The database whose documents are jobs. */
export const JOBS = "_replicator";
export const HIDDEN = "***";
/** A job that is paused is kept in a local document, which runs nothing: its id begins so. */
const PAUSED = "_local/paused:";

/**
 * @typedef {object} Job
 * @property {string} id
 * @property {string | null} doc_id   null: it is in no document, and ends with the node
 * @property {string | null} source   without passwords; null: its document does not say it well
 * @property {string | null} target
 * @property {string} state
 * @property {any} info               figures or the error; {}: not known
 * @property {number} crashes
 * @property {string} start_time
 * @property {any[]} history          newest first; [] after its end
 * @property {number} read_ms         when this was read
 * @property {number | null} rate     documents written per second; null: not known yet
 * @property {number} [paused_ms]     when it was paused
 *
 * @typedef {"good" | "warn" | "bad" | "plain"} Kind
 */

/** State -> its colour. @type {Record<string, Kind>} */
export const KINDS = { paused: "warn", running: "good", completed: "plain", pending: "plain", initializing: "plain", crashing: "bad", error: "bad", failed: "bad" };

/**
 * Read all jobs.
 * @param {AbortSignal} signal
 * @param {Map<string, Job>} before  what was read last, for rates
 * @returns {Promise<Job[]>}
 */
export async function readJobs(signal, before) {
  const limit = queryOf({ limit: LIMIT });
  const [{ docs }, { jobs }, paused] = await Promise.all([get(`/_scheduler/docs${limit}`, { signal }), get(`/_scheduler/jobs${limit}`, { signal }), readPaused(signal)]);
  const read_ms = Date.now();
  const running = new Map(jobs.map((/** @type {any} */ one) => [one.id, one]));
  const stored = docs.map((/** @type {any} */ doc) => {
    const job = running.get(doc.id);
    const isMine = job?.doc_id === doc.doc_id;
    return { ...doc, id: `${doc.doc_id}`, info: doc.info || {}, crashes: doc.error_count || 0, history: isMine ? job.history : [] };
  });
  const loose = jobs.filter((/** @type {any} */ one) => !one.doc_id).map((/** @type {any} */ one) => ({ ...one, info: one.info || {}, crashes: one.info?.crashes || 0 }));
  const ids = new Set(docs.map((/** @type {any} */ doc) => doc.doc_id));
  return [...stored, ...loose, ...paused.filter((/** @type {any} */ one) => !ids.has(one.doc_id))].map((job) => ({ ...job, read_ms, rate: rateOf(job, read_ms, before.get(job.id)) }));
}

/** @param {any} job  @param {number} now_ms  @param {Job | undefined} old */
function rateOf(job, now_ms, old) {
  const [now, then] = [job.info.docs_written, old?.info.docs_written];
  if (!old || job.state !== "running" || now === undefined || then === undefined || job.start_time !== old.start_time) return null;
  return Math.max(0, now - then) / Math.max(0.001, (now_ms - old.read_ms) / 1000);
}

/** Return how many changes a job has not replicated yet, or null. @param {Job} job @returns {number | null} */
export const lagOf = (job) => job.info.changes_pending ?? null;

/** Whether the name means a database of another node. @param {string} name */
export const isRemote = (name) => name.includes("://");

/** @param {AbortSignal} signal @returns {Promise<any[]>} */
async function readPaused(signal) {
  const range = queryOf({ include_docs: true, start_key: JSON.stringify(PAUSED), end_key: JSON.stringify(`${PAUSED}\uffff`), limit: LIMIT });
  const { rows } = await get(`${pathOf(JOBS, "_local_docs")}${range}`, { signal }).catch((error) => {
    if (error.status === 404) return { rows: [] };
    throw error;
  });
  return rows.map((/** @type {any} */ { id, doc }) => {
    const doc_id = id.slice(PAUSED.length);
    const [source, target] = [shownEnd(doc.job.source), shownEnd(doc.job.target)];
    return { id: doc_id, doc_id, source, target, state: "paused", info: {}, crashes: 0, history: [], start_time: "", paused_ms: doc.paused_ms };
  });
}

/** Return an end of a job as it is shown: without its password. @param {any} end  an address, a name, or an object with `url` */
export function shownEnd(end) {
  const address = typeof end === "string" ? end : end?.url ?? "";
  return address.replace(/^(\w+:\/\/[^/@:]*):[^/@]*@/, `$1:${HIDDEN}@`);
}

/** Keep a job in a local document, and remove the one that runs. Its checkpoints stay. @param {string} id  of its document */
export async function pause(id) {
  const { _id, _rev, ...job } = await get(documentPath(JOBS, id));
  await put(documentPath(JOBS, PAUSED + id), { job, paused_ms: Date.now() });
  await del(`${documentPath(JOBS, id)}?rev=${_rev}`);
}

/** Make the document of a paused job anew: it goes on from its last checkpoint. @param {string} id */
export async function resume(id) {
  const kept = await get(documentPath(JOBS, PAUSED + id));
  await put(documentPath(JOBS, id), kept.job);
  await forget(id);
}

/** Remove a paused job. @param {string} id */
export async function forget(id) {
  await del(documentPath(JOBS, PAUSED + id));
}
