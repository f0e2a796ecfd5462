// @ts-check
/** The sessions of clients in the system's group. */
import { useResource } from "../../lib/api.js";
import { html } from "../../lib/html.js";
import { Empty, Shown } from "../../parts/states.js";
import { Table } from "../../parts/table.js";
import { textOf } from "./asking.js";

/** @param {{say: import("./asking.js").Say}} props */
export function Sessions({ say }) {
  const found = useResource("sessions", { every: 3_000, read: () => say("SESSION", "LIST") });
  return html`<${Shown} of=${found} what="the sessions">${(/** @type {any} */ reply) => {
    const rows = Array.isArray(reply) ? reply.map((one) => (typeof one === "object" && one ? one : { client: one })) : [];
    if (!rows.length) return html`<${Empty} title="No sessions"><p>Clients that hold locks, ephemeral elements or subscriptions have a session.</p></${Empty}>`;
    const names = Object.keys(rows[0]);
    return html`<${Table} label="Sessions" rows=${rows} keyOf=${(/** @type {any} */ row) => textOf(row.client)} columns=${names.map((name) => ({
      name: name.replaceAll("_", " "), sort: (/** @type {any} */ row) => row[name], isNumber: typeof rows[0][name] === "number", show: (/** @type {any} */ row) => html`<code>${textOf(row[name])}</code>`,
    }))} />`;
  }}</${Shown}>`;
}
