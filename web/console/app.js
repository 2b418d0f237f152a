// The console: who is signed in, which page is shown, and whether the node answers.

import * as api from "./api.js";
import { h, replace } from "./dom.js";
import { time } from "./format.js";
import { button, empty, problemBox, tell } from "./widgets.js";
import { access } from "./pages/access.js";
import { engines } from "./pages/engines.js";
import { events } from "./pages/events.js";
import { lock } from "./pages/lock.js";
import { locks, taken } from "./pages/locks.js";
import { operation } from "./pages/operation.js";
import { operations } from "./pages/operations.js";
import { overview } from "./pages/overview.js";

/** `needs`: a scope, or `operator`. `key` follows `g` on the keyboard. `isOfApp`: what it shows is an app's, or that of all apps. */
const PAGES = [
  { path: "", name: "Overview", show: overview, key: "o", isOfApp: true },
  { path: "locks", name: "Locks", show: locks, showOne: lock, needs: "read", key: "l", isOfApp: true },
  { path: "operations", name: "Operations", show: operations, showOne: operation, needs: "read", key: "p", isOfApp: true },
  { path: "events", name: "Events", show: events, needs: "read", key: "e", isOfApp: true },
  { path: "engines", name: "Engines", show: engines, needs: "operator", key: "n" },
  { path: "access", name: "Apps and API keys", show: access, needs: "operator", key: "a", isOfApp: true },
];

const element = (id) => document.getElementById(id);
const main = element("main");
let me = null;
let view = null;

/** One visit of a page. It ends when another one begins. */
class View {
  root = h("div", { class: "view" });
  trouble = h("div", {});
  controller = new AbortController();
  hasContent = false;

  constructor(page, one, query) {
    this.one = one;
    this.query = query;
    this.me = me;
    const app = this.app === api.ALL_APPS ? "All apps" : ["App ", h("b", {}, this.app)];
    this.where = page?.isOfApp && h("p", { class: "crumb" }, one !== undefined && [h("a", { href: api.addressOf(page.path, { app: query.app }) }, page.name), " · "], app);
  }

  /** The app that the page is about: what the address says; else an operator's lists are of all apps, and all else is of the own one. */
  get app() {
    return this.query.app || (this.me.operator && this.one === undefined ? api.ALL_APPS : this.me.app);
  }

  get signal() {
    return this.controller.signal;
  }

  /** Whether the caller has a scope; for a lock, also whether it may touch the key. */
  may(scope, key) {
    const { scopes, prefixes, operator } = this.me;
    // Leases are taken in the caller's own app.
    if (scope === "take") return [this.me.app, api.ALL_APPS].includes(this.app) && this.may("locks", key);
    if (scope === "operator") return operator;
    return scopes.includes(scope) && (key === undefined || prefixes.length === 0 || prefixes.some((prefix) => key.startsWith(prefix)));
  }

  get = (path, query) => api.get(path, { query, signal: this.signal });

  show(...content) {
    replace(this.root, this.trouble, this.where, content);
  }

  /** Loads now, and again after `ms` (or what it returns), while the page is visible. Returns a function that loads at once. */
  every(ms, load) {
    let timer;
    let state = "idle";
    const run = async () => {
      clearTimeout(timer);
      if (this.signal.aborted || document.hidden) return;
      if (state !== "idle") {
        state = "again";
        return;
      }
      state = "busy";
      try {
        await load();
        this.hasContent = true;
        replace(this.trouble);
      } catch (problem) {
        this.fail(problem);
      }
      const isWanted = state === "again";
      state = "idle";
      if (isWanted) run();
      else if (!this.signal.aborted) timer = setTimeout(run, typeof ms === "function" ? ms() : ms);
    };
    document.addEventListener("visibilitychange", run, { signal: this.signal });
    run();
    return run;
  }

  /** Shows the problem; or, if there is content and only the node or its store is away, leaves that to the banner. */
  fail(problem) {
    if (this.signal.aborted || problem.status === 401) return;
    if (!(problem instanceof api.Problem)) console.error(problem);
    const isAway = problem.status === 0 || problem.status === 503;
    if (!(isAway && this.hasContent)) replace(this.trouble, problemBox(problem));
  }

  /** Changes the query in the address without a new visit. */
  remember(query) {
    history.replaceState(null, "", api.addressOf(location.hash.split("?")[0].replace(/^#\/?/, ""), query));
  }
}

function route() {
  if (!me) return;
  view?.controller.abort();
  document.querySelectorAll("dialog").forEach((dialog) => dialog.close());
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const page = PAGES.find((candidate) => candidate.path === name);
  const one = rest.length > 0 ? decoded(rest.join("/")) : undefined;
  view = new View(page, one, Object.fromEntries(new URLSearchParams(search)));
  api.showApp(view.app === me.app ? "" : view.app, view.query.app);
  showChoice();
  for (const link of element("nav").children) {
    link.href = api.addressOf(link.dataset.path);
    const isCurrent = link.dataset.path === name;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  replace(main, view.root);
  window.scrollTo(0, 0);
  document.title = [one, page?.name ?? "No such page", page?.isOfApp && view.query.app, "Latchgate"].filter(Boolean).join(" · ");
  if (!page) view.show(h("h1", {}, "No such page"), empty("Choose one of the pages."));
  else if (page.needs && !view.may(page.needs)) view.show(h("h1", {}, page.name), empty(reason(page.needs)));
  else (one ? page.showOne : page.show)?.(view);
}

function reason(needs) {
  if (needs === "operator") return "This page needs an API key of the app default with the scope admin and without prefixes.";
  return `This page needs an API key with the scope ${needs}.`;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

// Signing in.

async function enter(trouble = null) {
  try {
    me = await api.get("/v1/me");
  } catch (problem) {
    me = null;
    if (problem.status === 401) {
      const hadKey = api.hasKey();
      api.useKey(null);
      return signIn(trouble ?? (hadKey ? problem : null));
    }
    return unreachable(problem);
  }
  showWho();
  route();
}

/** Neither signed in nor refused: the node does not answer, or does not know its API keys yet. */
function unreachable(problem) {
  element("nav").hidden = true;
  replace(main, h("h1", {}, "Latchgate"), problemBox(problem), empty("The console tries again every two seconds."));
  setTimeout(enter, 2000);
}

function signIn(problem) {
  view?.controller.abort();
  view = null;
  element("nav").hidden = true;
  replace(element("who"));
  document.title = "Sign in · Latchgate";
  const key = h("input", { type: "password", id: "api-key", autocomplete: "off", spellcheck: "false", required: true, placeholder: "lgk_…" });
  const submit = h("button", { type: "submit", class: "primary" }, "Sign in");
  const form = h("form", { class: "sign-in" },
    h("h1", {}, "Sign in"),
    h("p", { class: "about" }, "This node needs an API key. The console keeps it in this tab alone, until you close the tab or sign out."),
    h("label", { class: "field", for: "api-key" }, "API key", key),
    problem && problemBox(problem), submit);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit.disabled = true;
    api.useKey(key.value.trim());
    enter();
  });
  replace(main, form);
  key.focus();
}

function showWho() {
  const pages = PAGES.filter((page) => !page.needs || (page.needs === "operator" ? me.operator : me.scopes.includes(page.needs)));
  const nav = element("nav");
  replace(nav, pages.map((page) => h("a", { href: `#/${page.path}`, "data-path": page.path }, page.name)));
  nav.hidden = false;
  apps = me.operator ? [me.app] : [];
  replace(choice);
  if (me.operator) {
    api.get("/v1/admin/apps").then(({ apps: all }) => {
      apps = all.map(({ app }) => app);
      showChoice();
    }, () => {});
  }
  const rights = me.operator ? "operator" : me.scopes.join(", ") || "no scopes";
  replace(element("who"),
    h("span", {}, "App ", me.operator ? choice : h("b", {}, me.app)),
    h("span", { class: "about" }, me.api_key_id ? `API key ${me.api_key_name ?? me.api_key_id}` : "No API key needed"),
    h("span", { class: "about" }, rights, me.prefixes.length > 0 && ` · only ${me.prefixes.join(", ")}`),
    me.api_key_id && button("Sign out", signOut, { class: "plain" }));
}

/** An operator's choice of the app that the pages are about. */
let apps = [];
const choice = h("select", { "aria-label": "App", onchange: () => {
  const [path, search] = location.hash.replace(/^#\/?/, "").split("?");
  const { app: _, ...query } = Object.fromEntries(new URLSearchParams(search));
  const isOfOne = view.one !== undefined && choice.value === "";
  location.hash = api.addressOf(isOfOne ? path.split("/")[0] : path, { ...(isOfOne ? {} : query), app: choice.value });
} });

function showChoice() {
  const { app } = view ?? {};
  const named = app && app !== api.ALL_APPS && !apps.includes(app) ? [app, ...apps] : apps;
  replace(choice, h("option", { value: "" }, "all apps"), named.map((name) => h("option", { value: name, selected: name === app }, name)));
}

function signOut() {
  me = null;
  taken.clear();
  api.useKey(null);
  history.replaceState(null, "", "#/");
  enter();
}

// Whether the node and its store answer.

let lastAnswerAt = null;
let probing = null;

async function probe() {
  clearTimeout(probing);
  if (!document.hidden) {
    try {
      await api.request("GET", "/readyz", { patienceMs: 4000 });
      replace(element("banner"));
    } catch (problem) {
      const seen = me && lastAnswerAt && ` What you see is from ${time(lastAnswerAt)} or older.`;
      const text = problem.status === 0 ? "The node does not answer." : problem.message;
      replace(element("banner"), h("p", { class: "away" }, h("b", {}, text), seen));
    }
  }
  clearTimeout(probing);
  probing = setTimeout(probe, 3000);
}

api.on("answered", (response) => {
  if (!response.url.endsWith("/readyz")) lastAnswerAt = new Date().toISOString();
});
api.on("failed", (problem) => {
  const isSeen = element("banner").hasChildNodes();
  if (!isSeen && (problem.status === 0 || problem.code === "store-unavailable")) {
    clearTimeout(probing);
    probing = setTimeout(probe, 100);
  }
});
api.on("signedOut", (problem) => {
  if (!me) return;
  me = null;
  taken.clear();
  api.useKey(null);
  signIn(problem);
});

// Theme and keyboard.

const theme = element("theme");
theme.value = document.documentElement.dataset.theme ?? "system";
theme.addEventListener("change", () => {
  if (theme.value === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem("latchgate.theme", theme.value);
  } catch {
    // Without storage, the choice lives as long as the page.
  }
});

let went = 0;
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest?.("input, textarea, select") || document.querySelector("dialog[open]");
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
  const page = PAGES.find(({ key }) => key === event.key);
  if (event.key === "g") went = event.timeStamp;
  else if (page && event.timeStamp - went < 1500) location.hash = api.addressOf(page.path);
  else if (event.key === "/") {
    const search = main.querySelector("input, textarea");
    if (search) event.preventDefault();
    search?.focus();
  } else if (event.key === "?") shortcuts();
});

function shortcuts() {
  const keys = [["/", "to the first field of the page"], ["?", "this list"], ["Escape", "closes a dialog"],
    ...PAGES.map(({ key, name }) => [`g ${key}`, name])];
  const list = h("dl", { class: "keys" }, keys.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what))));
  tell("Keyboard", list);
}

// On a phone, the pages and the rest of the side are behind a button.

const menu = element("menu");
function openMenu(isOpen) {
  menu.setAttribute("aria-expanded", String(isOpen));
  menu.closest("header").classList.toggle("open", isOpen);
}
menu.addEventListener("click", () => openMenu(menu.getAttribute("aria-expanded") !== "true"));
menu.closest("header").addEventListener("click", (event) => event.target.closest("a") && openMenu(false));
menu.closest("header").addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || menu.getAttribute("aria-expanded") !== "true") return;
  openMenu(false);
  menu.focus();
});

element("shortcuts").addEventListener("click", shortcuts);
window.addEventListener("hashchange", () => {
  route();
  main.focus({ preventScroll: true });
});
document.addEventListener("visibilitychange", () => document.hidden || probe());
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

enter();
probe();
