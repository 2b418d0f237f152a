// What only this client's gate has: ../../python/tests runs the scenarios that all clients have. See ../../SCENARIOS.md for the numbers.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

import { a, clientOf, eventually, freshKey, startRecorder } from "./world.js";

test("36: a result that cannot be stored is omitted, as every caller sees", async () => {
  const client = clientOf(a);
  const circular = {};
  circular.itself = circular;
  class Receipt {
    #number = 7;
    get number() {
      return this.#number;
    }
  }
  const rows = { rows: [{ total: 1 }, { total: NaN }] };
  for (const result of [circular, () => 1, 1n, new Map([["a", 1]]), new Receipt(), rows, "\ud800"]) {
    const contents = freshKey();
    const done = await client.once(contents, () => result, { operation: "test" });
    assert.deepEqual([done.result === result, done.duplicate, done.resultOmitted], [true, false, true]);
    if (result === rows) assert.match(done.omittedBecause, /^result\.rows\[1\]\.total is NaN/);
    const again = await client.once(contents, () => "again", { operation: "test" });
    assert.deepEqual(again, { result: null, duplicate: true, resultOmitted: true });
  }
});

test("38: a person who must decide reads what the work has thrown", async () => {
  const client = clientOf(a);
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
    const { detail } = await (await fetch(`${a.url}/v1/operations/${unknown.fields.id}`)).json();
    assert.ok(detail.startsWith(shown), detail);
    assert.match(detail.slice(shown.length), /^\nThe last heartbeat that was answered was sent \d+ s before this report\.$/);
  }
});

test("18: a repeated pre has the contents of the call, whatever changes them", async (context) => {
  const order = freshKey();
  const contents = { order };
  const recorder = await startRecorder(context, { losesFirst: true });
  const running = clientOf(recorder).once(contents, () => 1, { operation: "test" });
  contents.order = "another one";
  await running;
  assert.deepEqual(recorder.bodies.slice(0, 2).map((body) => body.contents), [{ order }, { order }]);
});

function problem(code) {
  return { type: `/errors/${code}`, code };
}

/** A client of a gate that answers each pre with 503 `store-unavailable`, and an entry as `enters` does. */
async function clientOfAbsent(context, enters) {
  const server = createServer(async (incoming, outgoing) => {
    const [status, body] = incoming.url.endsWith("/enter") ? enters() : [503, { ...problem("store-unavailable"), retry_after_ms: 600_000 }];
    outgoing.writeHead(status).end(JSON.stringify(body));
  });
  await once(server.listen(0, "127.0.0.1"), "listening");
  context.after(() => server.close(() => {}).closeAllConnections());
  return clientOf({ url: `http://127.0.0.1:${server.address().port}` });
}

test("40: when too many runs are not entered, no other one begins", async (context) => {
  let isBack = false;
  const client = await clientOfAbsent(context, () => (isBack ? [200, { outcome: "success" }] : [503, problem("store-unavailable")]));
  context.mock.method(console, "warn", () => {});
  const run = (contents) => client.once(contents, () => 7, { operation: "test", onOutage: "proceed" });
  await Promise.all(Array.from({ length: 1_000 }, (_, order) => run({ order })));
  await assert.rejects(run("one more"), { name: "Unavailable", code: "store-unavailable" });
  isBack = true;
  await eventually(async () => run("one more").then(() => true, () => false), "there is room");
});

test("40: an entry is said once when refused for now, and once for good", async (context) => {
  const codes = ["unauthorized", "forbidden", "outcome-conflict"];
  const warn = context.mock.method(console, "warn", () => {});
  const client = await clientOfAbsent(context, () => [codes.length > 2 ? 401 : codes.length > 1 ? 403 : 409, problem(codes.shift())]);
  await client.once("k", () => 7, { operation: "test", onOutage: "proceed" });
  const said = () => warn.mock.calls.slice(1).map(({ arguments: [text] }) => text.replace(/^.* (is not recorded.*: \S+): .*$/, "$1"));
  await eventually(() => said().length === 2, "it is refused for good");
  assert.deepEqual(said(), ["is not recorded yet: Refused: unauthorized", "is not recorded: Refused: outcome-conflict"]);
});
