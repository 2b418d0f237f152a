// deploy/action: jobs of several repositories, as a runner starts their steps.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { createInterface } from "node:readline";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

import { a, b, eventually, freshKey, isFree } from "./world.js";

const directories = [];
after(() => Promise.all(directories.map((directory) => rm(directory, { recursive: true }))));

/** A job of a repository that holds the lock. */
async function job(repository, key, inputs = {}, runner = 'exec "$0" "$1"') {
  const directory = await mkdtemp(join(tmpdir(), "action-"));
  directories.push(directory);
  const env = {
    ...process.env,
    INPUT_KEY: key,
    INPUT_URL: `${a.url},${b.url}`,
    INPUT_WAIT: "6h",
    INPUT_TTL: "60s",
    ...inputs,
    GITHUB_REPOSITORY: repository,
    GITHUB_JOB: "deploy",
    GITHUB_RUN_ID: "17",
    GITHUB_SERVER_URL: "https://github.com",
    GITHUB_STATE: join(directory, "state"),
    GITHUB_OUTPUT: join(directory, "output"),
    RUNNER_TEMP: directory,
  };
  const step = (file, more) => {
    const script = fileURLToPath(new URL(`../../../../deploy/action/${file}`, import.meta.url));
    const child = spawn("sh", ["-c", runner, process.execPath, script], { env: { ...env, ...more }, stdio: ["pipe", "pipe", "inherit"] });
    const ended = Promise.all([once(child, "exit"), text(child.stdout)]);
    return { child, ended: ended.then(([[code], said]) => ({ code, said })) };
  };
  const read = async (file, name) => new RegExp(`^${name}=(.*)$`, "m").exec(await readFile(join(directory, file), "utf8").catch(() => ""))?.[1];
  const hold = step("hold.mjs");
  return {
    hold,
    token: async () => Number(await read("output", "token")),
    release: async () => step("release.mjs", { STATE_address: (await read("state", "address")) ?? "" }).ended,
  };
}

const waiters = (key, count) => eventually(async () => (await a.lock(key)).waiters === count, `${count} waiters`);

test("jobs of several repositories hold the lock one after the other, in the order in which they came", async () => {
  const key = freshKey();
  const first = await job("acme/shop", key);
  assert.deepEqual(await first.hold.ended, { code: 0, said: "" });
  const others = [];
  for (const repository of ["acme/site", "other/tools"]) {
    others.push(await job(repository, key));
    await waiters(key, others.length);
  }
  const tokens = [await first.token()];
  let [last] = [first];
  for (const next of others) {
    assert.equal((await last.release()).said, `${key} is released\n`);
    const { code, said } = await next.hold.ended;
    assert.equal(code, 0, said);
    assert.equal(said, `waiting for ${key}, which is held by https://github.com/acme/shop/actions/runs/17\n`);
    tokens.push(await next.token());
    last = next;
  }
  assert.equal((await last.release()).code, 0);
  assert.ok(tokens[0] < tokens[1] && tokens[1] < tokens[2], String(tokens));
  await isFree(key);
});

test("a job that may not wait fails, and names the run that holds the lock", async () => {
  const key = freshKey();
  const first = await job("acme/shop", key);
  await first.hold.ended;
  const second = await job("acme/site", key, { INPUT_WAIT: "0s" });
  const { code, said } = await second.hold.ended;
  assert.ok(code === 1 && said.startsWith("::error ") && said.includes("https://github.com/acme/shop/actions/runs/17"), said);
  assert.deepEqual(await second.release(), { code: 0, said: "" });
  assert.equal((await first.release()).code, 0);
});

test("a job that is cancelled while it waits leaves the queue", async () => {
  const key = freshKey();
  const first = await job("acme/shop", key);
  await first.hold.ended;
  const second = await job("acme/site", key);
  await waiters(key, 1);
  second.hold.child.kill("SIGINT");
  await waiters(key, 0);
  assert.deepEqual(await second.release(), { code: 0, said: "" });
  await first.release();
  await isFree(key);
});

test("a job fails at its end if it has lost the lock meanwhile", async () => {
  const key = freshKey();
  const first = await job("acme/shop", key);
  await first.hold.ended;
  await a.force(key);
  const { code, said } = await first.release();
  assert.ok(code === 1 && said.includes(`${key} was not held until the end of the job`), said);
  const again = await first.release();
  assert.ok(again.code === 1 && again.said.includes("has ended before the job"), again.said);
});

test("a runner that dies does not keep the lock", async () => {
  const key = freshKey();
  const first = await job("acme/shop", key, {}, '"$0" "$1" && read -r line');
  await eventually(first.token, "the lock");
  first.hold.child.kill("SIGKILL");
  await isFree(key);
});

test("a node at https is trusted for the authorities that ca names", async (context) => {
  const { CLIENT_BINARY: binary, CLIENT_TLS: tls, LATCHGATE_CA: ca } = process.env;
  const cwd = await mkdtemp(join(tmpdir(), "node-"));
  directories.push(cwd);
  const node = spawn(binary, ["serve", "--listen", "127.0.0.1:0", "--tls-cert", `${tls}/cert.pem`, "--tls-key", `${tls}/key.pem`], { cwd });
  context.after(() => node.kill("SIGKILL"));
  const [line] = await once(createInterface(node.stdout), "line");
  const first = await job("acme/shop", freshKey(), { INPUT_URL: line.split(" ").at(-1), INPUT_CA: ca, LATCHGATE_CA: "" });
  assert.deepEqual(await first.hold.ended, { code: 0, said: "" });
  assert.equal((await first.release()).code, 0);
});

test("a wrong input is named", async () => {
  const { code, said } = await (await job("acme/shop", freshKey(), { INPUT_TTL: "a minute" })).hold.ended;
  assert.ok(code === 1 && said.includes("ttl is a duration, such as 90s"), said);
});
