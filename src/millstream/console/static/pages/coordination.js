// @ts-check
/** Coordination: groups and their members, namespaces as a tree, sessions, and a shell. */
import { html, useState } from "../lib/html.js";
import { Tabs } from "../parts/form.js";
import { PasswordForm, useCoordination } from "./coordination/asking.js";
import { Groups } from "./coordination/groups.js";
import { Namespaces } from "./coordination/namespaces.js";
import { Sessions } from "./coordination/sessions.js";
import { Shell } from "./coordination/shell.js";

/** @type {[string, string][]} */
const TABS = [["groups", "Groups"], ["tree", "Namespaces"], ["sessions", "Sessions"], ["shell", "Shell"]];

/** @param {import("../app.js").PageProps} props */
export default function Coordination({ route, session }) {
  const [password, setPassword] = useState("");
  const say = useCoordination(session.name, password);
  const tab = route.parts[0] || "groups";
  return html`<h1>Coordination</h1>
    <${Tabs} label="Views of coordination" path=${["coordination"]} tabs=${TABS} now=${tab} />
    ${session.name && !password ? html`<${PasswordForm} name=${session.name} onPassword=${setPassword} />`
      : tab === "tree" ? html`<${Namespaces} say=${say} path=${route.query.path || ""} />`
      : tab === "sessions" ? html`<${Sessions} say=${say} />`
      : tab === "shell" ? html`<${Shell} say=${say} />`
      : html`<${Groups} say=${say} />`}`;
}
