// The scenarios of the gate: see ../../SCENARIOS.md.

import assert from "node:assert/strict";
import { test } from "node:test";

import { NotDone, NotRecorded, OperationInProgress, OperationUnknown, Refused, Unavailable } from "../src/index.js";
import { clientOf, eventually, freshKey, startProxy, untilRenewed, world } from "./world.js";

const nodes = world();

test("14: parallel callers run the work once", async () => {
  const order = freshKey();
  let runs = 0;
  const calls = Array.from({ length: 20 }, (_, index) =>
    clientOf(index % 2 ? nodes.a : nodes.b).once({ order }, () => ({ receipt: ++runs }), { operation: "charge" }),
  );
  const results = await Promise.all(calls);
  assert.equal(runs, 1);
  assert.deepEqual(results.map(({ result }) => result), Array(20).fill({ receipt: 1 }));
  assert.equal(results.filter(({ duplicate }) => !duplicate).length, 1);
});

test("15: a duplicate gets the stored result", async () => {
  const a = freshKey();
  const client = clientOf(nodes.a, nodes.b);
  let done = await client.once({ a, b: [1] }, () => "receipt 7", { operation: "charge" });
  assert.deepEqual(done, { result: "receipt 7", duplicate: false, resultOmitted: false });
  done = await client.once({ b: [1.0], a }, () => "receipt 8", { operation: "charge" });
  assert.deepEqual(done, { result: "receipt 7", duplicate: true, resultOmitted: false });
});

test("36: a result that cannot be stored is omitted, and every later caller sees that", async () => {
  const client = clientOf(nodes.a);
  const circular = {};
  circular.itself = circular;
  class Receipt {
    #number = 7;
    get number() {
      return this.#number;
    }
  }
  const rows = { rows: [{ total: 1 }, { total: NaN }] };
  const results = [circular, () => 1, 1n, "too long for a request".repeat(100_000), "too long".repeat(10_000), "\0".repeat(30_000)];
  for (const result of [...results, new Map([["a", 1]]), new Receipt(), rows, "\ud800"]) {
    const contents = freshKey();
    const done = await client.once(contents, () => result, { operation: "test" });
    assert.deepEqual([done.result === result, done.duplicate, done.resultOmitted], [true, false, true]);
    if (result === rows) assert.match(done.omittedBecause, /^result\.rows\[1\]\.total is NaN/);
    const again = await client.once(contents, () => "again", { operation: "test" });
    assert.deepEqual(again, { result: null, duplicate: true, resultOmitted: true });
  }
});

test("16: work that fails may run again, unless its outcome is unknown", async () => {
  const client = clientOf(nodes.a, nodes.b);
  const contents = freshKey();
  const fail = () => {
    throw new RangeError("the work fails");
  };
  const nothingDone = () => {
    throw new NotDone("the card is not known");
  };
  await assert.rejects(client.once(contents, fail, { operation: "retry", onExpiry: "retry" }), RangeError);
  assert.equal((await client.once(contents, () => 1, { operation: "retry", onExpiry: "retry" })).result, 1);
  const block = { operation: "block" };
  await assert.rejects(client.once(contents, nothingDone, block), NotDone);
  await assert.rejects(client.once(contents, fail, block), RangeError);
  await assert.rejects(
    client.once(contents, () => 1, block),
    (error) => error instanceof OperationUnknown && error.fields.why === "reported",
  );
});

test("38: a person who must decide reads what the work has thrown", async () => {
  const client = clientOf(nodes.a);
  class BankError extends Error {}
  for (const [thrown, shown] of [
    [new BankError("no answer from the bank"), "BankError: no answer from the bank"],
    ["a text", "string: a text"],
    [Object.create(null), "an error that cannot be shown"],
  ]) {
    const work = async () => {
      throw thrown;
    };
    const contents = freshKey();
    const options = { operation: "test", label: "shop: order 7" };
    await assert.rejects(client.once(contents, work, options), (error) => error === thrown);
    const unknown = await client.once(contents, work, options).catch((error) => error);
    assert.equal(unknown.fields.label, "shop: order 7");
    const { detail } = await (await fetch(`${nodes.a.url}/v1/operations/${unknown.fields.id}`)).json();
    assert.ok(detail.startsWith(shown), detail);
    assert.match(detail.slice(shown.length), /^\nThe last heartbeat that was answered was sent \d+ s before this report\.$/);
  }
});

test("39: how long a success is kept is checked before the work", async () => {
  const client = clientOf(nodes.a);
  const contents = freshKey();
  const tooLong = client.once(contents, () => assert.fail("it runs"), { operation: "test", retentionMs: 10 * 366 * 86_400_000 });
  await assert.rejects(tooLong, (error) => error instanceof Refused && error.detail.includes("retention_ms"));
  const { result } = await client.once(contents, () => 1, { operation: "test", retentionMs: 2_000 });
  assert.equal(result, 1);
  await eventually(async () => (await client.once(contents, () => 2, { operation: "test" })).result === 2, "it is forgotten");
});

/** The call need not be repeated: its time is over before. */
const away = { status: 503, code: "store-unavailable", retry_after_ms: 600_000 };

test("40: with `onOutage: \"proceed\"` the work runs while the gate is away, and is entered afterwards", async () => {
  for (const [verb, isLost] of [["pre", false], ["pre", true], ["post", false], ["post", true]]) {
    const proxy = await startProxy(nodes.a);
    if (isLost) proxy.lose(verb, Infinity);
    else proxy.thenRefuse.set(verb, away);
    proxy.thenRefuse.set("enter", away);
    const client = clientOf(proxy, isLost ? { retryForMs: 5_000 } : {});
    const contents = freshKey();
    const options = { operation: freshKey(), ttlMs: 2_000, waitMs: 0, onOutage: "proceed" };
    const work = (attempt) => {
      assert.deepEqual([attempt.guarded, attempt.remainingMs() > 0], verb === "pre" ? [false, false] : [true, true]);
      attempt.check();
      return "receipt 7";
    };
    if (!isLost) await assert.rejects(client.once(freshKey(), work, { ...options, onOutage: undefined }), verb === "pre" ? Unavailable : NotRecorded);
    assert.deepEqual(await client.once(contents, work, options), { result: "receipt 7", duplicate: false, resultOmitted: false });
    const recorded = verb === "pre" ? "enter" : "post";
    const before = proxy.requests(recorded).length;
    await eventually(() => proxy.requests(recorded).length > before + 1, "it is tried again");
    proxy.thenRefuse.clear();
    proxy.lose(verb, 0);
    const recordedRuns = async () => {
      const query = new URLSearchParams({ operation: options.operation, state: "succeeded" });
      return (await (await fetch(`${nodes.a.url}/v1/operations?${query}`)).json()).operations;
    };
    await eventually(async () => (await recordedRuns()).length === 1, `the run is recorded: ${verb}, ${isLost}`);
    assert.equal((await recordedRuns())[0].suspected_double_runs, 0);
    const again = await clientOf(nodes.b).once(contents, () => assert.fail("it runs"), options);
    assert.deepEqual(again, { result: "receipt 7", duplicate: true, resultOmitted: false });
  }
});

test("40: nothing runs unguarded beside an attempt that is known to run", async () => {
  const proxy = await startProxy(nodes.a);
  const contents = freshKey();
  await clientOf(nodes.a).once(contents, async () => {
    const call = clientOf(proxy, { waitPerCallMs: 100 }).once(contents, () => assert.fail("it runs"), { operation: "test", onOutage: "proceed" });
    await eventually(() => proxy.requests("pre").length > 1, "it waits");
    proxy.thenRefuse.set("pre", away);
    await assert.rejects(call, Unavailable);
  }, { operation: "test" });
});

test("40: nothing runs unguarded for another reason", async () => {
  const proxy = await startProxy(nodes.a);
  const client = clientOf(proxy);
  const work = () => assert.fail("it runs");
  for (const [status, code] of [[503, "overloaded"], [503, "shutting-down"], [429, "rate-limited"], [401, "unauthorized"], [409, "operation-unknown"]]) {
    proxy.thenRefuse.set("pre", { ...away, status, code });
    await assert.rejects(client.once(freshKey(), work, { operation: "test", waitMs: 0, onOutage: "proceed" }), (error) => error.code === code);
  }
});

test("17: heartbeats keep the attempt", async () => {
  const contents = freshKey();
  const other = clientOf(nodes.b);
  const work = async (attempt) => {
    for (let beat = 0; beat < 4; beat++) {
      await untilRenewed(attempt);
      await assert.rejects(other.once(contents, () => 0, { operation: "test", waitMs: 0 }), OperationInProgress);
      attempt.check();
    }
    return "kept";
  };
  assert.equal((await clientOf(nodes.a).once(contents, work, { operation: "test", ttlMs: 6_000 })).result, "kept");
});

test("18: the answers to a pre and a post are lost", async () => {
  const order = freshKey();
  const contents = { order };
  const proxy = await startProxy(nodes.a);
  proxy.lose("pre");
  proxy.lose("post");
  let runs = 0;
  const work = () => ++runs;
  const running = clientOf(proxy).once(contents, work, { operation: "test" });
  // The repeat is about the same operation.
  contents.order = "another one";
  const done = await running;
  assert.deepEqual([runs, done.duplicate], [1, false]);
  assert.equal(new Set(proxy.requests("pre").map(({ attempt_id }) => attempt_id)).size, 1);
  assert.deepEqual([proxy.requests("pre").length, proxy.requests("post").length], [2, 2]);
  assert.deepEqual(await clientOf(nodes.b).once({ order }, work, { operation: "test" }), { ...done, duplicate: true });
  assert.equal(runs, 1);
});
