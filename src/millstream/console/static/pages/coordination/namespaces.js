// @ts-check
/** Namespaces as a tree that is opened step by step, and one element in full. */
import { useResource } from "../../lib/api.js";
import { Time, whole } from "../../lib/format.js";
import { html, useState } from "../../lib/html.js";
import { linkTo } from "../../lib/routes.js";
import { Badge, Empty, ErrorBox, Loading, Shown } from "../../parts/states.js";
import { textOf } from "./asking.js";
import { Watch } from "./watch.js";

const NAMES_MAX = 500;

/** @typedef {import("./asking.js").Say} Say */

/** @param {{say: Say, path: string}} props */
export function Namespaces({ say, path }) {
  const roots = useResource("roots", { every: 10_000, read: async () => Object.keys(await say("VDS", "/")).sort() });
  return html`<div class="halves">
    <section class="panel"><header><h2>Namespaces</h2></header>
      <${Shown} of=${roots} what="the namespaces">${(/** @type {string[]} */ names) => (names.length
        ? html`<ul class="tree">${names.map((name) => html`<${Branch} key=${name} say=${say} path=${name} name=${name} chosen=${path} />`)}</ul>`
        : html`<${Empty} title="No namespaces yet"><p>Make one in the shell: <code>CREATENAMESPACE /app</code></p></${Empty}>`)}</${Shown}>
    </section>
    ${path ? html`<${Element} key=${path} say=${say} path=${path} />` : html`<section class="panel"><${Empty} title="Choose an element" /></section>`}
  </div>`;
}

/** @param {{say: Say, path: string, name: string, chosen: string}} props */
function Branch({ say, path, name, chosen }) {
  const [isOpen, setOpen] = useState(chosen.startsWith(`${path}/`));
  return html`<li>
    <button type="button" class="quiet" aria-expanded=${isOpen} aria-label=${`${isOpen ? "Close" : "Open"} ${path}`} onClick=${() => setOpen(!isOpen)}>${isOpen ? "▾" : "▸"}</button>
    <a href=${linkTo(["coordination", "tree"], { path })} aria-current=${path === chosen ? "true" : undefined}><bdi>${name}</bdi></a>
    ${isOpen && html`<${Children} say=${say} path=${path} chosen=${chosen} />`}
  </li>`;
}

/** @param {{say: Say, path: string, chosen: string}} props */
function Children({ say, path, chosen }) {
  const found = useResource(`children ${path}`, { every: 5_000, read: async () => {
    const [token, names] = await say("LIST", path, "COUNT", String(NAMES_MAX));
    return { names, isMore: token !== null && token !== "" && token !== "0" };
  } });
  if (found.isLoading) return html`<${Loading} rows=${1} />`;
  if (!found.data) return html`<${ErrorBox} error=${found.error} onRetry=${found.refresh} />`;
  const { names, isMore } = found.data;
  return html`<ul class="tree">${names.length ? names.map((/** @type {string} */ name) => html`<${Branch} key=${name} say=${say} path=${`${path}/${name}`} name=${name} chosen=${chosen} />`) : html`<li class="muted">no children</li>`}
    ${isMore && html`<li class="muted">the first ${NAMES_MAX}; list the others in the shell</li>`}</ul>`;
}

/** @param {{say: Say, path: string}} props */
function Element({ say, path }) {
  const found = useResource(`element ${path}`, { every: 3_000, read: () => readElement(say, path) });
  return html`<section class="panel"><header><h2><bdi>${path}</bdi></h2></header>
    <${Shown} of=${found} what="the element">${(/** @type {any} */ one) => (one.type === undefined ? html`
      <p><${Badge} kind="warn">locked</${Badge}> Somebody holds a write lock, so nobody else reads this element now.</p>
      <${Holders} held=${one.lock} />` : html`
      <dl class="facts">
        <dt>Type</dt><dd>${one.type}${one.flags.length ? `, ${one.flags.join(", ")}` : ""}</dd>
        <dt>Version</dt><dd><code>${one.version}</code>, made in <code>${one.created_version}</code></dd>
        <dt>Changed</dt><dd><${Time} ms=${one.ts} />${one.client && html` by <code>${one.client}</code>`}</dd>
        <dt>Children</dt><dd>${whole(one.nchildren)}</dd>
        ${one.owner_session && html`<dt>Lives as long as</dt><dd>session <code>${textOf(one.owner_session)}</code></dd>`}
        <dt>Rights</dt><dd>owner <bdi>${one.acl.owner || "nobody"}</bdi>, group <bdi>${one.acl.group || "none"}</bdi>, mode <code>${one.acl.mode}</code>${one.acl.entries.length ? html`, <code>${one.acl.entries.join(" ")}</code>` : ""}</dd>
      </dl>
      <h3>Data</h3><pre dir="auto">${textOf(one.data)}</pre>
      ${(one.lock || one.sync) && html`<h3>Holders and waiters</h3><${Holders} held=${one.lock || one.sync} />`}
      <h3>Configuration that applies</h3>
      <dl class="facts">${Object.entries(one.settings).map(([name, value]) => html`<dt><code>${name}</code></dt><dd>${textOf(value)}</dd>`)}</dl>
    `)}</${Shown}>
    <${Watch} path=${path} />
  </section>`;
}

/** Return all of an element; of a locked one only who holds it. @param {Say} say  @param {string} path */
async function readElement(say, path) {
  const lock = await say("LOCK", "INFO", path).catch(() => null);
  try {
    return { ...(await say("GET", path, "ATTR")), settings: await say("CONFIG", "GET", path, "*"), lock };
  } catch (error) {
    if (lock && /** @type {any} */ (error).code === "locked") return { lock };
    throw error;
  }
}

/** @param {{held: any}} props */
function Holders({ held }) {
  return html`<p>${held.kind}, ${held.state}${held.size == null ? "" : `, size ${held.size}`}</p>
    <table><thead><tr><th scope="col">Client</th><th scope="col">State</th><th scope="col">Mode</th><th scope="col">Token</th></tr></thead><tbody>
      ${held.holders.map((/** @type {any} */ one) => html`<tr><td><code>${one.client}</code></td><td>holds</td><td>${one.mode || ""}</td><td><code>${one.token || ""}</code></td></tr>`)}
      ${held.waiting.map((/** @type {any} */ one) => html`<tr><td><code>${one.client || textOf(one)}</code></td><td>waits</td><td>${one.mode || ""}</td><td></td></tr>`)}
    </tbody></table>`;
}
