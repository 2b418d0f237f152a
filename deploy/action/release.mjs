// The end of the job: releases the lock, and fails if the lease had ended before, because another job may have had the lock meanwhile.

import { createConnection } from "node:net";
import { text } from "node:stream/consumers";

import { fail } from "./fail.mjs";

// Without an address the lock was never taken.
if (process.env.STATE_address) {
  try {
    const { key, error } = JSON.parse(await text(createConnection(process.env.STATE_address)));
    if (error) fail(`${key} was not held until the end of the job: ${error}`);
    else console.log(`${key} is released`);
  } catch (error) {
    fail(`the process that holds the lock has ended before the job: another job may have had the lock meanwhile (${error.message})`);
  }
}
