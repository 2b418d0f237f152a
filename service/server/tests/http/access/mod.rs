//! Apps and API keys: which requests a node serves, and that apps do not see each other's data.

mod all_apps;
mod apart;
mod commands;
mod keys;
mod lasting;
mod quotas;
mod scopes;
pub mod world;
