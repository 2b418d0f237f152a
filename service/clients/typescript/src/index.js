export { Client } from "./client.js";
export {
  AttemptLost,
  LatchgateError,
  LeaseLost,
  LockHeld,
  NotDone,
  NotRecorded,
  OperationInProgress,
  OperationUnknown,
  Refused,
  StaleToken,
  Unavailable,
  WaitTimeout,
} from "./errors.js";
export { Attempt } from "./gate.js";
export { Lease } from "./lease.js";
