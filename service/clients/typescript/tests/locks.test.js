// What only this client's locks have: ../../python/tests runs the scenarios that all clients have. See ../../SCENARIOS.md for the numbers.

import assert from "node:assert/strict";
import os from "node:os";
import { test } from "node:test";

import { now } from "../src/clock.js";
import { a, aborted, b, clientOf, eventually, freshKey, isFree } from "./world.js";

test("11: failed work releases its lock, and an aborted wait has its reason", async () => {
  const key = freshKey();
  const client = clientOf();
  const failing = client.withLock(key, async () => {
    const waiting = new AbortController();
    const wait = client.lock(key, { signal: waiting.signal });
    await eventually(async () => (await b.lock(key)).waiters === 1, "it waits");
    waiting.abort(new RangeError("no longer wanted"));
    await assert.rejects(wait, RangeError);
    throw new EvalError("the work fails");
  });
  await assert.rejects(failing, EvalError);
  await isFree(key);
});

test("24: the machine was suspended for longer than the lease", async (context) => {
  const lease = await clientOf().lock(freshKey(), { ttlMs: 300_000 });
  let suspendedMs = 300;
  const began = now();
  // The time since the machine started has gone on, and its timers have not.
  const { uptime } = os;
  context.mock.method(os, "uptime", () => uptime() + suspendedMs / 1_000);
  // That time is read to 10 ms.
  assert.ok(now() - began > suspendedMs - 10, "a short suspension counts too");
  lease.check();
  suspendedMs = 601_000;
  await aborted(lease.signal);
  assert.equal(lease.remainingMs(), 0);
});

test("25: a lock inside of itself is nested on request", async () => {
  const key = freshKey();
  const other = freshKey();
  const client = clientOf();
  await client.withLock(key, async (outer) => {
    await client.withLock(key, { reentrant: true, waitMs: 0 }, async (inner) => {
      assert.deepEqual([inner.token, inner.owner], [outer.token, outer.owner]);
      const innermost = await client.lock(key, { reentrant: true, waitMs: 0 });
      assert.equal(innermost.token, outer.token);
      await innermost.release();
    });
    const many = await client.multilock([key, other], { reentrant: true, waitMs: 0 });
    assert.equal(many.tokens.get(key), outer.token);
    await many.release();
    assert.equal(await client.tryLock(key), undefined);
    assert.equal(await clientOf().tryLock(key, { reentrant: true }), undefined);
    // Code that runs side by side inside of another lock is not inside of each other's.
    await client.withLock(other, async () => {
      assert.ok(outer.remainingMs() > 0);
    });
    await Promise.all([1, 2].map(() => client.withLock(other, { reentrant: true }, async () => {
      assert.equal((await a.lock(other)).holders.length, 1);
    })));
  });
  await isFree(key);
  const lease = await client.lock(key);
  // Outside of the work of `withLock`, nothing says who holds it.
  assert.equal(await client.tryLock(key, { reentrant: true }), undefined);
  await lease.release();
  await client.withLock(key, { owner: "worker" }, () => assert.rejects(client.lock(key, { reentrant: true }), TypeError));
});

test("30: events end with the reason of their signal", async () => {
  const ended = new AbortController();
  const events = clientOf().events(freshKey(), { signal: ended.signal });
  const next = events.next();
  ended.abort(new RangeError("no longer wanted"));
  await assert.rejects(next, RangeError);
});

test("a lease says what it is", async () => {
  const key = freshKey();
  const lease = await clientOf().lock(key);
  assert.match(String(lease), new RegExp(`^lease of ${key}, token ${lease.token}, owner ${lease.owner}, for \\d+ ms$`));
  await lease[Symbol.asyncDispose]();
  await isFree(key);
});
