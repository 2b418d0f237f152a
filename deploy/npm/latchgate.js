#!/usr/bin/env node
// Runs the program for this machine, which the package of its platform has.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";

const platform = `latchgate-${process.platform}-${process.arch}`;
let program;
try {
  program = createRequire(import.meta.url).resolve(`${platform}/latchgate`);
} catch {
  console.error(`latchgate: there is no program for this machine: the package ${platform} is not installed`);
  process.exit(1);
}
const child = spawn(program, process.argv.slice(2), { stdio: "inherit" });
child.on("error", (error) => {
  console.error(`latchgate: ${error.message}`);
  process.exit(1);
});
for (const signal of ["SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
// A terminal sends these to both.
for (const signal of ["SIGINT", "SIGQUIT"]) process.on(signal, () => {});
child.on("exit", (code, signal) => {
  if (!signal) process.exit(code);
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
});
