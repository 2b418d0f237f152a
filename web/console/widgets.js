// Parts that several pages use.

import { addressOf, serverNow } from "./api.js";
import { h, replace } from "./dom.js";
import { duration, plural, ticking, time, words } from "./format.js";

export function head(title, about, ...actions) {
  return h("div", { class: "head" },
    h("div", {}, h("h1", {}, title), about && h("p", { class: "about" }, about)),
    h("div", { class: "actions" }, actions));
}

export function panel(title, ...content) {
  return h("section", { class: "panel" }, title && h("h2", {}, title), content);
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

export function button(label, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, label);
}

/** A select; `options`: [[value, label]]. */
export function choice(options, chosen) {
  return h("select", {}, options.map(([value, label]) => h("option", { value, selected: value === chosen }, label)));
}

export function empty(...text) {
  return h("p", { class: "empty" }, text);
}

/**
 * `columns`: [{ label, cell: (row) => content, class, sort }]. `hide` in the class: not on a phone. A column with a `sort` can be clicked: then
 * `onSort` gets it. `sorted` is that of the column in whose order the rows are.
 */
export function table(label, columns, rows, { sorted, onSort } = {}) {
  const cells = (row) => columns.map((column) =>
    h("td", { class: column.class, "data-label": typeof column.label === "string" ? column.label : null }, column.cell(row)));
  // Wide tables scroll, so the keyboard must reach them.
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label }, h("table", {},
    h("thead", {}, h("tr", {}, columns.map((column) => heading(column, sorted, onSort)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, cells(row))))));
}

function heading({ label, class: kind, sort, isDescending }, sorted, onSort) {
  if (sort === undefined || !onSort) return h("th", { scope: "col", class: kind }, label);
  const order = sort !== sorted ? null : isDescending ? "descending" : "ascending";
  return h("th", { scope: "col", class: kind, "aria-sort": order },
    button(label, () => onSort(sort), { class: "sort", "data-focus": `sort-${sort}` }));
}

/** The page of a lock or an operation. `app` is that of an item of a list of all apps. */
export function pageOf(kind, name, app) {
  return addressOf(`${kind}/${encodeURIComponent(name)}`, { app });
}

export function keyLink({ key, app }) {
  return h("a", { href: pageOf("locks", key, app), class: "mono" }, key);
}

/** The first column of a list of all apps. */
export function appColumn(rows) {
  return rows.some(({ app }) => app) && { label: "App", cell: ({ app }) => app, class: "key" };
}

/** A link to the keys that an owner holds. */
export function ownerLink(owner) {
  return h("a", { href: addressOf("locks", { owner }), class: "quiet" }, owner);
}

/** `pairs`: [[name, content]]; those without content are left out. */
export function facts(...pairs) {
  const known = pairs.filter(([, content]) => content !== null && content !== undefined && content !== false);
  return known.length > 0 && h("dl", { class: "facts" }, known.map(([name, content]) => h("div", {}, h("dt", {}, name), h("dd", {}, content))));
}

export function problemBox(problem) {
  if (problem.isMissing) return empty("This node does not have it: it runs a version without this page's endpoint.");
  const { code, status, message } = problem;
  const page = status > 0 && code && h("a", { href: `/errors/${encodeURIComponent(code)}` }, code);
  return h("div", { class: "problem", role: "alert" }, h("p", {}, message),
    page && h("p", { class: "about" }, "Code ", page, `, status ${status}`));
}

// Times that tick.

/** Time left of `ms`, which is known at this moment; with a bar if `ofMs` is the whole. */
export function countdown(ms, ofMs) {
  const text = h("span", { "data-until": performance.now() + ms }, ticking(ms));
  if (!ofMs) return text;
  const bar = h("span", { class: "bar", "aria-hidden": "true" }, h("span", { "data-bar-until": performance.now() + ms, "data-of": ofMs }));
  tick(bar.firstChild);
  return h("span", { class: "countdown" }, text, bar);
}

/** What is left of a lease, relative to its length. */
export function timeLeft({ ttl_ms: ms, lease_ms: ofMs }) {
  return countdown(ms, ofMs);
}

/** How long it is since a time of the server. */
export function since(iso) {
  return ticksSince(iso, serverNow() - Date.parse(iso));
}

/** How long a lease is held: by its own times, which are those of the store's clock. */
export function heldFor({ granted_at: from, expires_at: to, ttl_ms: ms }) {
  return ticksSince(from, Date.parse(to) - ms - Date.parse(from));
}

function ticksSince(iso, ms) {
  const text = h("span", { "data-since": performance.now() - Math.max(0, ms), title: time(iso) });
  tick(text);
  return text;
}

function tick(element) {
  const { until, since: from, barUntil, of } = element.dataset;
  const now = performance.now();
  if (until) element.textContent = ticking(Math.max(0, until - now));
  if (from) element.textContent = duration(Math.floor((now - from) / 1000) * 1000).replace("0 ms", "0 s");
  if (barUntil) element.style.width = `${Math.min(100, Math.max(0, ((barUntil - now) / of) * 100))}%`;
}

setInterval(() => {
  if (!document.hidden) document.querySelectorAll("[data-until], [data-since], [data-bar-until]").forEach(tick);
}, 500);

// Messages and questions.

export function toast(text) {
  const shown = h("p", { class: "toast" }, text);
  document.getElementById("toasts").append(shown);
  setTimeout(() => shown.remove(), 6000);
}

/**
 * Asks before something is done. `fields`: [{ name, label, type, value, options, hint, required }]. `run` gets their values, and a function that
 * says how far it is; the dialog stays open while it runs, and shows the problem if it fails. The button works once all that is required is given.
 */
export function ask({ title, text, fields = [], action, isDanger = false, run }) {
  const inputs = fields.map((field) => [field, inputOf(field)]);
  const trouble = h("div", {});
  const submit = h("button", { type: "submit", class: isDanger ? "danger" : "primary" }, action);
  const form = h("form", {},
    h("h2", { id: "dialog-title" }, title),
    [text].flat().map((paragraph) => h("p", {}, paragraph)),
    inputs.map(([field, input]) => labelled(field, input)),
    trouble,
    h("div", { class: "actions" }, button("Cancel", () => dialog.close()), submit));
  const check = () => (submit.disabled = !form.checkValidity());
  form.addEventListener("input", check);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      const values = Object.fromEntries(inputs.map(([field, input]) => [field.name, valueOf(field, input)]));
      await run(values, (text) => replace(trouble, empty(text)));
      dialog.close();
    } catch (problem) {
      replace(trouble, problemBox(problem));
      check();
    }
  });
  check();
  const dialog = openDialog(form);
}

/** Tells something. It is closed by its button, or by the Escape key. */
export function tell(title, ...content) {
  const dialog = openDialog(h("h2", { id: "dialog-title" }, title), content,
    h("div", { class: "actions" }, button("Close", () => dialog.close(), { class: "primary" })));
}

function openDialog(...content) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title", onclose: () => dialog.remove() }, content);
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

function inputOf({ name, type = "text", value = "", options, required, placeholder }) {
  const id = `field-${name}`;
  if (type === "select") {
    return h("select", { id }, options.map((option) => h("option", { value: option, selected: option === value }, option)));
  }
  if (type === "checks") {
    return h("fieldset", { id }, options.map((option) => h("label", { class: "check" },
      h("input", { type: "checkbox", name: option, checked: value.includes(option) }), option)));
  }
  if (type === "check") return h("input", { id, type: "checkbox", checked: value === true, required });
  const number = type === "number" && { min: "0", step: "any", inputmode: "decimal" };
  return h("input", { id, type, value, required, placeholder, autocomplete: "off", spellcheck: "false", ...number });
}

function labelled({ type, label, hint }, input) {
  const help = hint && h("span", { class: "hint" }, hint);
  if (type === "check") return h("label", { class: "check" }, input, h("span", {}, label, help));
  if (type === "checks") {
    input.prepend(h("legend", {}, label));
    return input;
  }
  return h("label", { class: "field" }, label, input, help);
}

function valueOf({ type }, input) {
  if (type === "check") return input.checked;
  if (type === "checks") return [...input.querySelectorAll("input:checked")].map((box) => box.name);
  if (type === "number") return input.value === "" ? null : Number(input.value);
  return input.value.trim();
}

/** Shows a secret once. */
export function reveal(title, text, secret) {
  const shown = h("input", { value: secret, readonly: true, class: "mono", "aria-label": title, onfocus: () => shown.select() });
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(secret);
      toast("Copied.");
    } catch {
      shown.focus();
    }
  };
  const dialog = openDialog(h("h2", { id: "dialog-title" }, title), h("p", {}, text), shown,
    h("div", { class: "actions" }, button("Copy", copy), button("Done", () => dialog.close(), { class: "primary" })));
}

// Lists.

/** Walks through the pages of a list by their cursors. `load` is called after each move. */
export class Pages {
  cursors = [""];
  next = null;

  constructor(load) {
    this.load = load;
    this.element = h("nav", { class: "pager", "aria-label": "Pages of the list" });
  }

  get cursor() {
    return this.cursors.at(-1);
  }

  /** The list has no other page than the one that is shown. */
  get isWhole() {
    return this.cursors.length === 1 && !this.next;
  }

  /** Shows the buttons after a page has been loaded. */
  show(next, rows) {
    this.next = next ?? null;
    const move = (change) => () => {
      change();
      this.load();
    };
    const isFirst = this.cursors.length === 1;
    replace(this.element,
      button("First", move(() => this.reset()), { disabled: this.cursors.length < 3, "data-focus": "first" }),
      button("Previous", move(() => this.cursors.pop()), { disabled: isFirst, "data-focus": "previous" }),
      h("span", {}, `Page ${this.cursors.length}`, rows),
      button("Next", move(() => this.cursors.push(this.next)), { disabled: !this.next, "data-focus": "next" }));
    this.element.hidden = isFirst && !this.next;
  }

  reset() {
    this.cursors = [""];
  }
}

const EVENT_KINDS = {
  granted: "good", released: "", expired: "bad", revoking: "warn", revoked: "bad", forced: "bad", given_back: "", closed: "warn", opened: "",
  waited: "warn", held_too_long: "warn", unreadable: "bad", dropped: "bad",
};

export function eventBadge(kind) {
  return badge(words(kind), EVENT_KINDS[kind] ?? "");
}

export function eventDot(kind) {
  return h("span", { class: `dot ${EVENT_KINDS[kind] ?? ""}`, "aria-hidden": "true" });
}

const SHOWN_APART = new Set(["id", "kind", "app", "key", "at", "owner", "mode", "permits", "token", "waited_ms", "held_ms", "expires_at", "reason", "by"]);

/** What happened, in words, without the kind. */
export function eventDetails(event) {
  const parts = [
    event.permits && plural(event.permits, "permit"),
    event.mode === "shared" && "shared",
    event.waited_ms > 0 && `${event.kind === "waited" ? "for" : "waited"} ${duration(event.waited_ms)}`,
    event.held_ms > 0 && `held ${duration(event.held_ms)}`,
    event.reason && `“${event.reason}”`,
    event.by && `by ${event.by}`,
  ];
  // `dropped` has fields of its own.
  const own = Object.entries(event).filter(([name, value]) => !SHOWN_APART.has(name) && value !== null && typeof value !== "object");
  return [...parts, ...own.map(([name, value]) => `${words(name)} ${value}`)].filter(Boolean).join(" · ");
}
