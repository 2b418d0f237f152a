// The scenarios of refusals, and the examples of README.md.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

import { Client, Refused } from "../src/index.js";
import { clientOf, freshKey, isFree, startNode, startProxy, world } from "./world.js";

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

test("22: a node that is busy is called again after its time", async () => {
  const proxy = await startProxy(nodes.a);
  proxy.refuse(2);
  await (await clientOf(proxy).lock(freshKey())).release();
  const times = proxy.seen.filter(({ verb }) => verb === "acquire").map(({ at }) => at);
  assert.equal(times.length, 3);
  // A timer of Node may end a millisecond early.
  assert.ok(Math.min(times[1] - times[0], times[2] - times[1]) >= 990);
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
  assert.throws(() => new Client(["localhost"]), (error) => error instanceof TypeError && error.message.includes('the URL of a node: "localhost"'));
  await isFree(nodes.a, "k");
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
