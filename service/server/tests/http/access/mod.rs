//! Apps and API keys: who is let in, and what belongs to whom.

mod apart;
mod commands;
mod keys;
mod lasting;
mod world;
