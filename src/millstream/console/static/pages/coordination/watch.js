// @ts-check
/** What happens to an element and below it, as it happens. */
import { follow, queryOf } from "../../lib/api.js";
import { Time } from "../../lib/format.js";
import { html, useEffect, useState } from "../../lib/html.js";
import { Check } from "../../parts/form.js";
import { Badge } from "../../parts/states.js";
import { textOf } from "./asking.js";

const CHANGES_MAX = 100;

/** @param {{path: string}} props */
export function Watch({ path }) {
  const [isOn, setOn] = useState(false);
  const [isOpen, setOpen] = useState(false);
  const [changes, setChanges] = useState(/** @type {any[]} */ ([]));
  useEffect(() => {
    if (!isOn) return undefined;
    setChanges([]);
    return follow(`/_millstream/coordination/watch${queryOf({ path, scope: "TREE" })}`, {
      change: (change) => setChanges((old) => [change, ...old].slice(0, CHANGES_MAX)),
    }, setOpen);
  }, [isOn, path]);
  return html`<h3>Watch</h3>
    <${Check} label="Show what happens here and below" isOn=${isOn} onChange=${setOn} />
    ${isOn && html`<p role="status"><${Badge} kind=${isOpen ? "good" : "plain"}>${isOpen ? "watching" : "connecting"}</${Badge}></p>
      <ul class="changes" aria-live="polite">${changes.map((one) => html`<li key=${`${one.lsn} ${one.part}`}><${Time} ms=${one.time_ms} clock /> <strong>${one.op}</strong> <bdi>${one.path}</bdi>${one.data == null ? "" : html` <bdi class="mono">${textOf(one.data).slice(0, 200)}</bdi>`}</li>`)}</ul>`}`;
}
