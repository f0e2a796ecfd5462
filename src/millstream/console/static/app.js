// @ts-check
/** The console: its frame, its menu, log-in, and which page is shown. Pages are loaded when asked for. */
import { get, onLoggedOut, post, request, setCsrfToken, useResource } from "./lib/api.js";
import { html, render, useEffect, useErrorBoundary, useState } from "./lib/html.js";
import { linkTo, useRoute } from "./lib/routes.js";
import { Toasts } from "./parts/form.js";
import { Badge, ErrorBox, Loading } from "./parts/states.js";

/**
 * @typedef {object} Session
 * @property {string | null} name    null: nobody is logged in, or the node has no users
 * @property {string[]} roles
 * @property {boolean} isAdmin
 * @property {boolean} isOpen        the node has no users
 *
 * @typedef {{route: import("./lib/routes.js").Route, session: Session}} PageProps
 */

/** Address -> [text of the menu, whether only administrators have it]. @type {Record<string, [string, boolean]>} */
const PAGES = {
  overview: ["Overview", false],
  cluster: ["Cluster", true],
  documents: ["Documents", false],
  query: ["Query", false],
  streams: ["Streams", true],
  pipelines: ["Pipelines", true],
  sites: ["Sites", true],
  coordination: ["Coordination", true],
  security: ["Security", true],
  logs: ["Logs", true],
  support: ["Support", true],
};

/** @type {Map<string, Promise<any>>} */
const loaded = new Map();

function load(/** @type {string} */ page) {
  const known = loaded.get(page) || import(`./pages/${page}.js`);
  loaded.set(page, known);
  known.catch(() => loaded.delete(page));
  return known;
}

function Page(/** @type {PageProps} */ props) {
  const { page } = props.route;
  const [view, setView] = useState(/** @type {{page: string, View: any} | null} */ (null));
  const [failure, setFailure] = useState(/** @type {any} */ (null));
  const [crash, forget] = useErrorBoundary();
  const isKnown = Object.hasOwn(PAGES, page);
  useEffect(() => {
    let isMine = true;
    setFailure(null);
    forget();
    if (!isKnown) return undefined;
    load(page).then(
      (module) => isMine && setView({ page, View: module.default }),
      (error) => isMine && setFailure(error),
    );
    document.title = `${isKnown ? PAGES[page][0] : "Not found"} · Millstream`;
    return () => void (isMine = false);
  }, [page]);
  if (!isKnown) return html`<h1>Not found</h1><p>There is no page of this name. <a href="#/overview">Go to the overview.</a></p>`;
  if (crash) return html`<${ErrorBox} error=${crash} onRetry=${forget} doing="This page failed." />`;
  if (failure) return html`<${ErrorBox} error=${failure} onRetry=${() => location.reload()} doing="The page could not be loaded." />`;
  if (view?.page !== page) return html`<${Loading} what=${PAGES[page][0]} rows=${6} />`;
  return html`<${view.View} ...${props} />`;
}

function LogIn(/** @type {{onDone: () => void}} */ { onDone }) {
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const send = async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await post("/_session", { name, password });
      onDone();
    } catch (failure) {
      setError(failure);
    }
  };
  return html`<main class="login"><form onSubmit=${send}>
    <h1>Millstream</h1>
    <label class="field"><span>User</span><input autofocus autocomplete="username" value=${name} onInput=${(/** @type {any} */ e) => setName(e.currentTarget.value)} /></label>
    <label class="field"><span>Password</span><input type="password" autocomplete="current-password" value=${password} onInput=${(/** @type {any} */ e) => setPassword(e.currentTarget.value)} /></label>
    ${error && html`<${ErrorBox} error=${error} />`}
    <button class="primary" disabled=${!name || !password}>Log in</button>
  </form></main>`;
}

const THEMES = { "": "Auto", light: "Light", dark: "Dark" };

function Theme() {
  const [theme, setTheme] = useState(() => localStorage.getItem("theme") || "");
  useEffect(() => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    localStorage.setItem("theme", theme);
    dispatchEvent(new Event("themechange"));
  }, [theme]);
  return html`<select class="quiet" aria-label="Colours" value=${theme} onChange=${(/** @type {any} */ e) => setTheme(e.currentTarget.value)}>
    ${Object.entries(THEMES).map(([value, text]) => html`<option value=${value}>${text}</option>`)}
  </select>`;
}

function Health() {
  const health = useResource("/_millstream/health", { every: 5_000 });
  if (health.error) return html`<${Badge} kind="bad">${health.error.status === 0 ? "no answer" : "not known"}</${Badge}>`;
  if (!health.data) return html`<${Badge} kind="plain">…</${Badge}>`;
  const kind = { ok: "good", warning: "warn", failed: "bad" }[/** @type {"ok"} */ (health.data.state)] || "plain";
  return html`<a class="health" href="#/overview"><${Badge} kind=${kind}>${health.data.state === "ok" ? "healthy" : health.data.state}</${Badge}></a>`;
}

function Frame(/** @type {{session: Session, onLogOut: () => void}} */ { session, onLogOut }) {
  const route = useRoute();
  const [isOpen, setOpen] = useState(false);
  useEffect(() => setOpen(false), [route.page]);
  const offered = Object.entries(PAGES).filter(([, [, isForAdmins]]) => session.isAdmin || !isForAdmins);
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ e) => (e.preventDefault(), document.getElementById("main")?.focus())}>Skip to the page</a>
    <header class="top">
      <button type="button" class="quiet menu" aria-expanded=${isOpen} aria-controls="menu" onClick=${() => setOpen(!isOpen)}>Menu</button>
      <a class="brand" href="#/overview">Millstream</a>
      <${Health} />
      <span class="grow"></span>
      <${Theme} />
      ${session.name ? html`<span class="user">${session.name}</span><button type="button" class="quiet" onClick=${onLogOut}>Log out</button>`
        : html`<span class="user" title="The node has no users: who reaches it may do everything.">no users</span>`}
    </header>
    <div class="body">
      <nav id="menu" class=${isOpen ? "side open" : "side"} aria-label="Pages">
        ${offered.map(([page, [text]]) => html`<a href=${linkTo([page])} aria-current=${route.page === page ? "page" : undefined}>${text}</a>`)}
      </nav>
      <main id="main" tabindex="-1"><${Page} route=${route} session=${session} key=${route.page} /></main>
    </div>
    <${Toasts} />`;
}

function App() {
  const [session, setSession] = useState(/** @type {Session | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isOut, setOut] = useState(false);
  const read = async () => {
    try {
      const { userCtx, csrf } = await get("/_session");
      setCsrfToken(csrf);
      const isOpen = !userCtx.name && userCtx.roles.includes("_admin");
      setSession({ name: userCtx.name, roles: userCtx.roles, isAdmin: userCtx.roles.includes("_admin"), isOpen });
      setOut(!userCtx.name && !isOpen);
      setError(null);
    } catch (failure) {
      setError(failure);
      setTimeout(read, 2_000);
    }
  };
  useEffect(() => {
    void read();
    return onLoggedOut(() => setOut(true));
  }, []);
  const logOut = async () => {
    await request("DELETE", "/_session");
    await read();
  };
  if (!session) return error ? html`<main class="login"><${ErrorBox} error=${error} onRetry=${read} /></main>` : html`<p class="starting">Millstream</p>`;
  if (isOut) return html`<${LogIn} onDone=${read} />`;
  return html`<${Frame} session=${session} onLogOut=${logOut} />`;
}

const saved = localStorage.getItem("theme");
if (saved) document.documentElement.dataset.theme = saved;
const root = /** @type {HTMLElement} */ (document.getElementById("app"));
root.textContent = "";
render(html`<${App} />`, root);
