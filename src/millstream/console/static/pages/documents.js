// @ts-check
/** Documents: buckets; the documents of one; one document with its revisions and attachments. */
import { html } from "../lib/html.js";
import { may } from "../lib/rights.js";
import { linkTo } from "../lib/routes.js";
import { Buckets } from "./documents/buckets.js";
import { Document } from "./documents/document.js";
import { Import } from "./documents/import.js";
import { List } from "./documents/list.js";

/** `#/documents`, `#/documents/BUCKET`, `.../import`, `.../new`, `.../doc/ID`. @param {import("../app.js").PageProps} props */
export default function Documents({ route, session }) {
  const [bucket, kind, id] = route.parts;
  if (!bucket) return html`<h1>Documents</h1><${Buckets} session=${session} />`;
  const where = [["Documents", linkTo(["documents"])], [bucket, linkTo(["documents", bucket])]];
  const canWrite = may(session, "write", bucket);
  if ((kind === "import" || kind === "new") && !canWrite) {
    return html`<${Path} parts=${where} /><h1>Not allowed</h1><p>Ask an administrator for the right to write in ${bucket}.</p>`;
  }
  if (kind === "import") return html`<${Path} parts=${where} /><h1>Import</h1><${Import} bucket=${bucket} />`;
  if (kind === "new") return html`<${Path} parts=${where} /><h1>New document</h1><${Document} key="new" bucket=${bucket} id="" revision="" canWrite />`;
  if (kind === "doc" && id) {
    return html`<${Path} parts=${where} /><h1 class="name" dir="auto">${id}</h1>
      <${Document} key=${id} bucket=${bucket} id=${id} revision=${route.query.rev || ""} canWrite=${canWrite} />`;
  }
  return html`<${Path} parts=${where.slice(0, 1)} /><${List} key=${bucket} bucket=${bucket} query=${route.query} session=${session} />`;
}

/** @param {{parts: string[][]}} props */
function Path({ parts }) {
  return html`<nav class="path" aria-label="Path">${parts.map(([text, link]) => html`<a href=${link} dir="auto">${text}</a><span aria-hidden="true">/</span>`)}</nav>`;
}
