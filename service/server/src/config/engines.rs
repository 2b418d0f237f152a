//! The engines that `--locks` and `--gate` name.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{bail, ensure};

use super::store::{StoreArgs, is_postgres};
use crate::engines::EngineSpec;
use crate::engines::open::{GateEngine, LocksEngine, LocksKind};
use crate::store::gate::GateStore;
use crate::store::postgres::PostgresConfig;
use crate::store::redis::gate::RedisGateConfig;
use crate::store::redis::{RedisConfig, is_redis};
use crate::store::sqlite;

const DEFAULT_LOCKS: &str = "sqlite:latchgate.db";
const NAME_MAX_BYTES: usize = 32;

impl StoreArgs {
    /// One engine or a pair. `history_retention` is for stores that expire histories by themselves.
    ///
    /// # Errors
    /// When a URL belongs to no kind of store, or two engines have one name.
    pub fn engines(&self, history_retention: Duration) -> anyhow::Result<Vec<LocksEngine>> {
        let given = self.given_locks();
        let engines = given.iter().map(|text| self.locks_engine(text, history_retention));
        let mut engines = engines.collect::<anyhow::Result<Vec<_>>>()?;
        if let [engine] = &mut engines[..] {
            // Of a pair, the operator names one engine only.
            engine.is_left_out = !self.without.is_empty();
        }
        for (index, engine) in engines.iter().enumerate() {
            let name = &engine.name;
            let is_taken = engines[..index].iter().any(|other| other.name == *name);
            ensure!(!is_taken, "two engines of --locks are called {name}: name them, as in --locks main=postgres://…");
        }
        ensure!(engines.len() <= 2, "--locks takes one store or a pair");
        for name in &self.without {
            let is_known =
                engines.iter().any(|engine| engine.name == *name) || self.gate_engine()?.name() == Some(name);
            ensure!(is_known || engines.len() == 1, "--without {name}: no engine of --locks or --gate has this name");
        }
        for direct in &self.locks_direct {
            let (name, _) = split_name(direct);
            let is_its_own = |engine: &&LocksEngine| {
                matches!(engine.kind, LocksKind::Postgres(_)) && name.is_none_or(|name| engine.name == name)
            };
            let owners = engines.iter().filter(is_its_own).count();
            ensure!(
                owners == 1,
                "--locks-direct must belong to one Postgres of --locks: name both, as in main=postgres://…"
            );
        }
        Ok(engines)
    }

    /// The values of `--locks`, or the default.
    fn given_locks(&self) -> Vec<String> {
        if self.locks.is_empty() {
            return vec![DEFAULT_LOCKS.to_owned()];
        }
        self.locks.clone()
    }

    fn locks_engine(&self, text: &str, history_retention: Duration) -> anyhow::Result<LocksEngine> {
        let (name, url) = split_name(text);
        let kind = if is_postgres(url) {
            LocksKind::Postgres(self.postgres(url, self.direct_url(name)))
        } else if is_redis(url) {
            LocksKind::Redis(RedisConfig {
                url: url.to_owned(),
                prefix: self.redis_prefix.clone(),
                timeout: self.store_timeout,
                history_retention,
                allow_eviction: self.allow_eviction,
                no_hold_off: self.no_hold_off,
            })
        } else if let Some(path) = sqlite::path_of(url) {
            LocksKind::Sqlite(path)
        } else {
            // The URL is not repeated: it may have a password.
            bail!("--locks must be sqlite:PATH, postgres://USER:PASSWORD@HOST/DATABASE or redis://HOST")
        };
        let name = name.unwrap_or(kind.as_str()).to_owned();
        let is_left_out = self.is_left_out(&name);
        Ok(LocksEngine { name, kind, is_new: self.new, is_left_out })
    }

    fn direct_url(&self, name: Option<&str>) -> Option<String> {
        let direct = self.locks_direct.iter().map(|text| split_name(text));
        let mut own = direct.filter(|(of, _)| of.is_none() || *of == name.or(Some("postgres")));
        own.next().map(|(_, url)| url.to_owned())
    }

    /// # Errors
    /// When the URL belongs to no kind of store.
    pub fn gate_engine(&self) -> anyhow::Result<GateEngine> {
        let Some(url) = self.gate.as_deref() else { return Ok(GateEngine::BesideTheLocks) };
        if is_redis(url) {
            return Ok(GateEngine::Redis(self.redis_gate(url)));
        }
        if is_postgres(url) {
            return Ok(GateEngine::Postgres(self.postgres(url, None)));
        }
        let is_of_locks = |path: &PathBuf| {
            self.given_locks().first().and_then(|locks| sqlite::path_of(split_name(locks).1)).as_ref() == Some(path)
        };
        match sqlite::path_of(url) {
            // A file is opened once.
            Some(path) if is_of_locks(&path) => Ok(GateEngine::BesideTheLocks),
            Some(path) => Ok(GateEngine::Sqlite(path)),
            None => bail!("--gate must be redis://HOST, postgres://USER:PASSWORD@HOST/DATABASE or sqlite:PATH"),
        }
    }

    /// The gate in this Redis.
    pub fn redis_gate(&self, url: &str) -> RedisGateConfig {
        RedisGateConfig {
            url: url.to_owned(),
            prefix: self.redis_prefix.clone(),
            timeout: crate::gate::COMMAND_MAX,
            allow_eviction: self.allow_eviction,
        }
    }

    /// The engines of the gate: its primary store, and the second one, which is of another kind.
    pub fn gate_specs(
        &self,
        primary: &Arc<dyn GateStore>,
        second: Option<&Arc<dyn GateStore>>,
    ) -> Vec<EngineSpec<dyn GateStore>> {
        let is_trusted = |store: &Arc<dyn GateStore>| match store.kind() {
            "redis" => self.no_hold_off,
            "postgres" => self.trust_promotion,
            _ => false,
        };
        let spec = |store: &Arc<dyn GateStore>| {
            let name = store.kind();
            // Of a pair, the operator names one engine only.
            let is_left_out = if second.is_some() { self.is_left_out(name) } else { !self.without.is_empty() };
            let (is_trusted, is_new) = (is_trusted(store), self.new);
            EngineSpec { is_trusted, is_new, is_left_out, ..EngineSpec::opened(name, Arc::clone(store)) }
        };
        std::iter::once(primary).chain(second).map(spec).collect()
    }

    /// Whether the operator has started the node without this engine.
    pub fn is_left_out(&self, name: &str) -> bool {
        self.without.iter().any(|without| without == name)
    }

    fn postgres(&self, url: &str, direct_url: Option<String>) -> PostgresConfig {
        PostgresConfig {
            url: url.to_owned(),
            direct_url,
            // Below the time-out of the node, so that the server says of a slow statement that it did nothing.
            statement_timeout: (self.store_timeout * 3 / 4).max(Duration::from_millis(1)),
            row_wait: self.row_wait(),
            allow_volatile: self.allow_volatile,
            trust_promotion: self.trust_promotion,
        }
    }
}

/// `NAME=URL`, or a URL alone.
fn split_name(text: &str) -> (Option<&str>, &str) {
    let is_name = |name: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !name.is_empty() && name.len() <= NAME_MAX_BYTES && name.bytes().all(plain)
    };
    match text.split_once('=') {
        Some((name, url)) if is_name(name) => (Some(name), url),
        _ => (None, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_with_an_equals_sign_is_not_a_name() {
        assert_eq!(split_name("main=postgres://h/d?a=b"), (Some("main"), "postgres://h/d?a=b"));
        assert_eq!(split_name("postgres://h/d?a=b"), (None, "postgres://h/d?a=b"));
        assert_eq!(split_name("sqlite:a=b.db"), (None, "sqlite:a=b.db"));
        assert_eq!(split_name("=redis://h"), (None, "=redis://h"));
    }
}
