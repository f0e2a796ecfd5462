// @ts-check
/** Users: add, change their rights or password, remove. */
import { del, get, pathOf, post, put, useResource } from "../../lib/api.js";
import { html, useState } from "../../lib/html.js";
import { Confirm, FormDialog } from "../../parts/dialog.js";
import { Check, Field, toast } from "../../parts/form.js";
import { Badge, Empty, Shown } from "../../parts/states.js";
import { Table } from "../../parts/table.js";

const ADMIN = "admin";
const ROLE = /^(read|write|stream|design):.+$|^group:.+$/s;
const RIGHTS = ["read", "write", "stream", "design"];

/** @param {{session: import("../../app.js").Session}} props */
export function Users({ session }) {
  const users = useResource("/_millstream/users", { every: 10_000 });
  const [open, setOpen] = useState(/** @type {{kind: string, user: any} | null} */ (null));
  const close = () => setOpen(null);
  const remove = async () => {
    await del(pathOf("_millstream", "users", open?.user.name));
    toast(`Removed the user ${open?.user.name}.`);
    users.refresh();
  };
  const columns = [
    { name: "Name", sort: (/** @type {any} */ one) => one.name, show: (/** @type {any} */ one) => html`<bdi>${one.name}</bdi>${one.name === session.name && html` <span class="muted">(you)</span>`}` },
    { name: "Roles", show: (/** @type {any} */ one) => (one.roles.length ? one.roles.map((/** @type {string} */ role) => html`<${Badge} kind=${role === ADMIN ? "warn" : "plain"}><bdi>${role}</bdi></${Badge}> `) : html`<span class="muted">no rights</span>`) },
    { name: "Actions", show: (/** @type {any} */ one) => html`<button type="button" aria-label=${`Change ${one.name}`} onClick=${() => setOpen({ kind: "change", user: one })}>Change</button>
      <button type="button" class="danger" aria-label=${`Remove ${one.name}`} onClick=${() => setOpen({ kind: "remove", user: one })}>Remove</button>` },
  ];
  return html`<section class="panel"><header><h2>Users</h2><span class="grow"></span><button type="button" class="primary" onClick=${() => setOpen({ kind: "add", user: null })}>Add user</button></header>
    <${Shown} of=${users} what="users">${(/** @type {any} */ data) => (data.users.length
      ? html`<${Table} label="Users" columns=${columns} rows=${data.users} keyOf=${(/** @type {any} */ one) => one.name} />`
      : html`<${Empty} title="No users"><p>Who reaches this node may do everything. Add the first user, an administrator: from then on everybody has to log in.</p></${Empty}>`)}
      </${Shown}>
    ${open?.kind === "remove" && html`<${Confirm} title="Remove this user?" name=${open.user.name} action="Remove user" onSend=${remove} onClose=${close}>
      <p>The user is logged out at once, on all connections.</p></${Confirm}>`}
    ${(open?.kind === "add" || open?.kind === "change") && html`<${UserDialog} user=${open.user} isFirst=${users.data?.users.length === 0} onClose=${close} onDone=${users.refresh} />`}
  </section>`;
}

/** @param {string} text  @returns {string[]} */
const rolesOf = (text) => text.split(/[\n,]/).map((one) => one.trim()).filter(Boolean);

/** @param {{user: any, isFirst: boolean, onClose: () => void, onDone: () => void}} props  user: null for a new one */
function UserDialog({ user, isFirst, onClose, onDone }) {
  const buckets = useResource("/_millstream/buckets");
  const before = user?.roles || [];
  const [name, setName] = useState(user?.name || "");
  const [password, setPassword] = useState("");
  const [isAdmin, setAdmin] = useState(isFirst || before.includes(ADMIN));
  const [text, setText] = useState(before.filter((/** @type {string} */ role) => role !== ADMIN).join(", "));
  const roles = rolesOf(text);
  const wrong = roles.find((role) => !ROLE.test(role));
  const send = async () => {
    const path = pathOf("_users", `org.couchdb.user:${name}`);
    // A document of a user may be changed without a new password; there administrators are called _admin.
    if (user) await put(path, { ...await get(path), roles: [...(isAdmin ? ["_admin"] : []), ...roles], password: password || undefined });
    else await post("/_millstream/users", { name, password, roles: [...(isAdmin ? [ADMIN] : []), ...roles] });
    toast(user ? `Changed the user ${name}.` : `Added the user ${name}.`);
    onDone();
    if (isFirst) location.reload();
  };
  const names = (buckets.data?.buckets || []).map((/** @type {any} */ one) => one.name);
  const example = names.find((/** @type {string} */ one) => !one.startsWith("_")) || "shop";
  return html`<${FormDialog} title=${user ? `Change ${name}` : "Add user"} action=${user ? "Change" : "Add"} onSend=${send} onClose=${onClose} canSend=${Boolean(name && (user || password)) && !wrong}>
    ${!user && html`<${Field} label="Name" value=${name} onInput=${setName} more=${{ autocomplete: "off" }} />`}
    <${Field} label=${user ? "New password" : "Password"} type="password" value=${password} onInput=${setPassword} more=${{ autocomplete: "new-password" }} placeholder=${user ? "as it is" : ""} />
    <${Check} label="Administrator: may do everything" isOn=${isAdmin} onChange=${setAdmin} hint=${isFirst ? "The first user has to be one." : ""} />
    <${Field} label="Rights" value=${text} onInput=${setText} placeholder=${`read:${example}, write:${example}`}
      hint=${wrong ? `${wrong} is no right. Write RIGHT:BUCKET with RIGHT one of ${RIGHTS.join(", ")}.` : `RIGHT:BUCKET with commas between them; RIGHT is one of ${RIGHTS.join(", ")}; * is any bucket. group:NAME names a group.`} />
  </${FormDialog}>`;
}
