// The console in a real browser, against a real node. scripts/test-console.sh starts both and sets:
//   CONSOLE_URL   the node, or the load balancer in front of several
//   CONSOLE_KEY   an operator's API key
//   CHROMIUM      the browser

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { after, afterEach, before, test } from "node:test";
import { chromium } from "playwright-core";

const { CONSOLE_URL: url, CONSOLE_KEY: operatorKey, CHROMIUM: executablePath } = process.env;
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
/** All keys begin with it, so that a node can be tested several times. */
const OWN = `console ${Date.now()}/`;
const lockPath = (key) => `/v1/locks/${encodeURIComponent(key)}`;
const lockPage = (key) => `locks/${encodeURIComponent(key)}`;
/** Paths and headings. */
const PAGES = [
  ["", "Overview"], ["locks", "Locks"], [lockPage(`${OWN}seen`), `${OWN}seen`], ["operations", "Operations"], ["events", "Events"], ["engines", "Engines"],
  ["access", "Apps and API keys"],
];
const PATIENCE_MS = 30_000;

let browser;
let axe;

before(async () => {
  browser = await chromium.launch({ executablePath, args: FLAGS });
  axe = await readFile(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
});
after(() => browser?.close());

const visits = [];
afterEach(async () => {
  for (const { context, faults } of visits.splice(0)) {
    await context.close();
    assert.deepEqual(faults, []);
  }
});

/** A page of a new visitor, who signs in if there is an API key, and goes to an address if there is one. The test fails if something happens that must not. */
async function visit(key, address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE_MS);
  const faults = [];
  await context.exposeBinding("reportFault", (_, fault) => faults.push(fault));
  await context.addInitScript(() => addEventListener("securitypolicyviolation",
    (event) => globalThis.reportFault(`policy: ${event.effectiveDirective} ${event.blockedURI} ${event.sample}`)));
  await context.addInitScript(axe);
  const page = await context.newPage();
  page.on("pageerror", (error) => faults.push(`error: ${error.stack}`));
  // The browser itself reports answers 4xx and 5xx in this way.
  page.on("console", (message) => message.type() === "error" && !message.text().startsWith("Failed to load resource") && faults.push(message.text()));
  page.on("request", (request) => new URL(request.url()).origin !== new URL(url).origin && faults.push(`request to ${request.url()}`));
  visits.push({ context, faults });
  await page.goto(url);
  if (key) await signIn(page, key);
  if (address !== undefined) await page.goto(`${url}/#/${address}`);
  return page;
}

async function signIn(page, key) {
  await page.getByLabel("API key").fill(key);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByText("Sign out").waitFor({ state: "attached" });
}

const navigation = (page, name) => page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link", { name });

async function api(method, path, body, key = operatorKey) {
  const response = await fetch(url + path, { method, body: body && JSON.stringify(body), headers: { authorization: `Bearer ${key}` } });
  return { status: response.status, body: await response.json() };
}

async function ok(...request) {
  const answer = await api(...request);
  assert.ok(answer.status < 300, `${request.slice(0, 2).join(" ")}: ${JSON.stringify(answer.body)}`);
  return answer.body;
}

async function newApp(name) {
  const app = `${name}-${Date.now()}`;
  await ok("POST", "/v1/admin/apps", { app });
  return app;
}

/** An operation that an operator must decide about: its id. */
async function undecided(operation, key) {
  const { id, stamp } = await ok("POST", "/v1/operations/pre", operation, key);
  await ok("POST", `/v1/operations/${id}/post`, { stamp, outcome: "unknown" }, key);
  return id;
}

const acquire = (key, body) => api("POST", `${lockPath(key)}/acquire`, body);

/** Goes to a page, and waits for its content. */
async function open(page, [path, name]) {
  await page.goto(`${url}/#/${path}`);
  await page.getByRole("heading", { level: 1, name }).waitFor();
  await page.waitForFunction(() => [...document.querySelectorAll("main .empty")].every((text) => text.textContent !== "Loading…"));
}

/** Opens a dialog by its button, fills in its fields, and confirms. */
async function confirm(page, button, fields, action) {
  await page.getByRole("button", { name: button, exact: true }).click();
  const dialog = page.getByRole("dialog");
  for (const [label, text] of Object.entries(fields)) await dialog.getByLabel(label).fill(text);
  await dialog.getByRole("button", { name: action, exact: true }).click();
}

/** The browser gets the node's samples of metrics as `change` returns them. */
async function changeSamples(page, change) {
  await page.route("**/metrics/samples*", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, json: change(await response.json()) });
  });
}

/** A client that waits for a lock. */
const waiter = (key, owner) => ok("POST", `${lockPath(key)}/acquire`, { owner, wait_ms: 50_000, ttl_ms: 60_000 });

test("a person finds a held lock, sees who waits, forces it, and sees the waiter get it", async () => {
  const page = await visit(operatorKey);
  const lease = await acquire(`${OWN}orders/1`, { owner: "curl-one", ttl_ms: 300_000 });
  assert.equal(lease.status, 200);
  const granted = waiter(`${OWN}orders/1`, "curl-two");

  await navigation(page, "Locks").click();
  await page.getByLabel("Key begins with").fill(OWN);
  await page.getByRole("button", { name: "Search" }).click();
  const row = page.getByRole("row", { name: `${OWN}orders/1` });
  await row.getByText("curl-one").waitFor();
  await row.getByRole("link", { name: `${OWN}orders/1` }).click();

  const holders = page.getByRole("region", { name: "Holders" });
  await holders.getByText("curl-one").waitFor();
  await page.getByText(/curl-two|1 request waits/).first().waitFor();
  await confirm(page, "Force…", { Reason: "the host is <b>gone</b>" }, "End the leases now");

  assert.equal((await granted).key, `${OWN}orders/1`);
  await holders.getByText("curl-two").waitFor();
  // What clients and people have written is text.
  await page.getByText("“the host is <b>gone</b>”").waitFor();
});

test("what is forced or revoked is the lease that was on the screen, and what fails of several stays selected", async () => {
  const keys = ["raced", "raced together/one", "raced together/two"].map((name) => OWN + name);
  for (const key of keys) await acquire(key, { owner: "first", ttl_ms: 300_000 });
  const page = await visit(operatorKey);
  const dialog = page.getByRole("dialog");
  for (const [address, key, buttons] of [
    [lockPage(keys[0]), keys[0], [["Force…", "End the leases now"], ["Revoke…", "Revoke"]]],
    // Of several locks, the others lose theirs.
    [`locks?${new URLSearchParams({ app: "default", prefix: `${OWN}raced together/` })}`, keys[1], [["Revoke…", "Revoke all"], ["Force…", "End the leases now"]]],
  ]) {
    await page.goto(`${url}/#/${address}`);
    await page.getByText("first").first().waitFor();
    for (const [button, action] of buttons) {
      if (key === keys[1]) await page.getByLabel("Select all").check();
      await page.getByRole("button", { name: button }).click();
      const owner = `after ${button}`;
      await ok("DELETE", lockPath(key));
      await acquire(key, { owner, ttl_ms: 300_000 });
      if (key === keys[1] && button === "Force…") await dialog.getByLabel("Two clients may work at once").check();
      await dialog.getByRole("button", { name: action, exact: true }).click();
      await dialog.getByText("stale-token").waitFor();
      if (key === keys[1]) await dialog.getByText(`1 of 2 done. ${key}`).waitFor();
      await dialog.getByRole("button", { name: "Cancel" }).click();
      const { holders: [left] } = await ok("GET", lockPath(key));
      assert.deepEqual([left.owner, left.revocation], [owner, undefined]);
      await page.getByText(owner).first().waitFor();
      if (key === keys[1]) {
        assert.equal(await page.getByRole("checkbox", { name: /^Select console/, checked: true }).count(), 1);
        await page.getByRole("checkbox", { name: `Select ${key}`, checked: true }).uncheck();
      }
    }
  }
  assert.equal((await ok("GET", lockPath(keys[2]))).held, false);
});

test("the time left of a lease is shown relative to its length, however long it is held", async () => {
  const path = lockPath(`${OWN}renewed`);
  const { lease_id } = await ok("POST", `${path}/acquire`, { owner: "renewing", ttl_ms: 60_000 });
  await ok("POST", `${path}/renew`, { lease_id, ttl_ms: 300_000 });
  const page = await visit(operatorKey);
  for (const address of [lockPage(`${OWN}renewed`), `locks?${new URLSearchParams({ prefix: `${OWN}renewed` })}`]) {
    await page.goto(`${url}/#/${address}`);
    assert.equal(await page.locator("main [data-of]").first().getAttribute("data-of"), "300000");
  }
});

test("a chart shows no number of leases that there cannot be", async () => {
  const page = await visit();
  await changeSamples(page, ({ series, ...samples }) => ({ ...samples, series: { ...series, latchgate_leases_live: samples.ages_ms.map(() => -3) } }));
  await signIn(page, operatorKey);
  await page.getByRole("img", { name: "Live leases:  –", exact: true }).waitFor();
});

test("the lines of a chart stay in its frame", async () => {
  const page = await visit();
  const ages = Array.from({ length: 180 }, (_, index) => (179 - index) * 5000);
  const series = { latchgate_waiters: ages.map((_, index) => (index % 2) * 1001), latchgate_leases_live: ages.map((_, index) => index - 90),
    'latchgate_requests_total{code="200"}': ages.map((_, index) => index ** 3) };
  await changeSamples(page, (samples) => ({ ...samples, ages_ms: ages, series }));
  await signIn(page, operatorKey);
  await page.getByRole("img", { name: /^Waiting requests/ }).waitFor();
  const outside = await page.locator(".chart-plot .line").evaluateAll((lines) => lines.filter((line) => {
    const { x, y, width, height } = line.getBBox();
    const frame = line.ownerSVGElement.viewBox.baseVal;
    return x < 0 || y < 0 || x + width > frame.width + 0.2 || y + height > frame.height;
  }).map((line) => line.getAttribute("d")));
  assert.deepEqual(outside, []);
  assert.deepEqual(await page.locator(".chart-plot").evaluateAll((plots) => plots.map((plot) => getComputedStyle(plot).overflow)), Array(3).fill("hidden"));
});

test("a team sees the charts of its own app, and so does an operator who chooses it", async () => {
  const app = await newApp("charts");
  const { api_key: key } = await ok("POST", "/v1/admin/api-keys", { app, scopes: ["read"] });
  for (const [who, address] of [[key, ""], [operatorKey, `?app=${app}`]]) {
    const page = await visit(who);
    await page.goto(`${url}/#/${address}`);
    await page.locator("main").getByText(`App ${app}`).waitFor();
    const answered = await page.waitForResponse(async (response) => response.url().includes("/metrics/samples") && "latchgate_requests_total{code=\"200\"}" in (await response.json()).series);
    const { series } = await answered.json();
    assert.deepEqual(Object.keys(series).filter((name) => !/^latchgate_request(s_total|_seconds_bucket)/.test(name)), []);
    await page.locator(".chart h2").nth(1).waitFor();
    assert.deepEqual(await page.locator(".chart h2").allTextContents(), ["Requests per second", "Requests that do not wait"]);
  }
});

test("a person resolves an unknown outcome, and API keys are called by their names", async () => {
  const app = await newApp("named");
  const creator = await ok("POST", "/v1/admin/api-keys", { scopes: ["read", "admin"], name: "on-call of the platform" });
  const { api_key: key } = await ok("POST", "/v1/admin/api-keys", { app, scopes: ["read", "operations"], name: "workers of billing" }, creator.api_key);
  const id = await undecided({ operation: "charge", contents: 1 }, key);
  const page = await visit(creator.api_key);
  await page.getByText("API key on-call of the platform").waitFor();
  await page.goto(`${url}/#/operations/${id}?app=${app}`);
  await page.getByText("API key workers of billing").waitFor();
  await confirm(page, "It succeeded…", { "How do you know?": "looked", Result: "{\"receipt\": 8}" }, "Record the success");
  await page.getByText("console, API key on-call of the platform: looked").waitFor();
  await page.getByText("\"receipt\": 8").waitFor();
  assert.equal(await page.getByRole("button", { name: "It succeeded…" }).count(), 0);
  const shown = await ok("GET", `/v1/operations/${id}`, undefined, key);
  assert.deepEqual([shown.state, shown.result, shown.resolved.reason], ["succeeded", { receipt: 8 }, "looked"]);
  await page.setViewportSize({ width: 1600, height: 900 });
  await page.goto(`${url}/#/access?app=${app}`);
  await page.getByRole("row", { name: "workers of billing" }).getByText("on-call of the platform").waitFor();
  await page.goto(`${url}/#/access?app=default`);
  assert.equal(await page.locator("tr", { hasText: creator.id }).locator("td[data-label='Last used']").textContent(), "now");
});

test("a new API key is of the app in sight", async () => {
  const app = await newApp("sight");
  const page = await visit(operatorKey);
  for (const [address, expected] of [["access", "default"], [`access?app=${app}`, app]]) {
    await page.goto(`${url}/#/${address}`);
    await page.getByRole("button", { name: "Create an API key…" }).click();
    const dialog = page.getByRole("dialog");
    assert.equal(await dialog.getByRole("combobox", { name: /^App/ }).inputValue(), expected);
    await dialog.getByRole("button", { name: "Cancel" }).click();
  }
});

test("an operator sets after what time a held lock of an app is a notice", async () => {
  const app = await newApp("warned");
  const page = await visit(operatorKey);
  await navigation(page, "Apps and API keys").click();
  const set = async (seconds, shown) => {
    await confirm(page, `Limits of ${app}`, { "Notice of a lock": seconds }, "Save");
    await page.getByRole("region", { name: "Apps" }).locator("tr", { hasText: app }).getByText(shown).waitFor();
  };
  await set("1.5", "Notice of a lock that is held for 1.5 s");
  const { apps } = await ok("GET", "/v1/admin/apps");
  assert.equal(apps.find(({ app: of }) => of === app).warn_after_ms, 1500);
  await set("", "none");
});

test("an operator closes a key for a while, and opens it for the client that waits", async () => {
  const page = await visit(operatorKey, lockPage(`${OWN}prod`));
  await confirm(page, "Close…", { Reason: "release <b>weekend</b>", "For how long, in hours": "48" }, "Close");
  await page.getByText("“release <b>weekend</b>”").first().waitFor();
  const refused = await acquire(`${OWN}prod`, {});
  assert.deepEqual([refused.status, refused.body.code], [423, "lock-closed"]);
  const granted = waiter(`${OWN}prod`, "curl-seven");
  await page.getByText(/curl-seven|1 request waits/).first().waitFor();
  await page.getByRole("button", { name: "Open", exact: true }).click();
  assert.equal((await granted).key, `${OWN}prod`);
  await page.getByRole("button", { name: "Close…" }).waitFor();
});

test("a person takes a lock for trying out, by keyboard, and releases it", async () => {
  const page = await visit(operatorKey);
  await page.locator("main").focus();
  await page.keyboard.press("?");
  const help = page.getByRole("dialog", { name: "Keyboard" }).getByRole("button");
  await help.click();
  await help.waitFor({ state: "detached" });
  await page.keyboard.press("g");
  await page.keyboard.press("l");
  await page.getByRole("heading", { name: "Locks" }).waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type(`${OWN}tried/`);
  await page.keyboard.press("Enter");
  await page.getByText("No lock fits.").waitFor();
  await page.getByRole("button", { name: "Take a lock…" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("dialog").getByLabel("Key", { exact: true }).fill(`${OWN}tried/one`);
  await page.keyboard.press("Enter");
  await page.getByText("This page holds the lock").waitFor();
  assert.equal((await acquire(`${OWN}tried/one`, {})).status, 423);
  await page.getByRole("button", { name: "Release" }).click();
  await page.getByText("No lease: the lock is free.").waitFor();

  // After signing out, the next person has no lease.
  await confirm(page, "Take it…", {}, "Take it");
  await page.getByText("This page holds the lock").waitFor();
  await page.getByRole("button", { name: "Sign out" }).click();
  await signIn(page, operatorKey);
  await page.goto(`${url}/#/${lockPage(`${OWN}tried/one`)}`);
  await page.getByRole("region", { name: "Holders" }).getByText("console").waitFor();
  assert.equal(await page.getByText("This page holds the lock").count(), 0);
});

test("a person finds an operation by its contents, and forgets it", async () => {
  const order = Date.now();
  const contents = { order, amount: "19.90" };
  const { id, stamp } = await ok("POST", "/v1/operations/pre", { operation: "charge", contents, label: "billing-7: <b>", metadata: { ticket: "OPS-1" }, keep_contents: true });
  await ok("POST", `/v1/operations/${id}/post`, { stamp, outcome: "success", result: { receipt: "<i>r-1</i>" } });
  const page = await visit(operatorKey);
  await navigation(page, "Operations").click();
  await page.getByText("To find an operation by its contents or id, choose its app.").waitFor();
  await page.getByRole("combobox", { name: "App" }).selectOption("default");
  await page.getByText("Find by contents or id").click();
  await page.getByLabel("Operation", { exact: true }).first().fill("charge");
  await page.getByLabel("Contents").fill(`{"amount": "19.90",  "order": ${order}}`);
  await page.getByRole("button", { name: "Find" }).click();
  await page.getByRole("link", { name: id }).click();
  await page.getByText("\"receipt\": \"<i>r-1</i>\"").waitFor();
  for (const text of ["billing-7: <b>", "\"ticket\": \"OPS-1\"", "\"amount\": \"19.90\"", "API key"]) await page.getByText(text).first().waitFor();
  await confirm(page, "Forget…", {}, "Forget");
  await page.getByText("There is no record of this operation").waitFor();
  assert.equal((await api("GET", `/v1/operations/${id}`)).status, 404);
});

test("a team with a small quota of requests sees which operations it must decide", async () => {
  const app = await newApp("few-requests");
  const { api_key: key } = await ok("POST", "/v1/admin/api-keys", { app, scopes: ["read", "operations", "admin"] });
  await undecided({ operation: "charge", contents: app, label: "ann must decide" }, key);
  await ok("PATCH", `/v1/admin/apps/${app}`, { quotas: { requests_per_second: 20 } });
  const page = await visit(key);
  await page.getByText("ann must decide").waitFor();
  // Each list has answered in the end.
  for (const none of ["No request waits.", "No lease holds a lock.", "No key is closed."]) await page.getByText(none).waitFor();
});

test("the button that deletes the record of an operation that may have run works only after a person has said so", async () => {
  const id = await undecided({ operation: "charge", contents: `forgotten ${Date.now()}` });
  const page = await visit(operatorKey, `operations/${id}`);
  await page.getByRole("button", { name: "Forget…" }).click();
  const dialog = page.getByRole("dialog");
  const forget = dialog.getByRole("button", { name: "Forget" });
  assert.ok(await forget.isDisabled());
  await dialog.getByLabel("Delete it all the same").check();
  await forget.click();
  await page.getByText("There is no record of this operation").waitFor();
});

test("the overview shows minutes that were before its first look, and each chart its axes", async () => {
  // The node takes a sample every 5 s.
  let samples;
  do samples = await ok("GET", "/metrics/samples"); while (samples.ages_ms.length < 3);
  const page = await visit();
  let asked = 0;
  page.on("request", (request) => request.url().includes("/metrics/samples") && (asked += 1));
  await signIn(page, operatorKey);
  const chart = page.locator(".chart", { has: page.getByRole("heading", { name: "Requests per second" }) });
  const plot = chart.getByRole("img", { name: /Requests per second: 2xx .* between .* and .* since/ });
  await plot.waitFor();
  const points = (await plot.locator(".line-0").first().getAttribute("d")).split("L").length;
  assert.ok(asked === 1 && points >= 2, `${points} points after ${asked} answers`);
  assert.equal(await chart.locator(".chart-times span").count(), 4);
  assert.match(await chart.locator(".chart-values").innerText(), /\d/);
  await plot.hover({ position: { x: 20, y: 20 } });
  await chart.getByText(/^at \d\d:\d\d:\d\d$/).waitFor();
  await page.getByLabel("Range").selectOption("5");
  assert.match(page.url(), /\?range=5$/);
  await page.reload();
  await plot.waitFor();
  assert.equal(await page.getByLabel("Range").inputValue(), "5");
});

test("behind a load balancer, the overview asks until all nodes have answered", async () => {
  const page = await visit();
  let asked = 0;
  await page.route("**/v1/admin/engines", async (route) => {
    const response = await route.fetch();
    const engines = await response.json();
    await route.fulfill({ response, json: { ...engines, nodes: [...engines.nodes, { ...engines.nodes[0], node: "another" }] } });
  });
  await changeSamples(page, (samples) => {
    asked += 1;
    return asked % 3 === 0 ? { ...samples, node: "another" } : samples;
  });
  await signIn(page, operatorKey);
  await page.getByText("Of 1 node of 2 that answered").waitFor();
  await page.getByText("Of 2 nodes that answered").waitFor();
});

test("the overview names what needs attention, and leads there", async () => {
  const held = `${OWN}attention/held`;
  await acquire(held, { owner: "curl-eight", ttl_ms: 300_000 });
  const granted = waiter(held, "curl-nine");
  await undecided({ operation: `decide ${OWN}`, contents: 1 });
  await ok("PUT", `${lockPath(`${OWN}attention/closed`)}/closed`, { reason: "audit" });
  const page = await visit(operatorKey);
  const list = (name) => page.getByRole("region", { name });
  const { nodes: [{ address }] } = await ok("GET", "/v1/admin/engines");
  await list("Nodes").getByText(address).waitFor();
  await list("Most contended keys").getByRole("link", { name: held }).waitFor();
  await list("Leases held longest").getByRole("link").first().waitFor();
  await list("Closed keys").getByRole("link", { name: `${OWN}attention/closed` }).waitFor();
  await list("Operations that need a decision").getByRole("link").first().waitFor();
  await page.getByRole("link", { name: "Operations that need a decision" }).click();
  await page.getByRole("row", { name: `decide ${OWN}` }).getByRole("link", { name: `decide ${OWN}` }).click();
  await page.getByRole("button", { name: "It failed…" }).waitFor();
  await page.goto(url);
  // Every chart, list and panel leads to the page of what it shows.
  const headings = page.locator("main h2");
  await headings.nth(13).waitFor();
  assert.equal(await page.locator("main h2 > a").count(), await headings.count());
  await page.getByRole("link", { name: "Most contended keys" }).click();
  await page.getByRole("columnheader", { name: "Waiting" }).waitFor();
  assert.equal(await page.getByLabel("Sort by").inputValue(), "waiters");
  await ok("DELETE", `${lockPath(held)}?reason=test`);
  assert.equal((await granted).key, held);
  await page.goto(`${url}/#/engines`);
  await list("Nodes").getByText(address).waitFor();
});

test("a person sorts a list, closes several keys at once, and finds them by an address", async () => {
  const keys = ["one", "two", "three"].map((name) => `${OWN}several/${name}`);
  for (const key of keys) await acquire(key, { owner: "curl-ten", ttl_ms: 300_000 });
  const page = await visit(operatorKey, `locks?${new URLSearchParams({ app: "default", prefix: `${OWN}several/` })}`);
  await page.getByText("3 keys, 3 held by 3 leases").waitFor();
  await page.getByRole("columnheader", { name: "Held for" }).getByRole("button").click();
  assert.match(page.url(), /sort=held_since/);
  await page.locator("[aria-sort]").getByText("Held for").waitFor();
  assert.deepEqual(await page.locator("tbody .title").allTextContents(), keys);
  for (const key of keys.slice(0, 2)) await page.getByLabel(`Select ${key}`).check();
  const selected = page.getByRole("group", { name: "Selected" });
  await selected.getByText("2 keys selected").waitFor();
  await selected.getByRole("button", { name: "Close…" }).click();
  const dialog = page.getByRole("dialog");
  assert.deepEqual(await dialog.getByRole("listitem").allTextContents(), keys.slice(0, 2));
  assert.ok(await dialog.getByRole("button", { name: "Close all" }).isDisabled());
  await dialog.getByLabel("Reason").fill("audit");
  await dialog.getByRole("button", { name: "Close all" }).click();
  await dialog.waitFor({ state: "detached" });
  await page.getByLabel("State").selectOption("closed");
  await page.getByText("2 keys, 2 held by 2 leases, 2 closed").waitFor();
  // The address has the filters.
  await page.reload();
  await page.getByText("2 keys, 2 held by 2 leases, 2 closed").waitFor();
  await page.getByLabel("Select all").check();
  await confirm(page, "Open…", {}, "Open all");
  await page.getByText("No lock fits.").waitFor();
  assert.equal((await ok("GET", lockPath(keys[0]))).closed, undefined);
});

test("a person resolves several operations at once", async () => {
  const operation = `several ${OWN}`;
  for (const contents of [1, 2]) await undecided({ operation, contents });
  const page = await visit(operatorKey, `operations?${new URLSearchParams({ operation, state: "decision" })}`);
  await page.getByText("2 operations: 2 unknown").waitFor();
  await page.getByLabel("Select all").check();
  await confirm(page, "They succeeded…", { "How do you know?": "the bank has both" }, "Record the successes");
  await page.getByText("No operation fits.").waitFor();
  const { operations } = await ok("GET", `/v1/operations?${new URLSearchParams({ operation })}`);
  assert.deepEqual(operations.map(({ state, resolved }) => [state, resolved.reason]), Array(2).fill(["succeeded", "the bank has both"]));
});

test("an operator chooses another app, and sorts its operations by time", async () => {
  const app = await newApp("chosen");
  const { api_key: key } = await ok("POST", "/v1/admin/api-keys", { app, scopes: ["operations"] });
  const pre = (label) => ok("POST", "/v1/operations/pre", { operation: "sorted", contents: label, label }, key);
  await pre("earlier");
  const { id, stamp } = await pre("later");
  await ok("POST", `/v1/operations/${id}/post`, { stamp, outcome: "unknown" }, key);
  const page = await visit(operatorKey);
  await navigation(page, "Operations").click();
  await page.getByRole("combobox", { name: "App" }).selectOption(app);
  await page.getByText("2 operations: ").waitFor();
  const since = page.getByRole("columnheader", { name: "For", exact: false });
  const labels = page.locator("td[data-label=Label]");
  // It begins with the newest.
  assert.deepEqual(await labels.allTextContents(), ["later", "earlier"]);
  for (const [order, expected] of [["oldest", ["earlier", "later"]], ["newest", ["later", "earlier"]]]) {
    const answered = page.waitForResponse((response) => response.url().includes(`sort=${order}`) && response.url().includes(`app=${app}`));
    await since.getByRole("button").click();
    await answered;
    await page.locator(`[aria-sort=${order === "newest" ? "ascending" : "descending"}]`).getByText("For").waitFor();
    assert.deepEqual(await labels.allTextContents(), expected);
    assert.equal(new URLSearchParams(page.url().split("?")[1]).get("sort"), order === "newest" ? null : order);
  }
  await page.getByRole("combobox", { name: /^State/ }).selectOption("decision");
  await page.getByText("1 operation: 1 unknown").waitFor();
  assert.deepEqual(await labels.allTextContents(), ["later"]);
});

test("an operator looks at all apps, and what is done to a lock or an operation is done in its app", async () => {
  const now = Date.now();
  const [app, name] = [`all-${now}`, `${OWN}of-all/${now}`];
  await ok("POST", "/v1/admin/apps", { app });
  const { api_key: key } = await ok("POST", "/v1/admin/api-keys", { app, scopes: ["read", "locks", "operations"] });
  for (const caller of [key, operatorKey]) await ok("POST", `${lockPath(name)}/acquire`, { owner: "worker", ttl_ms: 300_000 }, caller);
  const isHeld = async (caller) => (await ok("GET", lockPath(name), undefined, caller)).held;
  await undecided({ operation: "of-all", contents: app, label: app }, key);
  const page = await visit(operatorKey, `locks?${new URLSearchParams({ prefix: name })}`);
  assert.equal(await page.getByRole("combobox", { name: "App" }).inputValue(), "");
  await page.locator("main").getByText("All apps").waitFor();
  await page.getByText("2 keys, 2 held").waitFor();
  assert.deepEqual(await page.locator("td[data-label=App]").allTextContents(), [app, "default"]);

  await page.getByRole("checkbox", { name: `Select ${name} of ${app}` }).check();
  await page.getByRole("button", { name: "Force…" }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByText("Two clients may work at once", { exact: true }).click();
  await dialog.getByRole("button", { name: "End the leases now" }).click();
  await page.getByText("Ended the leases of 1 key.").waitFor();
  assert.deepEqual([await isHeld(key), await isHeld(operatorKey)], [false, true]);

  // A list begins with held locks, and the address of a lock has its app.
  await page.getByText("1 key, 1 held").waitFor();
  await page.getByLabel("State").selectOption("any");
  await page.locator("tr", { hasText: app }).getByRole("link", { name }).click();
  await page.waitForURL((address) => address.hash.endsWith(`?app=${app}`));
  await page.locator("main").getByText(`App ${app}`).waitFor();
  await page.getByText("free").first().waitFor();
  // The other pages stay with the app, until another one is chosen.
  await navigation(page, "Operations").click();
  await page.locator("main").getByText(`App ${app}`).waitFor();
  await page.reload();
  await page.locator("main").getByText(`App ${app}`).waitFor();
  await page.getByRole("combobox", { name: "App" }).selectOption("all apps");
  await page.locator("main").getByText("All apps").waitFor();
  await page.goto(`${url}/#/operations?operation=of-all`);
  await page.locator("tr", { hasText: app }).getByRole("link", { name: "of-all" }).click();
  await confirm(page, "It failed…", { "How do you know?": "looked" }, "Record the failure");
  await page.getByText("no record", { exact: true }).waitFor();
});

test("an operator revokes several API keys at once", async () => {
  await ok("POST", "/v1/admin/apps", { app: "several" });
  const ids = [];
  for (const name of ["one", "two"]) ids.push((await ok("POST", "/v1/admin/api-keys", { app: "several", scopes: ["read"], name })).id);
  const page = await visit(operatorKey, "access?app=several");
  for (const id of ids) await page.getByLabel(`Select ${id}`).check();
  await page.getByRole("group", { name: "Selected" }).getByRole("button", { name: "Revoke…" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Revoke all" }).click();
  await page.getByText("No API key.").waitFor();
  const { api_keys: left } = await ok("GET", "/v1/admin/api-keys?app=several");
  assert.deepEqual(left.filter(({ id }) => ids.includes(id)).map(({ state }) => state), ["revoked", "revoked"]);
});

test("on a phone, every page, the theme and signing out are in the menu", async () => {
  const page = await visit(operatorKey, undefined, { viewport: { width: 390, height: 844 } });
  const menu = page.getByRole("button", { name: "Menu" });
  assert.ok(!(await navigation(page, "Locks").isVisible()));
  for (const [, name] of PAGES.filter(([path]) => !path.includes("/"))) {
    await menu.click();
    await navigation(page, name).click();
    await page.getByRole("heading", { level: 1, name }).waitFor();
    assert.equal(await menu.getAttribute("aria-expanded"), "false");
  }
  await menu.click();
  await page.getByLabel("Theme").selectOption("dark");
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("API key").waitFor();
});

test("events arrive while they happen", async () => {
  const page = await visit(operatorKey);
  // A stream that is refused because of the app's quota is asked for again.
  const problem = { code: "quota-reached", detail: "This test refuses." };
  await page.route(/\/v1\/events/, (request) => request.fulfill({ status: 429, json: problem }), { times: 1 });
  await navigation(page, "Events").click();
  await page.getByText("live", { exact: true }).waitFor();
  await acquire(`${OWN}live`, { owner: "curl-three" });
  await page.getByRole("list", { name: "Events" }).getByText("curl-three").waitFor();
});

test("an API key without admin sees no button that it may not press", async () => {
  const { api_key: key } = await ok("POST", "/v1/admin/api-keys", { scopes: ["read", "operations"], prefixes: [OWN] });
  await acquire(`${OWN}watched`, { owner: "curl-four", ttl_ms: 300_000 });
  const id = await undecided({ operation: "charge", contents: `undecided ${OWN}` });
  const page = await visit(key);
  const links = page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link");
  await links.first().waitFor();
  assert.deepEqual(await links.allTextContents(), ["Overview", "Locks", "Operations", "Events"]);
  await page.goto(`${url}/#/locks/other`);
  await page.getByText(`limited to locks whose keys begin with ${OWN}`).waitFor();
  assert.equal(await page.getByText("Loading…").count(), 0);
  await navigation(page, "Locks").click();
  await page.getByRole("link", { name: `${OWN}watched` }).click();
  await page.getByRole("region", { name: "Holders" }).getByText("curl-four").waitFor();
  for (const name of ["Take it…", "Revoke…", "Force…", "Close…"]) assert.equal(await page.getByRole("button", { name }).count(), 0, name);
  const needed = "This page needs an API key of the app default with the scope admin";
  for (const [path, said] of [["engines", needed], ["access", needed], [`operations/${id}`, "an API key with the scope admin says what became of it"]]) {
    await page.goto(`${url}/#/${path}`);
    await page.getByText(said).waitFor();
    assert.equal(await page.locator("main button").count(), 0, path);
  }
  // Signing out leaves nothing in the browser.
  await page.getByRole("button", { name: "Sign out" }).click();
  await page.getByLabel("API key").waitFor();
  assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  await page.getByLabel("API key").fill("lgk_wrong");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").waitFor();
});

test("no list is cut off on a desktop", async () => {
  await acquire(`${OWN}wide`, { owner: "host-with-a-name.example.com:12345 worker", ttl_ms: 300_000 });
  await ok("PUT", `${lockPath(`${OWN}wide`)}/closed`, { reason: "a release weekend, and a reason of some length", until: new Date(Date.now() + 9e7).toISOString() });
  await ok("POST", "/v1/admin/api-keys", { scopes: ["read", "locks", "operations", "admin"], name: "the workers of billing", expires_in_ms: 864e5 });
  const page = await visit(operatorKey);
  for (const [width, of] of [1920, 1440, 1201, 1200, 900].flatMap((width) => PAGES.map((of) => [width, of]))) {
    await page.setViewportSize({ width, height: 900 });
    await open(page, of);
    assert.deepEqual(await page.locator(".scroll").evaluateAll((lists) => lists.filter((list) => list.scrollWidth > list.clientWidth).map((list) => list.ariaLabel)), [], `/${of[0]} at ${width}`);
  }
});

test("every page is accessible in both themes and fits a phone", async () => {
  await acquire(`${OWN}seen`, { owner: "curl-five", ttl_ms: 300_000 });
  const id = await undecided({ operation: "charge", contents: `${OWN}seen` });
  const pages = [...PAGES, [`operations/${id}`, "charge"]];
  const page = await visit(operatorKey);
  const serious = [];
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const backgrounds = new Set();
  for (const theme of ["light", "dark"]) {
    await page.getByLabel("Theme").selectOption(theme);
    backgrounds.add(await background());
    for (const of of pages) {
      await open(page, of);
      const { violations } = await page.evaluate(() => globalThis.axe.run({ resultTypes: ["violations"] }));
      serious.push(...violations.filter(({ impact }) => ["serious", "critical"].includes(impact))
        .map(({ id, nodes }) => `${theme} /${of[0]} ${id}: ${nodes[0].html} ${nodes[0].failureSummary}`));
    }
  }
  assert.deepEqual(serious, []);
  assert.equal(backgrounds.size, 2);
  await page.setViewportSize({ width: 390, height: 844 });
  for (const of of pages) {
    await open(page, of);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `/${of[0]} is wider than a phone`);
  }
  // The theme stays after a reload.
  await page.reload();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
});

test("the console says when the node is away, and goes on when it is back", async () => {
  const page = await visit(operatorKey);
  await acquire(`${OWN}away`, { owner: "curl-six", ttl_ms: 300_000 });
  await page.goto(`${url}/#/${lockPage(`${OWN}away`)}`);
  await page.getByRole("region", { name: "Holders" }).getByText("curl-six").waitFor();
  await page.context().setOffline(true);
  await page.getByText("The node does not answer.").waitFor();
  // What was seen stays.
  await page.getByRole("region", { name: "Holders" }).getByText("curl-six").waitFor();
  await page.context().setOffline(false);
  await page.getByText("The node does not answer.").waitFor({ state: "detached" });
});
