// The step of the action: takes the lock, and leaves a process behind that renews it until the job has ended.

import { fork } from "node:child_process";
import { appendFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { fail } from "./fail.mjs";

const keeper = fork(fileURLToPath(new URL("keep.mjs", import.meta.url)), [String(process.ppid)], {
  // In a session of its own, so that a signal for this step does not end it.
  detached: true,
  stdio: ["ignore", "ignore", "ignore", "ipc"],
});
keeper.on("message", ({ says, error, token, address }) => {
  if (says) console.log(says);
  else if (error) fail(error);
  else {
    appendFileSync(process.env.GITHUB_STATE, `address=${address}\n`);
    appendFileSync(process.env.GITHUB_OUTPUT, `token=${token}\n`);
    keeper.send("keep it", () => keeper.disconnect());
    keeper.unref();
  }
});
keeper.on("exit", (code, signal) => {
  if (code !== 0) fail(`the process that holds the lock has ended with ${signal ?? code}`);
});
