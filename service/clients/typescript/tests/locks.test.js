// What only this client's locks have: ../../python/tests runs the scenarios that all clients have. See ../../SCENARIOS.md for the numbers.

import assert from "node:assert/strict";
import os from "node:os";
import { test } from "node:test";

import { WaitTimeout } from "../src/index.js";
import { now } from "../src/clock.js";
import { aborted, clientOf, eventually, freshKey, isFree, startPair, world } from "./world.js";

const nodes = world();
const both = () => clientOf(nodes.a, nodes.b);

test("11: nothing is left behind", async () => {
  const key = freshKey();
  const client = both();
  const failing = client.withLock(key, () => {
    throw new RangeError("the work fails");
  });
  await assert.rejects(failing, RangeError);
  await isFree(nodes.b, key);
  await client.withLock(key, async () => {
    await assert.rejects(client.lock(key, { waitMs: 500 }), WaitTimeout);
    assert.equal((await nodes.b.lock(key)).waiters, 0);
    const waiting = new AbortController();
    const wait = client.lock(key, { signal: waiting.signal });
    await eventually(async () => (await nodes.b.lock(key)).waiters === 1, "it waits");
    waiting.abort(new RangeError("no longer wanted"));
    await assert.rejects(wait, RangeError);
    await eventually(async () => (await nodes.b.lock(key)).waiters === 0, "the waiter has left");
  });
  await isFree(nodes.b, key);
});

test("24: the machine was suspended for longer than the lease", async (context) => {
  const lease = await clientOf(nodes.a).lock(freshKey(), { ttlMs: 300_000 });
  let suspendedMs = 300;
  const began = now();
  // The time since the machine started has gone on, and its timers have not.
  const { uptime } = os;
  context.mock.method(os, "uptime", () => uptime() + suspendedMs / 1_000);
  assert.ok(now() - began >= suspendedMs, "a short suspension counts too");
  lease.check();
  suspendedMs = 601_000;
  await aborted(lease.signal);
  assert.equal(lease.remainingMs(), 0);
});

test("25: a lock inside of itself is nested on request", async () => {
  const key = freshKey();
  const other = freshKey();
  const client = both();
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
    assert.equal(await both().tryLock(key, { reentrant: true }), undefined);
    // Code that runs side by side inside of another lock is not inside of each other's.
    await client.withLock(other, async () => {
      assert.ok(outer.remainingMs() > 0);
    });
    await Promise.all([1, 2].map(() => client.withLock(other, { reentrant: true }, async () => {
      assert.equal((await nodes.a.lock(other)).holders.length, 1);
    })));
  });
  await isFree(nodes.b, key);
  const lease = await client.lock(key);
  // Outside of the work of `withLock`, nothing says who holds it.
  assert.equal(await client.tryLock(key, { reentrant: true }), undefined);
  await lease.release();
  await client.withLock(key, { owner: "worker" }, () => assert.rejects(client.lock(key, { reentrant: true }), TypeError));
});

test("30: events continue behind the last one at another node", async () => {
  const [a, b] = await startPair();
  const key = freshKey();
  const events = clientOf(a, b).events(key);
  let first;
  const reading = events.next().then(({ value }) => (first = value));
  await eventually(async () => {
    await (await clientOf(b).lock(key)).release();
    return first;
  }, "an event");
  await reading;
  assert.deepEqual([first.data.key, first.data.id], [key, first.id]);
  await a.kill();
  const last = await clientOf(b).lock(key, { owner: "last" });
  for await (const expected of clientOf(b).events(key, { after: first.id })) {
    assert.deepEqual((await events.next()).value, expected);
    if (expected.data.owner === "last") {
      assert.equal(expected.kind, "granted");
      break;
    }
  }
  const ended = new AbortController();
  const later = clientOf(b).events(key, { after: first.id, signal: ended.signal });
  await later.next();
  ended.abort(new RangeError("no longer wanted"));
  await assert.rejects(async () => {
    for (;;) await later.next();
  }, RangeError);
  await events.return();
  await last.release();
});

test("a lease says what it is", async () => {
  const key = freshKey();
  const lease = await both().lock(key);
  assert.match(String(lease), new RegExp(`^lease of ${key}, token ${lease.token}, owner ${lease.owner}, for \\d+ ms$`));
  await lease[Symbol.asyncDispose]();
  await isFree(nodes.b, key);
});
