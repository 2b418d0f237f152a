//! `latchgate proxy` in front of a service that knows nothing of idempotency.

mod answers;
mod callers;
mod calls;
mod clients;
mod world;
