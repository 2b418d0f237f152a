// @ts-check
// The clock by which leases are counted. `performance.now` cannot be set, but stands still while the machine is suspended. A step of the
// wall clock shows that, so it counts as time that has passed.

/** A smaller difference is how the two clocks are read and adjusted, and no suspension. */
const STEP_MS = 1_000;

let ahead = Date.now() - performance.now();
let suspendedMs = 0;

/** Milliseconds since some moment in the past. */
export function now() {
  const monotonic = performance.now();
  const step = Date.now() - monotonic - ahead;
  if (step > STEP_MS) suspendedMs += step;
  if (step > STEP_MS || step < 0) ahead += step;
  return monotonic + suspendedMs;
}
