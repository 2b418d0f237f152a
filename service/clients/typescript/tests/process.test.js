// What needs a process of its own: how a program loads the client, and when it ends.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

import { a, b, freshKey, isFree } from "./world.js";

let directory;
before(async () => {
  // Inside the package, so that a program finds it by its name.
  directory = await mkdtemp(fileURLToPath(new URL("process-", import.meta.url)));
});
after(() => rm(directory, { recursive: true }));

/** Runs the program to its end, and returns what it has printed. */
async function run(name, code) {
  const file = join(directory, name);
  await writeFile(file, code);
  const env = { ...process.env, LATCHGATE_URL: `${a.url},${b.url}` };
  const { stdout } = await promisify(execFile)(process.execPath, [file], { env, encoding: "utf8", timeout: 60_000 });
  return stdout.trim();
}

test("a process that awaits only the signal of its lease learns that it is lost", async () => {
  const printed = await run("signal.mjs", `
    import { Client } from "latchgate";
    const { signal } = await new Client(undefined, { retryForMs: 30_000 }).lock("test/signal", { ttlMs: 3_000 });
    setTimeout(() => fetch(process.env.LATCHGATE_URL.split(",")[1] + "/v1/locks/test%2Fsignal", { method: "DELETE" }), 0);
    await new Promise((lost) => signal.addEventListener("abort", lost));
    console.log(signal.reason.why);
  `);
  assert.equal(printed, "forced");
});

test("a process ends after its release, though the lease would have lasted longer", async () => {
  const key = freshKey();
  await run("release.mjs", `
    import { Client } from "latchgate";
    await new Client(undefined, { retryForMs: 30_000 }).withLock(${JSON.stringify(key)}, { ttlMs: 60_000 }, () => {});
  `);
  await isFree(key);
});

test("CommonJS and ES modules get one and the same client", async () => {
  const printed = await run("common.cjs", `
    const { Client, LockHeld } = require("latchgate");
    const key = ${JSON.stringify(freshKey())};
    import("latchgate").then(async (esm) => {
      const lease = await new Client(undefined, { retryForMs: 30_000 }).lock(key);
      const held = await new esm.Client(undefined, { retryForMs: 30_000 }).lock(key, { waitMs: 0 }).catch((error) => error);
      await lease.release();
      console.log(Client === esm.Client, held instanceof LockHeld);
    });
  `);
  assert.equal(printed, "true true");
});

test("a forked process that is sent a lease has no lease", async () => {
  const key = freshKey();
  const child = `
    process.on("message", (lease) => {
      console.log(typeof lease.release, typeof lease[Symbol.asyncDispose], lease.leaseId === undefined);
      process.exit();
    });
  `;
  await writeFile(join(directory, "child.mjs"), child);
  const printed = await run("fork.mjs", `
    import { fork } from "node:child_process";
    import { once } from "node:events";
    import { Client } from "latchgate";
    await new Client(undefined, { retryForMs: 30_000 }).withLock(${JSON.stringify(key)}, async (lease) => {
      const child = fork(new URL("child.mjs", import.meta.url));
      child.send(lease);
      await once(child, "exit");
      lease.check();
      const { held } = await (await fetch(process.env.LATCHGATE_URL.split(",")[0] + "/v1/locks/" + encodeURIComponent(lease.key))).json();
      console.log(held);
    });
  `);
  assert.equal(printed, "undefined undefined false\ntrue");
  await isFree(key);
});

test("48: a run that waits to be entered does not keep its process, whose end reports it", async () => {
  const printed = await run("entry.mjs", `
    console.warn = console.log;
    import { Client } from "latchgate";
    const client = new Client("http://127.0.0.1:1", { retryForMs: 100 });
    const { result } = await client.once("k", () => 7, { operation: "test", onOutage: "proceed" });
    if (result !== 7) throw new Error("it did not run");
  `);
  assert.match(printed, /^latchgate: "test" runs unguarded, because the gate is away: .*\nlatchgate: a run of "test" at .* is not recorded: the process ends$/);
});
