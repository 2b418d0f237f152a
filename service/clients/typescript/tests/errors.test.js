// The scenarios of refusals, and the examples of README.md.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { inspect } from "node:util";

import { Client, Refused } from "../src/index.js";
import { clientOf, eventually, freshKey, isFree, startNode, startProxy, world } from "./world.js";

const nodes = world();

test("20: a refusal has its code and its fields", async () => {
  const key = freshKey();
  const proxy = await startProxy(nodes.a);
  const client = clientOf(proxy);
  const refused = (status, code, fields) => (error) => {
    assert.ok(error instanceof Refused);
    assert.deepEqual([error.status, error.code], [status, code]);
    for (const [name, value] of Object.entries(fields)) assert.equal(error.fields[name], value);
    return true;
  };
  await assert.rejects(client.lock("key\n", { waitMs: 0 }), refused(400, "invalid-key", {}));
  await client.withLock(key, { limit: 2 }, async () => {
    await assert.rejects(client.lock(key, { limit: 3 }), refused(409, "limit-mismatch", { limit: 2 }));
  });
  assert.equal(proxy.requests("acquire").length, 3);
});

test("20: an API key is needed where there is one", async () => {
  const apiKey = execFileSync(process.env.CLIENT_BINARY, ["api-key", "generate"], { encoding: "utf8" }).trim();
  const node = await startNode(["--locks", "sqlite:locks.db"], { LATCHGATE_ADMIN_API_KEY: apiKey });
  await assert.rejects(clientOf(node).lock("k"), (error) => error instanceof Refused && error.code === "unauthorized");
  const left = await clientOf(node, { apiKey }).withLock("k", (lease) => lease.remainingMs());
  assert.ok(left > 0);
});

test("43: the authorities in LATCHGATE_CA are trusted", async () => {
  const { CLIENT_TLS: tls, LATCHGATE_CA: ca } = process.env;
  const key = freshKey();
  const node = await startNode(["--tls-cert", `${tls}/cert.pem`, "--tls-key", `${tls}/key.pem`]);
  await (await clientOf(node).lock(key)).release();
  await assert.rejects(clientOf({ url: node.url.replace("https:", "http:") }).lock(key), (error) => error instanceof Refused && error.detail.includes("serves HTTPS"));
  try {
    for (const file of ["absent.pem", "key.pem"]) {
      process.env.LATCHGATE_CA = `${tls}/${file}`;
      assert.throws(() => clientOf(node), { name: "TypeError", message: /LATCHGATE_CA/ });
    }
    // Those of the system do not know it.
    delete process.env.LATCHGATE_CA;
    await assert.rejects(clientOf(node, { retryForMs: 500 }).lock(key), { name: "Unavailable" });
  } finally {
    process.env.LATCHGATE_CA = ca;
  }
});

test("44: a variable that is set and empty is no default", () => {
  const { LATCHGATE_URL: url, LATCHGATE_CA: ca } = process.env;
  const restore = (name, value) => (value === undefined ? delete process.env[name] : (process.env[name] = value));
  try {
    for (const empty of ["", " \n"]) {
      process.env.LATCHGATE_URL = empty;
      assert.throws(() => new Client(), { name: "TypeError", message: "LATCHGATE_URL is set and empty" });
      clientOf(nodes.a); // which names its own
      process.env.LATCHGATE_CA = empty;
      assert.throws(() => clientOf(nodes.a), { name: "TypeError", message: "LATCHGATE_CA is set and empty" });
      restore("LATCHGATE_CA", ca);
    }
  } finally {
    restore("LATCHGATE_URL", url);
    restore("LATCHGATE_CA", ca);
  }
});

test("22: a node that is busy is called again after its time", async () => {
  const proxy = await startProxy(nodes.a);
  proxy.refuse(2);
  await (await clientOf(proxy).lock(freshKey())).release();
  const times = proxy.seen.filter(({ verb }) => verb === "acquire").map(({ at }) => at);
  assert.equal(times.length, 3);
  // A timer of Node may end a millisecond early.
  assert.ok(Math.min(times[1] - times[0], times[2] - times[1]) >= 990);
});

test("45: a wait goes on while a quota is used up", async () => {
  const proxy = await startProxy(nodes.a);
  const retryForMs = 300;
  proxy.thenRefuse.set("acquire", { status: 429, code: "quota-reached" });
  let isOver = false;
  const waiting = clientOf(proxy, { retryForMs }).lock(freshKey(), { waitMs: 60_000 });
  waiting.catch(() => {}).finally(() => (isOver = true));
  await eventually(() => isOver || proxy.seen.at(-1)?.at - proxy.seen[0]?.at > 3 * retryForMs, "calls for longer");
  proxy.thenRefuse.clear();
  // 0.3 s may be too short for this machine.
  await (await waiting).release().catch(() => {});
});

test("an unknown option is refused by its name", async () => {
  const { signal } = new AbortController();
  const client = clientOf(nodes.a);
  const calls = [
    async () => new Client([nodes.a.url], { ttlMs: 1 }),
    () => client.lock("k", { ttl: 1 }),
    () => client.tryLock("k", { waitMs: 1 }),
    () => client.withLock("k", { ttl: 1 }, () => assert.fail("it runs")),
    () => client.multilock(["k"], { shared: true }),
    () => client.multilock([{ key: "k", share: true }]),
    () => client.once("k", () => assert.fail("it runs"), { operation: "test", onExpire: "retry" }),
    () => client.revoke("k", { grace: 1 }),
    async () => client.events("k", { since: "1", signal }),
    async () => client.events({ prefixes: "k" }),
  ];
  const names = ["ttlMs", "ttl", "waitMs", "ttl", "shared", "share", "onExpire", "grace", "since", "prefixes"];
  for (const [index, call] of calls.entries()) {
    await assert.rejects(call, (error) => error instanceof TypeError && error.message.includes(`no option "${names[index]}"`));
  }
  await assert.rejects(client.lock("k", 30_000), TypeError);
  assert.throws(() => new Client({ apiKey: "lgk_1" }), (error) => error instanceof TypeError && error.message.includes("the URLs first"));
  assert.throws(() => new Client(["localhost"]), (error) => error instanceof TypeError && error.message.includes('the URL of a node: "localhost"'));
  await isFree(nodes.a, "k");
});

test("an option of another type is refused by its name", async () => {
  const client = clientOf(nodes.a);
  const fail = () => assert.fail("it runs");
  const calls = {
    minHoldMs: () => client.lock("k", { minHoldMs: NaN }),
    delayMs: () => client.lock("k", { delayMs: Infinity }),
    waitMs: () => client.lock("k", { waitMs: "5" }),
    maxHoldMs: () => client.withLock("k", { maxHoldMs: 1.5 }, fail),
    ttlMs: () => client.once("k", fail, { operation: "test", ttlMs: null }),
    permits: () => client.tryLock("k", { permits: "2", limit: 3 }),
    shared: () => client.multilock([{ key: "k", shared: "no" }]),
    owner: () => client.multilock(["k"], { owner: 7 }),
    group: () => client.lock("k", { limit: 2, group: "\ud800" }),
    barge: () => client.lock("k", { barge: 1 }),
    permanent: () => client.once("k", fail, { operation: "test", permanent: "yes" }),
    label: () => client.once("k", fail, { operation: "test", label: 7 }),
    onOutage: () => client.once("k", fail, { operation: "test", onOutage: "open" }),
    onExpiry: () => client.once("k", fail, { operation: "test", onExpiry: "Block" }),
    token: () => client.revoke("k", { token: NaN }),
    metadata: () => client.lock("k", { metadata: ["a"] }),
    signal: () => client.lock("k", { signal: new AbortController() }),
    after: async () => client.events("k", { after: "1\r\nX: y" }),
    retryForMs: async () => new Client(nodes.a.url, { retryForMs: "2000" }),
  };
  for (const [name, call] of Object.entries(calls)) {
    await assert.rejects(call, (error) => error instanceof TypeError && error.message.startsWith(`${name} of `), name);
  }
  for (const key of [undefined, null, 42, {}, "\udfff"]) {
    await assert.rejects(client.lock(key), TypeError);
    await assert.rejects(client.fence(key, 1), TypeError);
  }
  await assert.rejects(client.fence("k", NaN), TypeError);
  await isFree(nodes.a, "k");
});

test("what JSON cannot say is refused with its path, and not left out of an identity", async () => {
  const proxy = await startProxy(nodes.a);
  const client = clientOf(proxy);
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
    [new Set([1]), "contents is a Set"],
    [{ price: () => 5 }, "contents.price is a function"],
    [{ kind: Symbol("a") }, "contents.kind is a symbol"],
    [{ id: 5n }, "contents.id is a bigint"],
    [{ order: new Order() }, "contents.order is a Order"],
    [{ name: "\ud83d" }, "contents.name is a string with half"],
    [{ "\udc00": 1 }, "contents has a name with half"],
    [{ at: new Date(NaN) }, "contents.at has nothing to say"],
    [{ body: new Uint8Array([1, 2]) }, "contents.body is a Uint8Array"],
    [{ error: new RangeError("no") }, "contents.error is a RangeError"],
    [{ found: /(?<year>\d+)/.exec("in 2026") }, "contents.found is an array with members that have names"],
    [[1, , 3], "contents[1] is undefined"],
    [{ [Symbol("id")]: 7, a: 1 }, "contents has members that JSON leaves out"],
    [{ hidden }, "contents.hidden has members that JSON leaves out"],
    [{ big: 2 ** 53 }, "contents.big is 9007199254740992"],
    [{ boxed: new String("a") }, "contents.boxed is a String"],
    [Object.create({ inherited: 1 }), "contents is a Object"],
    [circular, "contents.within[0].within"],
    [undefined, "contents is undefined"],
    ["", "contents says nothing"],
    [{}, "contents says nothing"],
    [[], "contents says nothing"],
    [null, "contents says nothing"],
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
  assert.deepEqual(proxy.seen, []);

  // What says the same in JSON is the same; and a copy is sent, also of a member with the name of a prototype.
  const at = new Date(0);
  const sent = { at, url: new URL("http://a/"), bytes: Buffer.from("a"), bare: Object.assign(Object.create(null), { a: [] }), n: 0, ok: false };
  const named = JSON.parse('{"__proto__": {"order": 42}}');
  const order = freshKey();
  await client.once({ order, ...sent }, () => 1, { operation: "test", checked: 0 });
  await client.once({ order, named }, () => 1, { operation: "test", checked: "" });
  const bodies = proxy.requests("pre").map(({ contents }) => contents);
  assert.equal(JSON.stringify(bodies[0]), JSON.stringify({ order, ...sent }));
  assert.equal(JSON.stringify(bodies[1]), JSON.stringify({ order, named }));
});

test("a wrong call of `once` or `withLock` is noticed before the pre", async () => {
  const proxy = await startProxy(nodes.a);
  const client = clientOf(proxy);
  const fail = () => assert.fail("it runs");
  await assert.rejects(client.once("k", fail), (error) => error instanceof TypeError && error.message.includes("{ operation }"));
  await assert.rejects(client.once("k", fail, "charge"), (error) => error instanceof TypeError && error.message.includes("{ operation }"));
  await assert.rejects(client.once("k", { operation: "charge" }), TypeError);
  await assert.rejects(client.once(fail, "k", { operation: "charge" }), TypeError);
  await assert.rejects(client.once("k", (order, amount) => fail(order, amount), { operation: "charge" }), /takes 2 arguments/);
  await assert.rejects(client.withLock("k", (lease, done) => fail(lease, done)), /takes 2 arguments/);
  await assert.rejects(client.withLock("k", {}), TypeError);
  await assert.rejects(client.withLock("k", fail, { shared: true }), /takes the options before the work/);
  await assert.rejects(client.withLock({ shared: true }, "k", fail), TypeError);
  await assert.rejects(client.once("k", { operation: "charge" }, fail), /once\(contents, work, options\)/);
  assert.deepEqual(proxy.seen, []);
});

test("an API key is trimmed, has its form, and is in no error", async () => {
  const apiKey = `lgk_0123456789ab_${"ab".repeat(36)}`;
  const header = new Promise((resolve) => {
    const server = createServer((incoming, outgoing) => {
      resolve(incoming.headers.authorization);
      outgoing.writeHead(401).end(JSON.stringify({ code: "unauthorized" }));
      server.close();
    });
    server.listen(0, "127.0.0.1", () => {
      // As a Kubernetes secret and a list of nodes leave them.
      const client = new Client(` http://127.0.0.1:${server.address().port}/ ,\n`, { apiKey: `${apiKey}\r\n` });
      client.lock("k").catch((error) => assert.ok(!inspect(error).includes("0123456789ab")));
    });
  });
  assert.equal(await header, `Bearer ${apiKey}`);
  for (const wrong of [`${apiKey}\n${apiKey}`, `Bearer ${apiKey}`, `"${apiKey}"`, `LATCHGATE_API_KEY=${apiKey}`, `${apiKey}\u{1F600}`, "0123456789ab"]) {
    assert.throws(() => new Client(nodes.a.url, { apiKey: wrong }), (error) => {
      assert.ok(error instanceof TypeError && !inspect(error).includes("0123456789ab"));
      return true;
    });
  }
  for (const url of ["http://user:secret@127.0.0.1:7070", "http://a?key=1", "ftp://user:secret@a", ["http://a", "localhost"], " , "]) {
    assert.throws(() => new Client(url), (error) => error instanceof TypeError && !inspect(error).includes("secret"), String(url));
  }
});

test("an answer about another key is refused, and its lease given back", async () => {
  const proxy = await startProxy(nodes.a);
  const client = clientOf(proxy);
  const base = freshKey();
  // As proxies do that merge slashes, resolve dots, decode a plus, or fold cases.
  const changes = [
    [`${base}/a//b`, (path) => path.replace("%2F%2F", "%2F")],
    [`${base}/c/../b`, (path) => path.replace("c%2F..%2F", "")],
    [`${base}/a+b`, (path) => path.replace("%2B", "%20")],
    [`${base}/AB`, (path) => path.replace("AB", "ab")],
    [`${base}/ü`, (path) => path.replace(encodeURIComponent("ü"), encodeURIComponent("u\u0308"))],
  ];
  const isOther = (error) => error instanceof Refused && error.code === "other-key";
  for (const [key, change] of changes) {
    proxy.rewrite(change);
    const other = decodeURIComponent(change(encodeURIComponent(key)));
    assert.notEqual(other, key);
    await assert.rejects(client.lock(key), isOther);
    await assert.rejects(client.withLock(key, () => assert.fail("it runs")), isOther);
    await assert.rejects(client.revoke(key), isOther);
    await isFree(nodes.a, other);
  }
});

test("keys are encoded in the path", async () => {
  for (const key of [`${freshKey()}/ü %2F?#`, `${freshKey()}\u{1F600}`, ".", ".."]) {
    const lease = await clientOf(nodes.a).lock(key);
    assert.deepEqual([...lease.tokens], [[key, lease.token]]);
    await lease.release();
  }
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
    const environment = { ...process.env, LATCHGATE_URL: `${nodes.a.url},${nodes.b.url}` };
    execFileSync(process.execPath, [join(directory, "examples.js")], { env: environment, encoding: "utf8" });
  } finally {
    await rm(directory, { recursive: true });
  }
});
