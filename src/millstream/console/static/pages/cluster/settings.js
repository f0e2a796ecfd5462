// @ts-check
/** Settings of the cluster: automatic fail-over, and how fast copies are moved. */
import { html, useState } from "../../lib/html.js";
import { Check, Field, toast } from "../../parts/form.js";
import { ErrorBox } from "../../parts/states.js";
import { ask } from "./actions.js";

/** Setting -> its label, and a hint. @type {Record<string, [string, string]>} */
const SWITCHES = {
  auto_failover: ["Fail over nodes by themselves", ""],
  auto_failover_zones: ["A zone counts as one node", "If all its nodes have failed."],
  auto_failover_allow_loss: ["Also if writes may be lost", "Those that no majority acknowledged."],
};
/** @type {Record<string, [string, string]>} */
const NUMBERS = {
  auto_failover_max: ["Nodes failed over until a reset", "1 to 100"],
  session_ttl_ms: ["Silence of a node before that, in ms", "600 to 600,000; more on busy machines"],
  replace_after_s: ["Seconds until copies of a failed node are built anew", "0: never"],
  moves: ["Copies built at a time, per node", "1 to 32"],
  disk_reserve_percent: ["Disk that stays free, in percent", "0 to 50"],
};
/** @type {Record<string, [string, string[]]>} */
const CHOICES = {
  isolation: ["A copy that hears no majority", ["stop", "read_only", "serve"]],
  rejoin: ["A failed node that comes back", ["auto", "manual"]],
};

/** @param {{settings: Record<string, any>, onChanged: () => void}} props */
export function Settings({ settings, onChanged }) {
  const [changes, setChanges] = useState(/** @type {Record<string, any>} */ ({}));
  const [error, setError] = useState(/** @type {any} */ (null));
  const set = (/** @type {string} */ name) => (/** @type {any} */ value) =>
    setChanges((old) => Object.fromEntries(Object.entries({ ...old, [name]: value }).filter(([one, now]) => now !== settings[one])));
  const value = (/** @type {string} */ name) => changes[name] ?? settings[name];
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await ask("settings", changes);
      toast("Settings changed.");
      setChanges({});
      setError(null);
      onChanged();
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<form class="panel" onSubmit=${send}><header><h2>Settings</h2></header>
    ${Object.entries(SWITCHES).map(([name, [label, hint]]) => html`<${Check} label=${label} hint=${hint} isOn=${value(name)} onChange=${set(name)} />`)}
    <div class="fields">
      ${Object.entries(NUMBERS).map(([name, [label, hint]]) => html`<${Field} label=${label} hint=${hint} type="number" value=${value(name)} onInput=${(/** @type {string} */ text) => set(name)(Number(text))} more=${{ min: 0, required: true }} />`)}
      ${Object.entries(CHOICES).map(([name, [label, choices]]) => html`<${Field} label=${label} value=${value(name)} onInput=${set(name)} choices=${choices} />`)}
    </div>
    ${error && html`<${ErrorBox} error=${error} />`}
    <div class="row last"><button class="primary" disabled=${!Object.keys(changes).length}>Save settings</button>
      ${Object.keys(changes).length > 0 && html`<button type="button" onClick=${() => setChanges({})}>Undo</button>`}</div>
  </form>`;
}
