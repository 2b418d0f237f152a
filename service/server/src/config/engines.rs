//! The engines that `--locks` and `--gate` name.

use std::time::Duration;

use anyhow::{bail, ensure};
use latchgate_node::engines::open::{NamedEngine, StoreKind};
use latchgate_node::store::postgres::PostgresConfig;
use latchgate_node::store::redis::{RedisConfig, is_redis};
use latchgate_node::store::sqlite;

use super::store::{StoreArgs, is_postgres};

const DEFAULT_LOCKS: &str = "sqlite:latchgate.db";
const NAME_MAX_BYTES: usize = 32;

impl StoreArgs {
    /// One engine or a pair. `history_retention` is for stores that expire histories by themselves.
    ///
    /// # Errors
    /// When a URL belongs to no kind of store, or two engines have one name.
    pub fn engines(&self, history_retention: Duration) -> anyhow::Result<Vec<NamedEngine>> {
        let engines = self.engines_of("--locks", &self.given_locks(), &self.redis_prefix, history_retention)?;
        for name in &self.without {
            let gate = self.gate_engines()?;
            let is_known = engines.iter().chain(&gate).any(|engine| engine.name == *name);
            ensure!(is_known || engines.len() == 1, "--without {name}: no engine of --locks or --gate has this name");
        }
        for direct in &self.locks_direct {
            let (name, _) = split_name(direct);
            let is_its_own = |engine: &&NamedEngine| {
                matches!(engine.kind, StoreKind::Postgres(_)) && name.is_none_or(|name| engine.name == name)
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

    /// The engines of the gate's own set; none if operations live beside the locks.
    ///
    /// # Errors
    /// See [`StoreArgs::engines`].
    pub fn gate_engines(&self) -> anyhow::Result<Vec<NamedEngine>> {
        let url_of = |text: &String| split_name(text).1.to_owned();
        let (locks, gate): (Vec<_>, Vec<_>) =
            (self.given_locks().iter().map(url_of).collect(), self.gate.iter().map(url_of).collect());
        if gate.is_empty() || gate == locks {
            return Ok(Vec::new());
        }
        // In a Redis, names begin with another prefix.
        let is_of_locks = |url: &String| locks.contains(url) && !is_redis(url);
        ensure!(!gate.iter().any(is_of_locks), "--gate names a store of --locks: operations live there without --gate");
        self.engines_of("--gate", &self.gate, &format!("{}-gate", self.redis_prefix), Duration::ZERO)
    }

    /// One store or a pair.
    fn engines_of(
        &self,
        flag: &str,
        given: &[String],
        prefix: &str,
        history_retention: Duration,
    ) -> anyhow::Result<Vec<NamedEngine>> {
        let engines = given.iter().map(|text| self.named_engine(flag, text, prefix, history_retention));
        let mut engines = engines.collect::<anyhow::Result<Vec<_>>>()?;
        if let [engine] = &mut engines[..] {
            // Of a pair, the operator names one engine only.
            engine.is_left_out = !self.without.is_empty();
        }
        for (index, engine) in engines.iter().enumerate() {
            let name = &engine.name;
            let is_taken = engines[..index].iter().any(|other| other.name == *name);
            ensure!(!is_taken, "two engines of {flag} are called {name}: name them, as in {flag} main=postgres://…");
        }
        ensure!(engines.len() <= 2, "{flag} takes one store or a pair");
        Ok(engines)
    }

    fn named_engine(
        &self,
        flag: &str,
        text: &str,
        prefix: &str,
        history_retention: Duration,
    ) -> anyhow::Result<NamedEngine> {
        let (name, url) = split_name(text);
        let kind = if is_postgres(url) {
            StoreKind::Postgres(self.postgres(url, self.direct_url(name).filter(|_| flag == "--locks")))
        } else if is_redis(url) {
            StoreKind::Redis(RedisConfig {
                url: url.to_owned(),
                prefix: prefix.to_owned(),
                timeout: self.store_timeout,
                history_retention,
                allow_eviction: self.allow_eviction,
                no_hold_off: self.no_hold_off,
            })
        } else if let Some(path) = sqlite::path_of(url) {
            StoreKind::Sqlite(path)
        } else {
            // The URL is not repeated: it may have a password.
            bail!("{flag} must be sqlite:PATH, postgres://USER:PASSWORD@HOST/DATABASE or redis://HOST")
        };
        let name = name.unwrap_or(kind.as_str()).to_owned();
        let is_left_out = self.is_left_out(&name);
        Ok(NamedEngine { name, kind, is_new: self.new, is_left_out })
    }

    fn direct_url(&self, name: Option<&str>) -> Option<String> {
        let direct = self.locks_direct.iter().map(|text| split_name(text));
        let mut own = direct.filter(|(of, _)| of.is_none() || *of == name.or(Some("postgres")));
        own.next().map(|(_, url)| url.to_owned())
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
            durable_elsewhere: self.durable_elsewhere,
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
