// @ts-check
/** Security: the users of the node and what they may do. */
import { html } from "../lib/html.js";
import { Users } from "./security/users.js";

/** @param {import("../app.js").PageProps} props */
export default function Security({ session }) {
  return html`<h1>Security</h1><${Users} session=${session} />`;
}
