// Calls that this client refuses before anything is sent, and the examples of README.md.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Client } from "../src/index.js";
import { a, b, clientOf, freshKey, isFree, startRecorder } from "./world.js";

test("an option that is unknown or of another type is refused by its name", async () => {
  const client = clientOf(a);
  const fail = () => assert.fail("it runs");
  const calls = {
    'Client has no option "ttlMs"': async () => new Client([a.url], { ttlMs: 1 }),
    "Client takes the URLs first": async () => new Client({ apiKey: "lgk_1" }),
    "one of the URLs is not that of a node": async () => new Client(["localhost"]),
    'lock has no option "ttl"': () => client.lock("k", { ttl: 1 }),
    'tryLock has no option "waitMs"': () => client.tryLock("k", { waitMs: 1 }),
    'withLock has no option "ttl"': () => client.withLock("k", { ttl: 1 }, fail),
    'multilock has no option "shared"': () => client.multilock(["k"], { shared: true }),
    'a key of multilock has no option "share"': () => client.multilock([{ key: "k", share: true }]),
    'once has no option "onExpire"': () => client.once("k", fail, { operation: "test", onExpire: "retry" }),
    'revoke has no option "grace"': () => client.revoke("k", { grace: 1 }),
    'events has no option "since"': async () => client.events("k", { since: "1" }),
    'the first argument of events has no option "prefixes"': async () => client.events({ prefixes: "k" }),
    "lock takes an object, not 30000": () => client.lock("k", 30_000),
    "minHoldMs of lock": () => client.lock("k", { minHoldMs: NaN }),
    "waitMs of lock": () => client.lock("k", { waitMs: "5" }),
    "ttlMs of once": () => client.once("k", fail, { operation: "test", ttlMs: null }),
    "shared of a key of multilock": () => client.multilock([{ key: "k", shared: "no" }]),
    "owner of multilock": () => client.multilock(["k"], { owner: 7 }),
    "group of lock": () => client.lock("k", { limit: 2, group: "\ud800" }),
    "onOutage of once": () => client.once("k", fail, { operation: "test", onOutage: "open" }),
    "token of revoke": () => client.revoke("k", { token: NaN }),
    "metadata of lock": () => client.lock("k", { metadata: ["a"] }),
    "signal of lock": () => client.lock("k", { signal: new AbortController() }),
    "after of events": async () => client.events("k", { after: "1\r\nX: y" }),
    "retryForMs of Client": async () => new Client(a.url, { retryForMs: "2000" }),
    "fence needs the token of a lease": () => client.fence("k", NaN),
  };
  for (const [says, call] of Object.entries(calls)) {
    await assert.rejects(call, (error) => error instanceof TypeError && error.message.includes(says), says);
  }
  for (const key of [undefined, null, 42, {}, "\udfff"]) {
    await assert.rejects(client.lock(key), TypeError);
    await assert.rejects(client.fence(key, 1), TypeError);
  }
  await isFree("k");
});

test("what JSON cannot say is refused with its path", async (context) => {
  const recorder = await startRecorder(context);
  const client = clientOf(recorder);
  const fail = () => assert.fail("it runs");
  class Order {
    #number = 42;
    get number() {
      return this.#number;
    }
  }
  const circular = { name: "a" };
  circular.within = [circular];
  const hidden = Object.defineProperty({ a: 1 }, "secret", { value: 2 });
  const refused = [
    [{ order: { amount: Promise.resolve(5) } }, "contents.order.amount is a Promise"],
    [{ order: undefined }, "contents.order is undefined"],
    [[1, NaN], "contents[1] is NaN"],
    [{ "a b": -Infinity }, 'contents["a b"] is -Infinity'],
    [{ lines: new Map([[1, 2]]) }, "contents.lines is a Map"],
    [{ price: () => 5 }, "contents.price is a function"],
    [{ kind: Symbol("a") }, "contents.kind is a symbol"],
    [{ id: 5n }, "contents.id is a bigint"],
    [{ order: new Order() }, "contents.order is a Order"],
    [{ name: "\ud83d" }, "contents.name is a string with half"],
    [{ "\udc00": 1 }, "contents has a name with half"],
    [{ at: new Date(NaN) }, "contents.at has nothing to say"],
    [{ found: /(?<year>\d+)/.exec("in 2026") }, "contents.found is an array with members that have names"],
    [[1, , 3], "contents[1] is undefined"],
    [{ [Symbol("id")]: 7, a: 1 }, "contents has members that JSON leaves out"],
    [{ hidden }, "contents.hidden has members that JSON leaves out"],
    [{ big: 2 ** 53 }, "contents.big is 9007199254740992"],
    [Object.create({ inherited: 1 }), "contents is a Object"],
    [circular, "contents.within[0].within"],
    [undefined, "contents is undefined"],
    ["", "contents says nothing"],
    [{ a: null, b: [null, { c: "" }] }, "contents says nothing"],
  ];
  for (const [contents, begins] of refused) {
    await assert.rejects(client.once(contents, fail, { operation: "test" }), (error) => {
      assert.ok(error instanceof TypeError && error.message.startsWith(begins), `${error}, not ${begins}`);
      return true;
    });
  }
  const checks = [[{ amount: undefined }, "checked.amount"], [undefined, "checked is undefined"], [null, "checked is null"], [new Map(), "checked is a Map"]];
  for (const [checked, begins] of checks) {
    const call = client.once("k", fail, { operation: "test", checked });
    await assert.rejects(call, (error) => error instanceof TypeError && error.message.startsWith(begins), begins);
  }
  await assert.rejects(client.lock("k", { metadata: { by: { name: undefined } } }), /^TypeError: metadata\.by\.name is undefined/);
  assert.deepEqual(recorder.bodies, []);

  // What says the same in JSON is the same; and a copy is sent, also of a member with the name of a prototype.
  const at = new Date(0);
  const sent = { at, url: new URL("http://a/"), bytes: Buffer.from("a"), bare: Object.assign(Object.create(null), { a: [] }), n: 0, ok: false };
  const named = JSON.parse('{"__proto__": {"order": 42}}');
  const order = freshKey();
  await client.once({ order, ...sent }, () => 1, { operation: "test", checked: 0 });
  await client.once({ order, named }, () => 1, { operation: "test", checked: "" });
  const bodies = recorder.bodies.filter(({ operation }) => operation).map(({ contents }) => contents);
  assert.equal(JSON.stringify(bodies[0]), JSON.stringify({ order, ...sent }));
  assert.equal(JSON.stringify(bodies[1]), JSON.stringify({ order, named }));
});

test("a wrong call of `once` or `withLock` is noticed before the pre", async (context) => {
  const recorder = await startRecorder(context);
  const client = clientOf(recorder);
  const fail = () => assert.fail("it runs");
  await assert.rejects(client.once("k", fail), (error) => error instanceof TypeError && error.message.includes("{ operation }"));
  await assert.rejects(client.once("k", { operation: "charge" }), TypeError);
  await assert.rejects(client.once("k", (order, amount) => fail(order, amount), { operation: "charge" }), /takes 2 arguments/);
  await assert.rejects(client.withLock("k", (lease, done) => fail(lease, done)), /takes 2 arguments/);
  await assert.rejects(client.withLock("k", {}), TypeError);
  await assert.rejects(client.withLock("k", fail, { shared: true }), /takes the options before the work/);
  await assert.rejects(client.once("k", { operation: "charge" }, fail), /once\(contents, work, options\)/);
  assert.deepEqual(recorder.bodies, []);
});

test("the examples of the README run", async () => {
  const folder = fileURLToPath(new URL("..", import.meta.url));
  const readme = await readFile(join(folder, "README.md"), "utf8");
  const examples = [...readme.matchAll(/^```js\n(.*?)^```/gms)].map(([, code]) => code);
  assert.ok(examples.length > 1);
  // Inside the package, so that it finds itself by its name.
  const directory = await mkdtemp(join(folder, "tests", "readme-"));
  try {
    await writeFile(join(directory, "examples.js"), examples.join("\n"));
    const environment = { ...process.env, LATCHGATE_URL: `${a.url},${b.url}` };
    execFileSync(process.execPath, [join(directory, "examples.js")], { env: environment, encoding: "utf8" });
  } finally {
    await rm(directory, { recursive: true });
  }
});
