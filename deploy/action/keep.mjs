// Takes the lock, and renews it until release.mjs connects. If the step ends before it has the lock, or the runner dies, this process leaves
// the queue, or gives the lock back.

import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:net";
import { join } from "node:path";

import { Client, LockHeld } from "../../service/clients/typescript/src/index.js";

const { env } = process;
const ended = new AbortController();
let isKept = false;
process.on("message", () => (isKept = true));
process.once("disconnect", () => {
  if (!isKept) ended.abort(new Error("the step has ended"));
});

const runner = Number(process.argv[2]);
setInterval(() => {
  try {
    process.kill(runner, 0);
  } catch (error) {
    if (error.code === "ESRCH") ended.abort(new Error("the runner has died"));
  }
}, 1_000).unref();

function ms(name) {
  const [, count, unit] = /^(\d+)(ms|s|m|h)$/.exec(env[`INPUT_${name}`]?.trim()) ?? [];
  if (!count) throw new Error(`${name.toLowerCase()} is a duration, such as 90s, 30m or 6h`);
  return count * { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 }[unit];
}

function holdersOf({ holders }) {
  return holders.map(({ owner, metadata }) => metadata?.run ?? owner).join(", ") || "another one that is ahead in the queue";
}

async function take() {
  const key = env.INPUT_KEY;
  const wait = ms("WAIT");
  const options = {
    ttlMs: ms("TTL"),
    owner: `${env.GITHUB_REPOSITORY} ${env.GITHUB_JOB} ${env.GITHUB_RUN_ID}`.slice(0, 80),
    metadata: { run: `${env.GITHUB_SERVER_URL}/${env.GITHUB_REPOSITORY}/actions/runs/${env.GITHUB_RUN_ID}` },
    signal: ended.signal,
  };
  if (env.INPUT_CA?.trim()) env.LATCHGATE_CA = env.INPUT_CA;
  const client = new Client(env.INPUT_URL, { apiKey: env["INPUT_API-KEY"] || undefined, retryForMs: 30_000 });
  try {
    return await client.lock(key, { ...options, waitMs: 0 });
  } catch (error) {
    if (!(error instanceof LockHeld) || wait === 0) throw error;
    process.send({ says: `waiting for ${key}, which is held by ${holdersOf(error)}` });
    return await client.lock(key, { ...options, waitMs: wait });
  }
}

try {
  const lease = await take();
  const name = `latchgate-${randomUUID()}`;
  const address = process.platform === "win32" ? `\\\\.\\pipe\\${name}` : join(env.RUNNER_TEMP, name);
  const server = createServer().listen(address);
  await once(server, "listening");
  ended.signal.addEventListener("abort", () => lease.release().finally(() => process.exit()));
  process.send({ token: lease.token, address });
  const [socket] = await once(server, "connection");
  const outcome = await lease.release().then(() => "", (error) => error.message);
  server.close();
  socket.end(JSON.stringify({ key: lease.key, error: outcome }), () => process.exit());
} catch (error) {
  if (!process.connected) process.exit();
  process.send({ error: error instanceof LockHeld ? `${error.message}; it is held by ${holdersOf(error)}` : error.message }, () => process.exit());
}
