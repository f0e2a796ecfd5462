// @ts-check
/**
 * Documents out of the text of a file, which comes in pieces: JSON, JSON lines, CSV.
 *
 * A reader is a function: it takes a piece of text, or null at the end, and returns the documents
 * that are complete. What it holds back is at most one value, which is limited.
 */
import { parseExact } from "../../lib/json.js";

/** Most characters of one document in a file. */
export const VALUE_CHARACTERS = 24 * 2 ** 20;

/** @typedef {(piece: string | null) => Record<string, any>[]} Reader */

/** Return a reader by the name of a file. @param {string} name  @returns {Reader} */
export const readerOf = (name) => (/\.(csv|tsv)$/i.test(name) ? csvReader() : jsonReader());

/** Read objects one after the other, or in one array; between them may be line ends, blanks, commas. @returns {Reader} */
export function jsonReader() {
  let [held, at, start, depth] = ["", 0, -1, 0];
  let [isText, isEscaped, isArray, isBegun] = [false, false, false, false];
  return (piece) => {
    /** @type {Record<string, any>[]} */
    const found = [];
    if (piece === null) {
      if (start >= 0) throw new Error("The file ends within a document.");
      return found;
    }
    held += piece;
    for (; at < held.length; at += 1) {
      const one = held.charCodeAt(at);
      if (isText) {
        if (isEscaped) isEscaped = false;
        else if (one === 92) isEscaped = true;
        else if (one === 34) isText = false;
      } else if (start >= 0) {
        if (one === 34) isText = true;
        else if (one === 123 || one === 91) depth += 1;
        else if ((one === 125 || one === 93) && (depth -= 1) === 0) {
          found.push(parseExact(held.slice(start, at + 1)));
          start = -1;
        }
      } else if (one === 123) [start, depth, isBegun] = [at, 1, true];
      else if (one === 91 && !isBegun) isArray = isBegun = true;
      else if (one === 93 && isArray) isArray = false;
      else if (!" \n\r\t,\uFEFF".includes(held[at])) {
        throw new Error(`Not a JSON object: ${held.slice(at, at + 40)}`);
      }
    }
    held = start >= 0 ? held.slice(start) : "";
    at = held.length;
    if (start >= 0) start = 0;
    if (held.length > VALUE_CHARACTERS) throw new Error("A document in the file has more than 24 MiB.");
    return found;
  };
}

/** Read rows with the names of members in the first one; numbers and true, false become such values. @returns {Reader} */
export function csvReader() {
  let [field, separator] = ["", ""];
  let [isQuoted, wasQuote] = [false, false];
  /** @type {string[]} */
  let row = [];
  /** @type {string[] | null} */
  let names = null;
  let head = "";
  return (piece) => {
    /** @type {Record<string, any>[]} */
    const found = [];
    const end = () => {
      row.push(field);
      field = "";
      if (names === null) names = row.map((name, at) => name.trim() || `column${at + 1}`);
      else if (row.length > 1 || row[0] !== "") found.push(Object.fromEntries(names.map((name, at) => [name, valueOf(row[at])]).filter(([, value]) => value !== undefined)));
      row = [];
    };
    let text = piece ?? (field || row.length || head ? "\n" : "");
    if (!separator) {
      head += text;
      if (!head.includes("\n")) return found;
      const first = head.slice(0, head.indexOf("\n"));
      separator = [",", ";", "\t", "|"].reduce((best, one) => (first.split(one).length > first.split(best).length ? one : best));
      [text, head] = [head.replace(/^\uFEFF/, ""), ""];
    }
    for (const one of text) {
      if (isQuoted && !wasQuote) {
        if (one === '"') wasQuote = true;
        else field += one;
        continue;
      }
      if (wasQuote && one === '"') [field, wasQuote] = [`${field}"`, false];
      else {
        if (wasQuote) [isQuoted, wasQuote] = [false, false];
        if (one === '"' && field === "") isQuoted = true;
        else if (one === separator) [row, field] = [[...row, field], ""];
        else if (one === "\n") end();
        else if (one !== "\r") field += one;
      }
      if (field.length > VALUE_CHARACTERS) throw new Error("A field has more than 24 MiB: is a quotation mark missing?");
    }
    if (piece === null && isQuoted) throw new Error("The file ends within a field: is a quotation mark missing?");
    return found;
  };
}

/** @param {string | undefined} text */
function valueOf(text) {
  if (text === undefined || text === "") return undefined;
  if (text === "true" || text === "false") return text === "true";
  return /^-?(0|[1-9]\d*)(\.\d+)?$/.test(text) ? parseExact(text) : text;
}

/**
 * Return the id of a document by a template such as `flight:{carrier}:{number}`.
 * @param {string} template  "": the node makes ids
 * @param {Record<string, any>} document
 * @returns {string | undefined}
 * @throws {Error} if the document lacks a member
 */
export function idOf(template, document) {
  if (!template) return undefined;
  return template.replace(/\{([^}]*)\}/g, (_, name) => {
    const value = document[name];
    if (value == null || value === "") throw new Error(`it has no member ${name}`);
    return typeof value === "string" ? value : JSON.stringify(value);
  });
}

/** Return a document as it is sent: without what belongs to the database it came from. */
export function freed(/** @type {Record<string, any>} */ document, /** @type {string | undefined} */ id) {
  const content = Object.fromEntries(Object.entries(document).filter(([name]) => !name.startsWith("_")));
  return id === undefined ? content : { _id: id, ...content };
}
