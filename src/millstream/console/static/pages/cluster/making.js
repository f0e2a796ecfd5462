// @ts-check
/** A node without a cluster: make one of it, or join one. */
import { post } from "../../lib/api.js";
import { html, useState } from "../../lib/html.js";
import { Field, toast } from "../../parts/form.js";
import { ErrorBox } from "../../parts/states.js";

const TIMEOUT = { timeoutMs: 120_000 };
const ROLES = [["", "all: data, index, coordination"], ["data", "data"], ["data,index", "data, index"], ["index", "index"]];

/** @param {{onDone: () => void}} props */
export function Making({ onDone }) {
  const [name, setName] = useState("millstream");
  const [coordinators, setCoordinators] = useState("3");
  const [address, setAddress] = useState("");
  const [zone, setZone] = useState("");
  const [roles, setRoles] = useState("");
  const init = () => post("/_millstream/cluster/init", { name, coordinators: Number(coordinators) }, TIMEOUT);
  const join = () => post("/_millstream/cluster/join", { address, zone, ...(roles && { roles: roles.split(",") }) }, TIMEOUT);
  return html`<p>This node is in no cluster: it serves its buckets alone. In a cluster other nodes hold copies, take over when one dies, and share the load.</p>
    <div class="halves">
      <${Sending} title="Make a cluster of this node" action="Make the cluster" canSend=${Boolean(name)} send=${init} onDone=${onDone}>
        <p>Its buckets stay. No data moves and nothing restarts. Other nodes join afterwards.</p>
        <${Field} label="Name of the cluster" value=${name} onInput=${setName} />
        <${Field} label="Nodes that keep its state" value=${coordinators} onInput=${setCoordinators} choices=${["1", "3", "5", "7"]} hint="Of the nodes that join. A majority of them must live." />
      </${Sending}>
      <${Sending} title="Join a cluster" action="Join" canSend=${/:\d+$/.test(address)} send=${join} onDone=${onDone}>
        <p>This node must be empty. It holds nothing before the next rebalance of the cluster.</p>
        <${Field} label="HTTP address of a node of the cluster" value=${address} onInput=${setAddress} placeholder="10.0.0.1:5984" />
        <${Field} label="Zone" value=${zone} onInput=${setZone} hint="Copies are spread over zones, such as rooms. It may be empty." />
        <${Field} label="Roles" value=${roles} onInput=${setRoles} choices=${ROLES} />
      </${Sending}>
    </div>`;
}

/** @param {{title: string, action: string, canSend: boolean, send: () => Promise<any>, onDone: () => void, children: any}} props */
function Sending({ title, action, canSend, send, onDone, children }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isSending, setSending] = useState(false);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setSending(true);
    setError(null);
    try {
      const answer = await send();
      toast(`This node is ${answer.node} of the cluster ${answer.name}.`);
      onDone();
    } catch (failure) {
      setError(failure);
    }
    setSending(false);
  };
  return html`<form class="panel" onSubmit=${submit}><h2>${title}</h2>${children}
    ${error && html`<${ErrorBox} error=${error} />`}
    <button class="primary" disabled=${!canSend || isSending}>${isSending ? "Please wait" : action}</button></form>`;
}
