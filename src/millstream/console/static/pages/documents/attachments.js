// @ts-check
/** Attachments of a document: list, add, download, delete. */
import { del, documentPath, queryOf, request } from "../../lib/api.js";
import { bytes } from "../../lib/format.js";
import { html, useRef, useState } from "../../lib/html.js";
import { contentOf, pretty, withMembers } from "../../lib/json.js";
import { Confirm } from "../../parts/dialog.js";
import { toast } from "../../parts/form.js";
import { Table } from "../../parts/table.js";

/** Larger files are sent as they are, and not within the document: it has a limit of 64 MiB. */
const INLINE_BYTES = 32 * 2 ** 20;

/** @param {Blob} file  @returns {Promise<string>} */
function base64(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onload = () => done(String(reader.result).replace(/^[^,]*,?/, ""));
    reader.onerror = () => failed(reader.error);
    reader.readAsDataURL(file);
  });
}

/** @param {{bucket: string, id: string, shown: any, canChange: boolean, onChanged: () => void}} props */
export function Attachments({ bucket, id, shown, canChange, onChanged }) {
  const [leaving, setLeaving] = useState("");
  const [isBusy, setBusy] = useState(false);
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const pathTo = (/** @type {string} */ name) => `${documentPath(bucket, id)}/${encodeURIComponent(name)}`;
  const rows = Object.entries(shown._attachments || {}).map(([name, stub]) => ({ name, ...stub }));
  const add = async (/** @type {File} */ file) => {
    setBusy(true);
    try {
      const type = file.type || "application/octet-stream";
      if (file.size > INLINE_BYTES) {
        await request("PUT", `${pathTo(file.name)}${queryOf({ rev: shown._rev })}`, { body: file, type, timeoutMs: 600_000 });
      } else {
        const _attachments = { ...shown._attachments, [file.name]: { content_type: type, data: await base64(file) } };
        const body = withMembers(pretty(contentOf(shown)), { _rev: shown._rev, _attachments });
        await request("PUT", documentPath(bucket, id), { body, type: "application/json", timeoutMs: 120_000 });
      }
      toast(`Added ${file.name}.`);
      onChanged();
    } catch (error) {
      toast(/** @type {Error} */ (error).message, "bad");
    }
    setBusy(false);
  };
  const remove = async () => {
    await del(`${pathTo(leaving)}${queryOf({ rev: shown._rev })}`);
    toast(`Deleted ${leaving}.`);
    onChanged();
  };
  const columns = [
    { name: "Name", show: (/** @type {any} */ row) => html`<a href=${`${pathTo(row.name)}${queryOf({ rev: shown._rev })}`} download=${row.name}><bdi>${row.name}</bdi></a>` },
    { name: "Type", show: (/** @type {any} */ row) => row.content_type },
    { name: "Size", isNumber: true, show: (/** @type {any} */ row) => bytes(row.length) },
    { name: "Since generation", isNumber: true, show: (/** @type {any} */ row) => row.revpos },
    ...(canChange ? [{ name: "Change", show: (/** @type {any} */ row) => html`<button type="button" onClick=${() => setLeaving(row.name)}>Delete</button>` }] : []),
  ];
  return html`<section class="panel">
    <header><h2>Attachments</h2><span class="grow"></span>
      ${canChange && html`<button type="button" disabled=${isBusy} onClick=${() => input.current?.click()}>${isBusy ? "Sending" : "Add a file"}</button>
      <input ref=${input} type="file" hidden aria-label="File to attach" onChange=${(/** @type {any} */ event) => event.currentTarget.files[0] && add(event.currentTarget.files[0])} />`}
    </header>
    ${rows.length ? html`<${Table} label="Attachments" columns=${columns} rows=${rows} keyOf=${(/** @type {any} */ row) => row.name} />` : html`<p class="muted">None.</p>`}
    ${leaving && html`<${Confirm} title="Delete this attachment?" name=${leaving} action="Delete attachment" onSend=${remove} onClose=${() => setLeaving("")}><p>The document gets a new revision without it.</p></${Confirm}>`}
  </section>`;
}
