// Apps and their API keys.

import { ALL_APPS, addressOf, call, post } from "../api.js";
import { h, replace } from "../dom.js";
import { duration, number, plural, time } from "../format.js";
import { Selection } from "../selection.js";
import { ask, badge, button, empty, head, panel, reveal, table, toast } from "../widgets.js";

const SCOPES = ["read", "locks", "operations", "admin"];
const QUOTAS = [
  ["requests_per_second", "Requests per second"], ["waiters", "Waiting requests"],
  ["event_streams", "Event streams"],
];
const DAY_MS = 86_400_000;
/** Most API keys that are drawn. */
const SHOWN_MAX = 200;
const ORDERS = {
  app: (a, b) => a.app.localeCompare(b.app),
  used: (a, b) => (b.used_at ?? "").localeCompare(a.used_at ?? ""),
  expires: (a, b) => (a.expires_at ?? "9").localeCompare(b.expires_at ?? "9"),
};

export function access(view) {
  const apps = panel("Apps", empty("Loading…"));
  const keys = panel("API keys", empty("Loading…"));
  const { ended = "" } = view.query;
  const app = view.app === ALL_APPS ? "" : view.app;
  let { sort = "app" } = view.query;
  const withEnded = h("input", { type: "checkbox", checked: ended === "true" });
  const selection = new Selection({
    idOf: ({ id }) => id, nameOf: ({ id, name, app: of }) => `${id}${name ? `, ${name},` : ""} of ${of}`, noun: "API key",
    actionsOf: (rows) => [button("Revoke…", () => revokeAll(view, selection, rows.filter(revocable), refresh),
      { class: "danger", disabled: !rows.some(revocable), "data-focus": "bulk-revoke" })],
  });
  view.show(head("Apps and API keys", "An app is a namespace: the same key in two apps is two locks."), apps, selection.bar, keys);
  const refresh = view.every(10_000, async () => {
    const [{ apps: all }, { api_keys: listed }] = await Promise.all([view.get("/v1/admin/apps"), view.get("/v1/admin/api-keys")]);
    const names = new Map(listed.map((key) => [key.id, nameOf(key)]));
    replace(apps, h("div", { class: "head" }, h("h2", {}, "Apps"), button("Create an app…", () => createApp(refresh), { "data-focus": "create-app" })),
      appsTable(all, refresh));
    const wanted = listed.filter((key) => (!app || key.app === app) && (withEnded.checked || key.state === "active")).sort(ORDERS[sort] ?? ORDERS.app);
    const shown = wanted.slice(0, SHOWN_MAX);
    const choose = selection.column(shown);
    replace(keys,
      h("div", { class: "head" }, h("h2", {}, "API keys"),
        h("div", { class: "actions" }, h("label", { class: "check" }, withEnded, "also those that are not accepted"),
          button("Create an API key…", () => createKey(all.map(({ app: name }) => name), app || view.me.app, refresh), { "data-focus": "create-key" }))),
      wanted.length === 0 ? empty("No API key.") : keysTable(view, shown, names, refresh, choose, { sorted: sort, onSort: (by) => search(by) }),
      wanted.length > SHOWN_MAX && h("p", { class: "about" }, `The first ${SHOWN_MAX} of ${number(wanted.length)}: choose an app.`));
  });
  const search = (by = sort) => {
    sort = by;
    view.remember({ ended: withEnded.checked ? "true" : "", sort: sort === "app" ? "" : sort });
    refresh();
  };
  withEnded.addEventListener("change", () => search());
}

function appsTable(apps, refresh) {
  return table("Apps", [
    { label: "App", cell: ({ app }) => h("a", { href: addressOf("access", { app }) }, app), class: "key" },
    { label: "State", cell: (app) => (app.disabled ? badge("disabled", "bad") : badge("enabled", "good")) },
    { label: "API keys", cell: (app) => number(app.api_keys), class: "number" },
    { label: "Created", cell: (app) => time(app.created_at), class: "hide" },
    { label: "Limits", cell: limitsInShort },
    { label: h("span", { class: "unseen" }, "Actions"), cell: (app) => h("div", { class: "actions" },
      button("Limits…", () => changeLimits(app, refresh), { "data-focus": `limits-${app.app}`, "aria-label": `Limits of ${app.app}` }),
      app.disabled
        ? button("Enable", () => enable(app.app, refresh), { "data-focus": `able-${app.app}`, "aria-label": `Enable ${app.app}` })
        : app.app !== "default" && button("Disable…", () => disable(app.app, refresh), { class: "danger", "data-focus": `able-${app.app}`, "aria-label": `Disable ${app.app}` }),
      app.app !== "default" && app.api_keys === 0 &&
        button("Delete…", () => remove(app.app, refresh), { class: "danger", "data-focus": `delete-${app.app}`, "aria-label": `Delete ${app.app}` })) },
  ], apps);
}

function limitsInShort({ quotas, warn_after_ms: ms }) {
  const set = QUOTAS.filter(([name]) => quotas[name] !== null).map(([name, label]) => `${label}: ${number(quotas[name])}`);
  if (ms) set.push(`Notice of a lock that is held for ${duration(ms)}`);
  return set.length === 0 ? "none" : set.map((text) => h("div", {}, text));
}

function changeLimits({ app, quotas, warn_after_ms: ms }, refresh) {
  ask({
    title: `Limits of ${app}`,
    text: "Each node enforces the quotas for itself. An empty field is no limit.",
    fields: [...QUOTAS.map(([name, label]) => ({ name, label, type: "number", value: quotas[name] ?? "" })),
      { name: "seconds", label: "Notice of a lock that is held for, in seconds", type: "number", value: ms ? ms / 1000 : "", hint: "The event “held too long”, once for each lease" }],
    action: "Save",
    run: async ({ seconds, ...values }) => {
      const body = { quotas: values, warn_after_ms: seconds && Math.round(seconds * 1000) };
      await call("PATCH", `/v1/admin/apps/${encodeURIComponent(app)}`, { body });
      toast(`The limits of ${app} are saved.`);
      refresh();
    },
  });
}

function createApp(refresh) {
  ask({
    title: "Create an app",
    text: "An app keeps its locks and operations apart from those of the others.",
    fields: [{ name: "app", label: "Name", required: true, placeholder: "billing" }],
    action: "Create",
    run: async ({ app }) => {
      await post("/v1/admin/apps", { app });
      toast(`The app ${app} is created.`);
      refresh();
    },
  });
}

async function enable(app, refresh) {
  try {
    await post("/v1/admin/apps", { app });
    toast(`The app ${app} is enabled.`);
  } catch (problem) {
    toast(problem.message);
  }
  refresh();
}

function disable(app, refresh) {
  ask({
    title: `Disable ${app}`,
    text: "All its API keys are refused until you enable it again. Its locks and operations stay.",
    action: "Disable",
    isDanger: true,
    run: async () => {
      await call("PATCH", `/v1/admin/apps/${encodeURIComponent(app)}`, { body: { disabled: true } });
      toast(`The app ${app} is disabled.`);
      refresh();
    },
  });
}

function remove(app, refresh) {
  ask({
    title: `Delete ${app}`,
    text: "Only an empty app is deleted: without API keys, locks in use, and operations.",
    action: "Delete",
    isDanger: true,
    run: async () => {
      await call("DELETE", `/v1/admin/apps/${encodeURIComponent(app)}`);
      toast(`The app ${app} is deleted.`);
      refresh();
    },
  });
}

function keysTable(view, keys, names, refresh, choose, order) {
  return table("API keys", [
    choose,
    { label: "Name", cell: (key) => [nameOf(key) ?? h("span", { class: "about" }, "without a name"), key.id === view.me.api_key_id && h("span", { class: "about" }, " yours")], class: "key title" },
    { label: "Id", cell: (key) => key.id, class: "mono" },
    { label: "App", cell: (key) => key.app, class: "key", sort: "app" },
    { label: "Scopes", cell: ({ scopes, prefixes }) => `${scopes.join(", ")}${prefixes.length > 0 ? ` · only ${prefixes.join(", ")}` : ""}`, class: "key" },
    { label: "State", cell: (key) => badge(key.state, key.state === "active" ? "good" : "bad") },
    { label: "Created by", cell: (key) => names.get(key.created_by) ?? key.created_by, class: "name hide spare" },
    { label: "Last used", cell: (key) => (key.id === view.me.api_key_id ? "now" : key.used_at ? h("span", { title: "To the hour" }, time(key.used_at)) : key.created_at ? "never" : "–"), class: "hide", sort: "used", isDescending: true },
    { label: "Expires", cell: (key) => (key.expires_at ? time(key.expires_at) : "never"), class: "key", sort: "expires" },
    { label: h("span", { class: "unseen" }, "Actions"), cell: (key) => revocable(key) && button("Revoke…", () => revoke(view, key, refresh),
      { class: "danger", "data-focus": `revoke-${key.id}`, "aria-label": `Revoke ${key.id}` }) },
  ], keys, order);
}

function revokeAll(view, selection, rows, refresh) {
  // The own one is the last: with it, the page ends.
  const isOwn = ({ id }) => id === view.me.api_key_id;
  selection.ask({
    rows: [...rows.filter((key) => !isOwn(key)), ...rows.filter(isOwn)], refresh, isDanger: true, title: `Revoke ${plural(rows.length, "API key")}`,
    text: ["Every node refuses them within two seconds. Their waits and event streams end; their leases stay until they expire.",
      ...(rows.some(isOwn) ? ["Your own API key is among them: you will be signed out."] : [])],
    action: "Revoke all",
    each: ({ id }) => call("DELETE", `/v1/admin/api-keys/${id}`),
    said: (count) => `Revoked ${plural(count, "API key")}.`,
  });
}

function nameOf({ name, created_at: at }) {
  return name ?? (at ? undefined : "this node’s configuration");
}

/** An API key of the node's configuration has no time of creation, and is revoked there. */
function revocable(key) {
  return key.state === "active" && key.created_at !== undefined;
}

function revoke(view, key, refresh) {
  ask({
    title: `Revoke ${key.id}`,
    text: [
      "Every node refuses it within two seconds. Its waits and event streams end; its leases stay until they expire.",
      ...(key.id === view.me.api_key_id ? ["This is your own API key: you will be signed out."] : []),
    ],
    action: "Revoke",
    isDanger: true,
    run: async () => {
      await call("DELETE", `/v1/admin/api-keys/${key.id}`);
      toast(`The API key ${key.id} is revoked.`);
      refresh();
    },
  });
}

function createKey(apps, app, refresh) {
  ask({
    title: "Create an API key",
    text: "It belongs to one app. No scope includes another one.",
    fields: [
      { name: "app", label: "App", type: "select", options: apps, value: app },
      { name: "name", label: "What it is for", placeholder: "billing workers", hint: "Shown in this list" },
      { name: "scopes", label: "Scopes", type: "checks", options: SCOPES, value: ["read", "locks", "operations"] },
      { name: "prefixes", label: "Only keys that begin with", placeholder: "jobs/, reports/", hint: "Several with commas; all keys if empty" },
      { name: "days", label: "Expires after days", type: "number", hint: "Never if empty" },
    ],
    action: "Create",
    run: async ({ app: chosen, name, scopes, prefixes, days }) => {
      const named = prefixes.split(",").map((prefix) => prefix.trim()).filter(Boolean);
      const body = { app: chosen, scopes, prefixes: named, ...(name && { name }), ...(days !== null && { expires_in_ms: days * DAY_MS }) };
      const { api_key: key } = await post("/v1/admin/api-keys", body);
      refresh();
      reveal("The new API key", "Copy it now: it is not shown again, and the store keeps only its hash.", key);
    },
  });
}
