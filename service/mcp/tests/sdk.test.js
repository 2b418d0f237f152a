// Both servers, driven by the official SDK for TypeScript. `scripts/test-clients.sh` names the binary in CLIENT_BINARY, nodes in CLIENT_NODES, and
// the folder of the SDK in MCP_NODE_MODULES.

import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import { a as node } from "../../clients/typescript/tests/world.js";

const require = createRequire(join(process.env.MCP_NODE_MODULES, "latchgate.js"));
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StdioClientTransport } = require("@modelcontextprotocol/sdk/client/stdio.js");

const here = fileURLToPath(new URL(".", import.meta.url));
let directory;

before(async () => {
  directory = await mkdtemp(join(tmpdir(), "latchgate-mcp-"));
});
after(() => rm(directory, { recursive: true }));

async function session(name, args, env = {}) {
  const client = new Client({ name, version: "1.0" });
  const transport = new StdioClientTransport({ command: process.env.CLIENT_BINARY, args, env, cwd: directory });
  await client.connect(transport);
  return { client, transport, call: (tool, args = {}, options) => client.callTool({ name: tool, arguments: args }, undefined, options) };
}

const locks = (name) => session(name, ["mcp"], { LATCHGATE_URL: node.url });
const shop = (effects, ...args) =>
  session("shop", ["mcp-gate", "--url", node.url, "--name", `shop-${effects}`, ...args, "--", "node", join(here, "shop.mjs"), join(directory, effects)], {
    MCP_NODE_MODULES: process.env.MCP_NODE_MODULES,
  });
const effects = async (name) => (await readFile(join(directory, name), "utf8").catch(() => "")).split("\n").filter(Boolean);

async function until(holds) {
  const deadline = Date.now() + 60_000;
  while (!(await holds())) {
    assert.ok(Date.now() < deadline);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

test("two sessions take turns, and a cancelled call leaves the queue", async () => {
  const [first, second] = await Promise.all([locks("first"), locks("second")]);
  assert.equal((await first.client.listTools()).tools.length, 6);
  assert.equal((await first.call("acquire", { keys: ["ts"], note: "tests" })).structuredContent.acquired, true);
  const refused = await second.call("acquire", { keys: ["ts"] });
  assert.equal(refused.isError, true);
  assert.equal(refused.structuredContent.holders[0].metadata.note, "tests");
  const cancel = new AbortController();
  const waiting = second.call("acquire", { keys: ["ts"], wait_s: 40 }, { signal: cancel.signal });
  await until(async () => (await node.lock("ts")).waiters === 1);
  cancel.abort();
  await assert.rejects(waiting);
  await until(async () => (await node.lock("ts")).waiters === 0);
  await first.client.close();
  assert.equal((await second.call("acquire", { keys: ["ts"], wait_s: 40 })).structuredContent.acquired, true);
  await second.client.close();
  await until(async () => !(await node.lock("ts")).held);
});

test("a tool call runs once, and one that was cancelled is not repeated", async () => {
  const agent = await shop("once", "--call-timeout", "4s");
  const tool = (await agent.client.listTools()).tools.find((tool) => tool.name === "pay");
  assert.ok(tool.inputSchema.properties.idempotency_key);
  const first = await agent.call("pay", { amount: 7, idempotency_key: "a" });
  const again = await agent.call("pay", { amount: 7, idempotency_key: "a" });
  assert.deepEqual(again.structuredContent, first.structuredContent);
  assert.ok(again._meta["latchgate/duplicate"]);
  assert.deepEqual(await effects("once"), ["pay 7"]);
  const cancel = new AbortController();
  const slow = agent.call("slow", { ms: 3_500, idempotency_key: "b" }, { signal: cancel.signal });
  await until(async () => (await effects("once")).includes("slow"));
  cancel.abort();
  await assert.rejects(slow);
  // The server stops answering a cancelled call: nothing says whether it was done.
  const late = await agent.call("slow", { ms: 3_500, idempotency_key: "b" });
  assert.equal(late._meta["latchgate/refusal"].code, "operation-unknown");
  assert.deepEqual(await effects("once"), ["pay 7", "slow"]);
  await agent.client.close();
});
