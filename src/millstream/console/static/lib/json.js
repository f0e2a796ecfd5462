// @ts-check
/**
 * JSON in which numbers keep their digits: 12345678901234567890 and 1.0 stay as they were written,
 * where the browser can do that.
 */

/** @type {any} */
const JSON_NOW = JSON;

/** @param {string} text  @returns {any} */
export function parseExact(text) {
  if (!JSON_NOW.rawJSON) return JSON.parse(text);
  return JSON_NOW.parse(text, (/** @type {string} */ _, /** @type {any} */ value, /** @type {any} */ context) =>
    typeof value === "number" && context && String(value) !== context.source ? JSON_NOW.rawJSON(context.source) : value,
  );
}

/** The members of a document that are its content, not its state in the database. @param {any} document */
export function contentOf(document) {
  return Object.fromEntries(Object.entries(document).filter(([name]) => !name.startsWith("_")));
}

/** @param {any} value */
export const pretty = (value) => JSON.stringify(value, null, 2);

/**
 * Return the text of a document: the content as it was typed, with other members before it.
 * @param {string} content  text of a JSON object
 * @param {Record<string, any>} members  such as `_rev`; undefined ones are left out
 */
export function withMembers(content, members) {
  const head = JSON.stringify(members).slice(1, -1);
  const rest = content.trim().slice(1, -1).trim();
  return `{${[head, rest].filter(Boolean).join(",")}}`;
}

/** Return what is wrong with the text of a document, or "". @param {string} content */
export function faultOf(content) {
  let value;
  try {
    value = JSON.parse(content);
  } catch (error) {
    return `This is no JSON: ${/** @type {Error} */ (error).message}.`;
  }
  if (value === null || typeof value !== "object" || Array.isArray(value)) return "A document is a JSON object: { … }.";
  const kept = Object.keys(value).find((name) => name.startsWith("_"));
  return kept ? `Members that begin with _ belong to the database: remove ${kept}.` : "";
}
