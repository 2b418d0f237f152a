// The scenarios of the gate: see ../../SCENARIOS.md.

import assert from "node:assert/strict";
import { test } from "node:test";

import { NotDone, OperationInProgress, OperationUnknown } from "../src/index.js";
import { clientOf, freshKey, startProxy, untilRenewed, world } from "./world.js";

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

test("15: a result that cannot be stored is omitted", async () => {
  const client = clientOf(nodes.a);
  const circular = {};
  circular.itself = circular;
  for (const result of [circular, () => 1, 1n, "too long for a request".repeat(10_000), "too long".repeat(10_000)]) {
    const contents = freshKey();
    assert.deepEqual(await client.once(contents, () => result, { operation: "test" }), { result, duplicate: false, resultOmitted: true });
    const again = await client.once(contents, () => "again", { operation: "test" });
    assert.deepEqual([again.result, again.duplicate], [null, true]);
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
