// @ts-check
/**
 * The address of what is shown: `#/PAGE/PART/PART?NAME=VALUE`. An address reproduces the view.
 */
import { useEffect, useState } from "./html.js";

/**
 * @typedef {object} Route
 * @property {string} page    first part; "overview" if there is none
 * @property {string[]} parts the other parts, decoded
 * @property {Record<string, string>} query
 */

/** @param {string} hash  @returns {Route} */
export function routeOf(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  const [page, ...parts] = path.split("/").filter(Boolean).map(decoded);
  return { page: page || "overview", parts, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** @param {string} text  @returns {string} the text, or itself if it is not encoded well */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * Return an address.
 * @param {string[]} path  page and parts, not encoded
 * @param {Record<string, string | number | undefined | null>} [query]  empty values are left out
 */
export function linkTo(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${text && `?${text}`}`;
}

/** @param {string[]} path  @param {Record<string, string | number | undefined | null>} [query] */
export function go(path, query = {}) {
  location.hash = linkTo(path, query);
}

/**
 * Change some parameters of the present address. No new entry of the browser's history is made.
 * @param {Record<string, string | number | undefined | null>} changes  empty values are removed
 */
export function setQuery(changes) {
  const { page, parts, query } = routeOf(location.hash);
  history.replaceState(null, "", linkTo([page, ...parts], { ...query, ...changes }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Return the route of the present address, and follow it. @returns {Route} */
export function useRoute() {
  const [route, setRoute] = useState(() => routeOf(location.hash));
  useEffect(() => {
    const follow = () => setRoute(routeOf(location.hash));
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}
