//! The servers that a URL names. The node uses the one that takes writes; which one that is changes with a fail-over.

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{anyhow, bail, ensure};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection, Executor, Postgres, Row};
use tokio::time::{Instant, timeout};

use super::faults::{self, message};

const HOSTS_MAX: usize = 16;
/// The parameters that sqlx reads. It drops others in silence.
const PARAMETERS: &[&str] = &[
    "sslmode",
    "ssl-mode",
    "sslrootcert",
    "ssl-root-cert",
    "ssl-ca",
    "sslcert",
    "ssl-cert",
    "sslkey",
    "ssl-key",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "application_name",
    "options",
    "statement-cache-capacity",
];
/// For how long the node goes straight to the server that it has found.
const FOUND_FOR: Duration = Duration::from_secs(1);
/// How long the other servers may take to answer, after one that takes writes.
const GRACE: Duration = Duration::from_millis(100);

/// One server, or several of which one takes writes.
#[derive(Clone)]
pub(in crate::store) struct Hosts {
    hosts: Arc<[PgConnectOptions]>,
    /// The index of the server that takes writes, and when it was found.
    found: Arc<Mutex<Option<(usize, Instant)>>>,
}

impl Hosts {
    /// Parses `postgres://USER:PASSWORD@HOST:PORT,HOST:PORT/DATABASE`.
    ///
    /// # Errors
    /// When the URL is not one of Postgres, or asks for a server that does not take writes.
    pub(super) fn parse(url: &str) -> anyhow::Result<Self> {
        let urls = urls_of_hosts(url)?;
        let hosts = urls.iter().map(|url| {
            let options = PgConnectOptions::from_str(url).map_err(|error| anyhow!("not a postgres URL: {error}"))?;
            // An address of IPv6 is in brackets in a URL only.
            let address =
                options.get_host().strip_prefix('[').and_then(|host| host.strip_suffix(']')).map(str::to_owned);
            let options = address.map_or_else(|| options.clone(), |address| options.clone().host(&address));
            let name = options.get_application_name().unwrap_or("latchgate").to_owned();
            Ok(options.application_name(&name).disable_statement_logging())
        });
        Ok(Self { hosts: hosts.collect::<anyhow::Result<_>>()?, found: Arc::default() })
    }

    /// The same servers, with other options.
    pub(super) fn map(self, change: impl Fn(PgConnectOptions) -> PgConnectOptions) -> Self {
        Self { hosts: self.hosts.iter().cloned().map(change).collect(), ..self }
    }

    /// Connects to the server that takes writes.
    ///
    /// # Errors
    /// When there is none.
    pub(in crate::store) async fn open(&self) -> Result<PgConnection, sqlx::Error> {
        self.open_one().await.map(|(_, connection)| connection)
    }

    /// The server that takes writes.
    ///
    /// # Errors
    /// When there is none.
    pub(super) async fn primary(&self) -> Result<&PgConnectOptions, sqlx::Error> {
        let (index, connection) = self.open_one().await?;
        connection.close().await?;
        Ok(&self.hosts[index])
    }

    async fn open_one(&self) -> Result<(usize, PgConnection), sqlx::Error> {
        if let [only] = &*self.hosts {
            return Ok((0, open_for_writes(only).await?));
        }
        let found = *self.found.lock();
        if let Some((index, at)) = found
            && at.elapsed() < FOUND_FOR
            && let Ok(connection) = open_for_writes(&self.hosts[index]).await
        {
            return Ok((index, connection));
        }
        let (index, connection) = self.look().await?;
        *self.found.lock() = Some((index, Instant::now()));
        Ok((index, connection))
    }

    /// Connects to all servers at once, because some may not answer. If several take writes, because an old primary has not been
    /// stopped yet, it prefers the one that was promoted last.
    async fn look(&self) -> Result<(usize, PgConnection), sqlx::Error> {
        let opening = self.hosts.iter().enumerate().map(async |(index, options)| {
            let opened = match open_for_writes(options).await {
                Ok(mut connection) => Ok((timeline_of(&mut connection).await, connection)),
                Err(error) => Err(error),
            };
            (index, opened)
        });
        let mut opening: FuturesUnordered<_> = opening.collect();
        let mut best: Option<(String, usize, PgConnection)> = None;
        let mut errors = Vec::new();
        loop {
            let next = match best {
                Some(_) => timeout(GRACE, opening.next()).await.ok().flatten(),
                None => opening.next().await,
            };
            match next {
                Some((index, Ok((timeline, connection)))) => {
                    if best.as_ref().is_none_or(|(highest, ..)| timeline > *highest) {
                        best = Some((timeline, index, connection));
                    }
                }
                Some((index, Err(error))) => errors.push((index, error)),
                None => {
                    return best.map(|(_, index, connection)| (index, connection)).ok_or_else(|| self.summary(errors));
                }
            }
        }
    }

    fn summary(&self, mut errors: Vec<(usize, sqlx::Error)>) -> sqlx::Error {
        if let Some(full) = errors.iter().position(|(_, error)| faults::is_full(error)) {
            return errors.swap_remove(full).1;
        }
        errors.sort_unstable_by_key(|(index, _)| *index);
        let of_host =
            |(index, error): &(usize, sqlx::Error)| format!("{}: {}", address_of(&self.hosts[*index]), message(error));
        let errors: Vec<String> = errors.iter().map(of_host).collect();
        sqlx::Error::Configuration(format!("no server takes writes: {}", errors.join("; ")).into())
    }
}

async fn open_for_writes(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    let mut connection = options.connect().await?;
    if takes_writes(&mut connection).await? {
        return Ok(connection);
    }
    connection.close().await?;
    let refused =
        "this Postgres is a standby, or default_transaction_read_only is on: locks can only be written on a primary";
    Err(sqlx::Error::Configuration(refused.into()))
}

/// Where a URL leads to, without its login; `None` if it cannot be used.
pub fn place_of(url: &str) -> Option<String> {
    let hosts = Hosts::parse(url).ok()?.hosts;
    let first = hosts.first()?;
    let database = first.get_database().unwrap_or(first.get_username());
    if let Some(socket) = first.get_socket() {
        return Some(format!("database {database} at the socket {}", socket.display()));
    }
    let hosts: Vec<String> = hosts.iter().map(address_of).collect();
    Some(format!("database {database} on {}", hosts.join(", ")))
}

fn address_of(options: &PgConnectOptions) -> String {
    let (host, port) = (options.get_host(), options.get_port());
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Whether the server on this connection takes writes.
pub(super) async fn takes_writes<'c>(connection: impl Executor<'c, Database = Postgres>) -> Result<bool, sqlx::Error> {
    // A standby is read-only, too.
    let row = sqlx::raw_sql("show transaction_read_only").fetch_one(connection).await?;
    Ok(row.try_get::<String, _>(0)? == "off")
}

/// Eight hexadecimal digits; empty if the server does not tell.
async fn timeline_of(connection: &mut PgConnection) -> String {
    let query = sqlx::raw_sql("select substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)");
    let row = query.fetch_one(connection).await;
    row.and_then(|row| row.try_get(0)).unwrap_or_default()
}

/// One URL for each host, without parameters that sqlx does not know. No error repeats a part of the URL that may be of a password.
fn urls_of_hosts(url: &str) -> anyhow::Result<Vec<String>> {
    let Some((scheme, rest)) = url.split_once("://") else { bail!("not a postgres URL") };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, rest) = rest.split_at(end);
    let (user, hosts) = match authority.rfind('@') {
        Some(at) => authority.split_at(at + 1),
        None => ("", authority),
    };
    ensure!(
        !rest.contains(['@', '#']),
        "a postgres URL has an @ or a # behind its host: in a password or a name, write / as %2F, ? as %3F, # as %23 and @ as %40"
    );
    let rest = with_known_parameters(rest)?;
    let hosts: Vec<&str> = hosts.split(',').collect();
    ensure!(hosts.len() <= HOSTS_MAX, "a postgres URL may name at most {HOSTS_MAX} hosts");
    ensure!(hosts.len() == 1 || !hosts.contains(&""), "not a postgres URL: there is an empty name between its hosts");
    Ok(hosts.iter().map(|host| format!("{scheme}://{user}{host}{rest}")).collect())
}

fn with_known_parameters(path_and_query: &str) -> anyhow::Result<String> {
    let Some((path, query)) = path_and_query.split_once('?') else { return Ok(path_and_query.to_owned()) };
    let mut kept = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=').unwrap_or((pair, "")) {
            ("target_session_attrs", "read-write" | "primary") | ("channel_binding", "disable" | "prefer") => {}
            ("target_session_attrs", _) => {
                bail!("target_session_attrs must be read-write or primary, because a node writes")
            }
            ("channel_binding", _) => bail!(
                "Latchgate does not bind channels: leave channel_binding out of the postgres URL, and use sslmode=verify-full so that \
                 no other server can answer"
            ),
            (name, _) if PARAMETERS.contains(&name) || name.starts_with("options[") => kept.push(pair),
            (name, _) => {
                let is_plain = name.bytes().all(|byte| byte.is_ascii_lowercase() || matches!(byte, b'_' | b'-'));
                let name = if is_plain { name } else { "with this name" };
                bail!(
                    "Latchgate knows no parameter {name} of a postgres URL, and cannot do what it asks for: leave it out"
                )
            }
        }
    }
    Ok(if kept.is_empty() { path.to_owned() } else { format!("{path}?{}", kept.join("&")) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts_of(url: &str) -> Vec<(String, u16)> {
        let hosts = Hosts::parse(url).unwrap().hosts;
        hosts.iter().map(|host| (host.get_host().to_owned(), host.get_port())).collect()
    }

    #[test]
    fn a_url_may_name_several_hosts() {
        let url = "postgres://u:a%2Cb@h1:1,[::1]:2,h3/d?target_session_attrs=read-write&sslmode=disable";
        assert_eq!(hosts_of(url), [("h1".to_owned(), 1), ("::1".to_owned(), 2), ("h3".to_owned(), 5432)]);
        for host in &*Hosts::parse(url).unwrap().hosts {
            assert_eq!((host.get_username(), host.get_database()), ("u", Some("d")));
        }
        assert_eq!(
            urls_of_hosts(url).unwrap()[2],
            "postgres://u:a%2Cb@h3/d?sslmode=disable",
            "its options hold for every host"
        );
    }

    #[test]
    fn a_url_of_one_host_stays_as_it_is() {
        for url in [
            "postgres:///d?host=/run/postgresql",
            "postgres://h",
            "postgresql://u@h:1/d?sslmode=disable&options=-c",
            "postgres://h/",
        ] {
            assert_eq!(urls_of_hosts(url).unwrap(), [url]);
        }
    }

    #[test]
    fn an_address_of_ipv6_is_used_without_brackets_and_shown_with_them() {
        let url = "postgres://u@[::1]:5433/d?application_name=ours";
        assert_eq!(hosts_of(url), [("::1".to_owned(), 5433)]);
        assert_eq!(place_of(url).unwrap(), "database d on [::1]:5433");
        assert_eq!(Hosts::parse(url).unwrap().hosts[0].get_application_name(), Some("ours"));
        assert_eq!(Hosts::parse("postgres://h").unwrap().hosts[0].get_application_name(), Some("latchgate"));
    }

    #[test]
    fn a_password_that_is_not_encoded_is_refused_and_not_shown() {
        for password in ["sec/ret", "se@c/ret", "sec?ret", "sec#ret", "1/sec#r@et", "1@h?sec#ret=1", "1@h?SecRet=1"] {
            let url = format!("postgres://u:{password}@host/d");
            let error = Hosts::parse(&url).err().unwrap().to_string();
            assert!(!error.to_lowercase().contains("sec") && !error.contains("ret"), "{password}: {error}");
            assert_eq!(place_of(&url), None, "{password}");
        }
    }

    #[test]
    fn no_parameter_is_dropped_in_silence() {
        for query in
            ["channel_binding=require", "connect_timeout=3", "pgbouncer=true", "sslmod=require", "channel_binding"]
        {
            let error = Hosts::parse(&format!("postgres://h/d?{query}")).err().unwrap().to_string();
            assert!(error.contains(query.split('=').next().unwrap()), "{query}: {error}");
        }
        for query in ["channel_binding=prefer", "sslmode=require&channel_binding=disable", "options[jit]=off"] {
            Hosts::parse(&format!("postgres://h/d?{query}")).unwrap();
        }
    }

    #[test]
    fn a_url_that_asks_for_a_standby_is_refused() {
        for attributes in ["any", "standby", "prefer-standby", "read-only", ""] {
            assert!(Hosts::parse(&format!("postgres://h,i/d?target_session_attrs={attributes}")).is_err());
        }
        assert!(Hosts::parse("postgres://h,,i/d").is_err());
        assert!(Hosts::parse(&format!("postgres://{}/d", ["h"; 17].join(","))).is_err());
    }
}
