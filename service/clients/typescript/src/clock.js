// @ts-check
// The clock by which leases are counted. `performance.now` cannot be set, but stands still while the machine is suspended. A second clock
// goes on: a step of that one counts as time that has passed.

const process = /** @type {any} */ (globalThis).process;

/** On Linux, the time since the machine started cannot be set either. Elsewhere it is the wall clock. */
const os = process?.platform === "linux" ? process.getBuiltinModule?.("node:os") : undefined;
const other = () => (os ? os.uptime() * 1_000 : Date.now());
/** A smaller difference is how the two clocks are read and adjusted, and no suspension. The one of Linux is read to 10 ms. */
const STEP_MS = os ? 50 : 1_000;

let ahead = other() - performance.now();
let suspendedMs = 0;

/** Milliseconds since some moment in the past. */
export function now() {
  const monotonic = performance.now();
  const step = other() - monotonic - ahead;
  if (step > STEP_MS) suspendedMs += step;
  if (step > STEP_MS || step < 0) ahead += step;
  return monotonic + suspendedMs;
}
