// @ts-check
/** The replications of this node: those of documents in `_replicator`, and those that only run. */
import { get, queryOf } from "../../lib/api.js";

const LIMIT = 1000;

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
 *
 * @typedef {"good" | "warn" | "bad" | "plain"} Kind
 */

/** State -> its colour. @type {Record<string, Kind>} */
export const KINDS = { running: "good", completed: "plain", pending: "plain", initializing: "plain", crashing: "bad", error: "bad", failed: "bad" };

/**
 * Read all jobs.
 * @param {AbortSignal} signal
 * @param {Map<string, Job>} before  what was read last, for rates
 * @returns {Promise<Job[]>}
 */
export async function readJobs(signal, before) {
  const limit = queryOf({ limit: LIMIT });
  const [{ docs }, { jobs }] = await Promise.all([get(`/_scheduler/docs${limit}`, { signal }), get(`/_scheduler/jobs${limit}`, { signal })]);
  const read_ms = Date.now();
  const running = new Map(jobs.map((/** @type {any} */ one) => [one.id, one]));
  const stored = docs.map((/** @type {any} */ doc) => {
    const job = running.get(doc.id);
    const isMine = job?.doc_id === doc.doc_id;
    return { ...doc, id: `${doc.doc_id}`, info: doc.info || {}, crashes: doc.error_count || 0, history: isMine ? job.history : [] };
  });
  const loose = jobs.filter((/** @type {any} */ one) => !one.doc_id).map((/** @type {any} */ one) => ({ ...one, info: one.info || {}, crashes: one.info?.crashes || 0 }));
  return [...stored, ...loose].map((job) => ({ ...job, read_ms, rate: rateOf(job, read_ms, before.get(job.id)) }));
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
