// @ts-check
/** Security: users and what they may do, failed log-ins, certificates. */
import { useResource } from "../lib/api.js";
import { counted, duration, Time, whole } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Badge, Empty, Shown } from "../parts/states.js";
import { Table } from "../parts/table.js";
import { Users } from "./security/users.js";

const DAY_MS = 86_400_000;
/** A certificate that ends sooner is shown in red, and sooner than three times that as a warning. */
const SOON_DAYS = 10;

/** @param {import("../app.js").PageProps} props */
export default function Security({ session }) {
  const security = useResource("/_millstream/security", { every: 10_000 });
  return html`<h1>Security</h1>
    <${Users} session=${session} />
    <section class="panel"><header><h2>Failed log-ins</h2></header>
      <${Shown} of=${security} what="failed log-ins">${(/** @type {any} */ { failed_logins }) => (failed_logins === null ? html`<p class="last">The node does not tell.</p>`
        : failed_logins.length ? html`<${Table} label="Failed log-ins" columns=${FAILED} rows=${failed_logins} keyOf=${(/** @type {any} */ one) => `${one.name} ${one.address}`} />`
        : html`<${Empty} title="No failed log-ins that the node remembers" />`)}</${Shown}></section>
    <section class="panel"><header><h2>Certificates</h2></header>
      <${Shown} of=${security} what="certificates">${(/** @type {any} */ { certificates, tokens }) => html`
        ${certificates.length ? html`<${Table} label="Certificates" columns=${CERTIFICATES} rows=${certificates} keyOf=${(/** @type {any} */ one) => `${one.listener} ${one.subject}`} />`
          : html`<${Empty} title="No certificates"><p>The listeners are not encrypted. <code>millstream serve --tls-cert</code> names a certificate.</p></${Empty}>`}
        <p class="muted">${tokens ? html`Tokens of <bdi class="mono">${tokens.issuer ?? "an issuer that is not named"}</bdi> are accepted for log-in.` : "No tokens are accepted for log-in."}</p>`}</${Shown}></section>`;
}

const FAILED = [
  { name: "Name", show: (/** @type {any} */ one) => html`<bdi>${one.name}</bdi>` },
  { name: "From", show: (/** @type {any} */ one) => html`<bdi class="mono">${one.address}</bdi>` },
  { name: "Times", isNumber: true, sort: (/** @type {any} */ one) => one.count, show: (/** @type {any} */ one) => whole(one.count) },
  { name: "Last", sort: (/** @type {any} */ one) => one.last_ms, show: (/** @type {any} */ one) => html`<${Time} ms=${one.last_ms} />` },
];
const CERTIFICATES = [
  { name: "Listener", show: (/** @type {any} */ one) => one.listener },
  { name: "Subject", show: (/** @type {any} */ one) => html`<bdi class="mono">${one.subject ?? "not shown"}</bdi>` },
  { name: "Ends", sort: (/** @type {any} */ one) => one.ends_ms, show: (/** @type {any} */ one) => html`<${Time} ms=${one.ends_ms} /> <${End} ms=${one.ends_ms} />` },
];

/** @param {{ms: number | null}} props */
function End({ ms }) {
  if (ms === null) return null;
  const left = ms - Date.now();
  if (left <= 0) return html`<${Badge} kind="bad">ended</${Badge}>`;
  const days = Math.floor(left / DAY_MS);
  return html`<${Badge} kind=${days < SOON_DAYS ? "bad" : days < 3 * SOON_DAYS ? "warn" : "good"}>in ${days ? counted(days, "day") : duration(left / 1000)}</${Badge}>`;
}
