// @ts-check
/** Overview: health with reasons, what the node does now, its buckets, the last hour. */
import { html } from "../lib/html.js";

/** @param {import("../app.js").PageProps} _props */
export default function Overview(_props) {
  return html`<h1>Overview</h1>`;
}
