// @ts-check
/**
 * Requests to the node. Every call has a time limit; an error says whose fault it is.
 *
 * `useResource` reads an address again and again while its component is shown. After a failure it
 * keeps what was read last, says so (`error`, `isStale`), and goes on trying, so that a page
 * survives a restart of the node.
 */
import { useCallback, useEffect, useRef, useState } from "./html.js";

const TIMEOUT_MS = 30_000;
const RETRY_MS = 2_000;

/** A request that did not succeed. */
export class ApiError extends Error {
  /**
   * @param {number} status  0: the node did not answer
   * @param {string} code    the member `error` of the answer
   * @param {string} reason  a sentence for people
   */
  constructor(status, code, reason) {
    super(reason);
    this.status = status;
    this.code = code;
  }
}

/** What a log-in is needed for calls these. @type {Set<() => void>} */
const loggedOut = new Set();

/** @param {() => void} listener  called if the node asks for a log-in */
export function onLoggedOut(listener) {
  loggedOut.add(listener);
  return () => void loggedOut.delete(listener);
}

/** The token against requests of other sites, by `GET /_session`. */
let csrfToken = "";

/** @param {string | undefined} token */
export function setCsrfToken(token) {
  csrfToken = token || "";
}

/**
 * @typedef {object} Options
 * @property {any} [body]          sent as JSON; a Blob or string with `type` as it is
 * @property {string} [type]       content type of a body that is no JSON
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 * @property {number} [timeoutMs]  default 30 s
 * @property {"json" | "text" | "blob" | "response"} [as]  default "json"
 */

/**
 * Send a request; return its answer, by default decoded from JSON.
 * @param {string} method
 * @param {string} path    absolute; parts by `pathOf`
 * @param {Options} [options]
 * @returns {Promise<any>}
 * @throws {ApiError}
 */
export async function request(method, path, options = {}) {
  const { body, type, headers = {}, signal, timeoutMs = TIMEOUT_MS, as = "json" } = options;
  const limit = AbortSignal.timeout(timeoutMs);
  /** @type {Record<string, string>} */
  const sent = { Accept: "application/json", ...headers };
  if (body !== undefined) sent["Content-Type"] = type || "application/json";
  if (method !== "GET" && csrfToken) sent["X-CSRF-Token"] = csrfToken;
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers: sent,
      body: body === undefined ? undefined : type ? body : JSON.stringify(body),
      signal: signal ? AbortSignal.any([signal, limit]) : limit,
      credentials: "same-origin",
      cache: "no-store",
    });
    if (answer.ok) return as === "response" ? answer : await answer[as]();
  } catch (error) {
    if (signal?.aborted) throw error;
    const reason = limit.aborted
      ? `The node did not answer within ${timeoutMs / 1000} s.`
      : "The node does not answer. Is it running? This page tries again by itself.";
    throw new ApiError(0, "no_answer", reason);
  }
  const told = await answer.json().catch(() => ({}));
  if (answer.status === 401) loggedOut.forEach((listener) => listener());
  const reason = told.reason || `The node answered with status ${answer.status}.`;
  throw new ApiError(answer.status, told.error || String(answer.status), reason);
}

/** @param {string} path  @param {Options} [options] */
export const get = (path, options) => request("GET", path, options);
/** @param {string} path  @param {any} [body]  @param {Options} [options] */
export const post = (path, body, options) => request("POST", path, { body: body ?? {}, ...options });
/** @param {string} path  @param {any} [body]  @param {Options} [options] */
export const put = (path, body, options) => request("PUT", path, { body: body ?? {}, ...options });
/** @param {string} path  @param {Options} [options] */
export const del = (path, options) => request("DELETE", path, options);

/** Return an absolute path of parts that are not encoded yet. @param {(string | number)[]} parts */
export function pathOf(...parts) {
  return `/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

/** Return a path of a document: `_design/` and `_local/` keep their slash. */
export function documentPath(/** @type {string} */ bucket, /** @type {string} */ id) {
  const found = /^(_design|_local)\/(.+)$/s.exec(id);
  return found ? pathOf(bucket, found[1], found[2]) : pathOf(bucket, id);
}

/** Return `?a=1&b=2` of what is given; empty values are left out. */
export function queryOf(/** @type {Record<string, any>} */ values) {
  const given = Object.entries(values).filter(([, value]) => value != null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return text && `?${text}`;
}

/**
 * @typedef {object} Resource
 * @property {any} data       undefined until it was read once
 * @property {ApiError | null} error   of the last try
 * @property {boolean} isLoading       nothing was read yet
 * @property {boolean} isStale         `data` is older than the last try, which failed
 * @property {() => void} refresh      read again now
 */

/**
 * Read an address while the component is shown.
 * @param {string | null} path     null: nothing yet
 * @param {{every?: number, read?: (signal: AbortSignal) => Promise<any>}} [options]
 *   every: milliseconds between reads, 0: once. read: in place of one GET; `path` is then its key.
 * @returns {Resource}
 */
export function useResource(path, { every = 0, read } = {}) {
  const [state, setState] = useState(/** @type {{path: string | null, data: any, error: ApiError | null}} */ ({ path, data: undefined, error: null }));
  const again = useRef(() => {});
  const reading = useRef(read);
  reading.current = read;
  useEffect(() => {
    if (path === null) return undefined;
    const stop = new AbortController();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    let turn = 0;
    const step = async () => {
      clearTimeout(timer);
      const mine = ++turn;
      let pause = every;
      try {
        const one = reading.current;
        const data = await (one ? one(stop.signal) : get(path, { signal: stop.signal }));
        if (!stop.signal.aborted && mine === turn) setState({ path, data, error: null });
      } catch (error) {
        if (stop.signal.aborted || mine !== turn) return;
        const told = error instanceof ApiError ? error : new ApiError(-1, "console_error", String(error));
        setState((old) => ({ path, data: old.path === path ? old.data : undefined, error: told }));
        if (told.status === 0 || told.status === 503) pause = RETRY_MS;
      }
      if (pause && mine === turn && !stop.signal.aborted) timer = setTimeout(step, document.hidden ? Math.max(pause, 10_000) : pause);
    };
    again.current = () => void step();
    void step();
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [path, every]);
  const refresh = useCallback(() => again.current(), []);
  const mine = state.path === path ? state : { data: undefined, error: null };
  return {
    data: mine.data,
    error: mine.error,
    isLoading: mine.data === undefined && !mine.error,
    isStale: mine.data !== undefined && Boolean(mine.error),
    refresh,
  };
}

/**
 * Follow server-sent events, while the page is visible: browsers have few connections to one host.
 * The browser connects again by itself; `onState` tells.
 * @param {string} path
 * @param {Record<string, (data: any) => void>} handlers  event name -> what takes its JSON
 * @param {(isOpen: boolean) => void} [onState]
 * @returns {() => void} ends it
 */
export function follow(path, handlers, onState = () => {}) {
  /** @type {EventSource | undefined} */
  let source;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const close = () => {
    clearTimeout(timer);
    source?.close();
  };
  const open = () => {
    close();
    if (document.hidden) return;
    const mine = new EventSource(path);
    source = mine;
    source.onopen = () => onState(true);
    source.onerror = () => {
      onState(false);
      if (mine.readyState === EventSource.CLOSED) timer = setTimeout(open, RETRY_MS);
    };
    for (const [name, take] of Object.entries(handlers)) {
      source.addEventListener(name, (event) => take(JSON.parse(/** @type {MessageEvent} */ (event).data)));
    }
  };
  open();
  document.addEventListener("visibilitychange", open);
  return () => {
    document.removeEventListener("visibilitychange", open);
    close();
  };
}
