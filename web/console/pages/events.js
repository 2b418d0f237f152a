// Events as they happen.

import { follow } from "../events.js";
import { h, replace } from "../dom.js";
import { time } from "../format.js";
import { badge, button, empty, eventBadge, eventDetails, head, keyLink, ownerLink, problemBox } from "../widgets.js";

const SHOWN_MAX = 300;
/** How often the list is drawn, in ms, however many events arrive. */
const DRAW_MS = 250;

export function events(view) {
  let prefix = view.query.prefix ?? view.me.prefixes[0] ?? "";
  let shown = [];
  let isPaused = false;
  let isDrawn = true;
  let stream = null;
  const state = h("span", {}, badge("connecting"));
  const list = h("ol", { class: "events", "aria-label": "Events, newest first" });
  const nothing = empty("No event yet. Grants, releases, expiries and notices appear here as they happen.");
  const trouble = h("div", {});
  const input = h("input", { type: "search", value: prefix, class: "mono", placeholder: "orders/", autocomplete: "off", spellcheck: "false" });
  const pause = button("Pause", () => {
    isPaused = !isPaused;
    pause.textContent = isPaused ? "Go on" : "Pause";
    pause.setAttribute("aria-pressed", String(isPaused));
    isDrawn = false;
  }, { "aria-pressed": "false" });

  const draw = () => {
    if (isDrawn || isPaused || document.hidden) return;
    isDrawn = true;
    nothing.hidden = shown.length > 0;
    replace(list, shown.map(row));
  };
  const drawing = setInterval(draw, DRAW_MS);

  const connect = () => {
    stream?.abort();
    stream = new AbortController();
    follow("/v1/events", { prefix }, {
      signal: stream.signal,
      onState: (is, problem) => {
        replace(state, is === "open" ? badge("live", "good") : badge("not connected", "bad"));
        replace(trouble, problem && problem.status !== 401 && problemBox(problem));
      },
      onEvent: (kind, event) => {
        shown.unshift({ kind, ...event });
        shown.length = Math.min(shown.length, SHOWN_MAX);
        isDrawn = false;
      },
    });
  };
  const search = (event) => {
    event.preventDefault();
    prefix = input.value;
    view.remember({ prefix });
    shown = [];
    isDrawn = false;
    connect();
  };
  view.signal.addEventListener("abort", () => {
    clearInterval(drawing);
    stream?.abort();
  });
  view.show(
    head("Events", state, pause, button("Clear", () => {
      shown = [];
      isDrawn = false;
    })),
    h("form", { class: "filters", role: "search", onsubmit: search },
      h("label", {}, "Key begins with", input),
      h("button", { type: "submit", class: "primary" }, "Watch")),
    trouble, list, nothing);
  connect();
}

function row(event) {
  const key = event.key && h("span", { class: "key" }, keyLink(event));
  return h("li", {}, h("time", { datetime: event.at, title: event.at }, event.at ? time(event.at) : ""), eventBadge(event.kind),
    h("div", {}, event.app && h("span", { class: "about" }, event.app, " "), key, event.owner && h("span", { class: "key" }, key && " ", ownerLink(event.owner)), h("span", { class: "about" }, " ", eventDetails(event))));
}
