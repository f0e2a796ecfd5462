// @ts-check
/**
 * A table that shows any number of rows: only those in view are in the page.
 *
 * Rows have one height. Below `VIRTUAL_MIN` rows the table is a plain one, so that it grows with
 * its content and needs no scrolling of its own.
 */
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../lib/html.js";

const ROW_PX = 36;
const VIRTUAL_MIN = 100;
const MARGIN_ROWS = 10;

/**
 * @typedef {object} Column
 * @property {string} name       heading
 * @property {(row: any) => any} show
 * @property {(row: any) => any} [sort]   value by which a click on the heading sorts
 * @property {boolean} [isNumber]         aligned to the right
 * @property {string} [width]             CSS width
 */

/**
 * @param {object} props
 * @param {string} props.label             says what the table is, for screen readers
 * @param {Column[]} props.columns
 * @param {any[]} props.rows
 * @param {(row: any, index: number) => string | number} props.keyOf
 * @param {(row: any) => string | undefined} [props.linkOf]  where a click on the row goes
 * @param {(row: any) => boolean} [props.isChosen]
 * @param {() => void} [props.onEnd]       the last row is in view: more may be read
 * @param {number} [props.height]          of the scrolled part in pixels, default 560
 */
export function Table({ label, columns, rows, keyOf, linkOf, isChosen, onEnd, height = 560 }) {
  const [sorted, setSorted] = useState(/** @type {{column: number, isUp: boolean} | null} */ (null));
  const [top, setTop] = useState(0);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  const isVirtual = rows.length > VIRTUAL_MIN;
  /** @type {any[]} */
  const ordered = useMemo(() => (sorted ? inOrder(rows, columns[sorted.column], sorted.isUp) : rows), [rows, sorted, columns.length]);
  const first = isVirtual ? Math.max(0, Math.floor(top / ROW_PX) - MARGIN_ROWS) : 0;
  const count = isVirtual ? Math.ceil(height / ROW_PX) + 2 * MARGIN_ROWS : rows.length;
  const last = Math.min(ordered.length, first + count);
  useEffect(() => {
    if (onEnd && last >= ordered.length) onEnd();
  }, [last, ordered.length, onEnd]);
  useLayoutEffect(() => {
    if (box.current && !isVirtual) box.current.scrollTop = 0;
  }, [isVirtual]);
  const sortBy = (/** @type {number} */ column) =>
    setSorted((old) => (old?.column !== column ? { column, isUp: true } : old.isUp ? { column, isUp: false } : null));
  return html`<div class="table-box" ref=${box} tabindex="0" role="region" aria-label=${label}
      style=${isVirtual || onEnd ? { maxHeight: `${height}px` } : undefined}
      onScroll=${(/** @type {any} */ event) => setTop(event.currentTarget.scrollTop)}>
    <table aria-rowcount=${ordered.length + 1} class=${isVirtual ? "virtual" : ""}>
      <thead><tr>${columns.map(
        (column, number) => html`<th scope="col" class=${column.isNumber ? "number" : ""} style=${column.width ? { width: column.width } : undefined}
            aria-sort=${sorted?.column === number ? (sorted.isUp ? "ascending" : "descending") : undefined}>
          ${column.sort ? html`<button type="button" class="sort" onClick=${() => sortBy(number)}>${column.name}<span aria-hidden="true">${sorted?.column === number ? (sorted.isUp ? " ↑" : " ↓") : ""}</span></button>` : column.name}
        </th>`,
      )}</tr></thead>
      <tbody>
        ${first > 0 && html`<tr key="above" aria-hidden="true" class="space"><td colspan=${columns.length} style=${{ height: `${first * ROW_PX}px` }}></td></tr>`}
        ${ordered.slice(first, last).map((row, number) => {
          const link = linkOf?.(row);
          return html`<tr key=${keyOf(row, first + number)} aria-rowindex=${first + number + 2} class=${`${link ? "linked" : ""} ${isChosen?.(row) ? "chosen" : ""}`}
              onClick=${link ? (/** @type {any} */ event) => event.target.closest("a,button,input,label") || (location.hash = link) : undefined}>
            ${columns.map((column, index) => html`<td class=${column.isNumber ? "number" : ""}>${index === 0 && link ? html`<a href=${link}>${column.show(row)}</a>` : column.show(row)}</td>`)}
          </tr>`;
        })}
        ${last < ordered.length && html`<tr key="below" aria-hidden="true" class="space"><td colspan=${columns.length} style=${{ height: `${(ordered.length - last) * ROW_PX}px` }}></td></tr>`}
      </tbody>
    </table>
  </div>`;
}

/** @param {any[]} rows  @param {Column} column  @param {boolean} isUp */
function inOrder(rows, column, isUp) {
  const valued = rows.map((row) => ({ row, value: column.sort?.(row) }));
  const sign = isUp ? 1 : -1;
  valued.sort((a, b) => {
    if (a.value == null || b.value == null) return (a.value == null ? 1 : 0) - (b.value == null ? 1 : 0);
    return sign * (a.value < b.value ? -1 : a.value > b.value ? 1 : 0);
  });
  return valued.map(({ row }) => row);
}
