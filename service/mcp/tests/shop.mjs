// A server of the official SDK. Each call that does something adds a line to the file of its argument.

import { appendFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

const require = createRequire(join(process.env.MCP_NODE_MODULES, "latchgate.js"));
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");
const { z } = require("zod");

const effect = (what) => appendFileSync(process.argv[2], `${what}\n`);
const text = (text) => ({ content: [{ type: "text", text }] });
const server = new McpServer({ name: "shop", version: "1.0" });
server.registerTool("pay", { inputSchema: { amount: z.number() }, outputSchema: { amount: z.number() } }, ({ amount }) => {
  effect(`pay ${amount}`);
  return { ...text("paid"), structuredContent: { amount } };
});
server.registerTool("slow", { inputSchema: { ms: z.number() } }, async ({ ms }) => {
  effect("slow");
  await new Promise((resolve) => setTimeout(resolve, ms));
  return text("slept");
});
await server.connect(new StdioServerTransport());
