//! The URLs of Redis: one server, or a service of Sentinels.

use std::time::Duration;

use anyhow::{Context as _, anyhow, bail, ensure};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, ConnectionInfo, IntoConnectionInfo, RedisResult, TlsCertificates};

const SENTINEL_PORT: u16 = 26379;
pub(in crate::store) const NO_CLUSTER: &str = "Redis Cluster is not supported: name a single Redis, redis://HOST, or a service of Sentinels, \
     redis+sentinel://SENTINEL,SENTINEL/SERVICE";
/// How long a host may be silent at the level of TCP before its connection counts as dead.
const TCP_SILENCE_MAX: Duration = Duration::from_secs(3);

/// The server that a URL names.
#[derive(Clone)]
pub(in crate::store) enum Target {
    One(Client),
    /// `redis+sentinel://USER:PASSWORD@SENTINEL,SENTINEL/SERVICE/DATABASE`: the master that these Sentinels name when a connection is
    /// opened. The login is for Redis itself.
    Master {
        sentinels: Vec<Client>,
        service: String,
        login: Login,
    },
}

/// The part of a URL that is the same for every server: the user, with its `@`, and the database.
#[derive(Clone, Default)]
pub(in crate::store) struct Login {
    user: String,
    database: String,
}

impl Login {
    /// `server` is `HOST:PORT`, with brackets around an IPv6 address.
    pub(super) fn client(&self, server: &str) -> RedisResult<Client> {
        Client::open(with_settings(&format!("redis://{}{server}/{}", self.user, self.database))?)
    }
}

impl Target {
    /// # Errors
    /// The error does not repeat the URL, which may contain a password.
    pub(in crate::store) fn parse(url: &str) -> anyhow::Result<Self> {
        if url.starts_with("rediss+") {
            bail!("TLS is for one server, rediss://: to Sentinels use redis+sentinel:// and a tunnel");
        }
        ensure!(!url.starts_with("redis+cluster:"), NO_CLUSTER);
        let Some(rest) = url.strip_prefix("redis+sentinel://") else { return one(url).map(Self::One) };
        let (servers, path) = split(rest);
        let (service, database) = path.split_once('/').unwrap_or((path, ""));
        ensure!(!service.is_empty(), "redis+sentinel:// needs the name of the service: …SENTINEL,SENTINEL/SERVICE");
        let login = Login { user: servers.user, database: database.to_owned() };
        let sentinels = servers.hosts.iter().map(|host| Login::default().client(&with_port(host, SENTINEL_PORT)));
        let sentinels = sentinels.collect::<RedisResult<_>>().map_err(|error| invalid(&error))?;
        login.client("localhost").map_err(|error| invalid(&error))?;
        Ok(Self::Master { sentinels, service: service.to_owned(), login })
    }
}

/// A client of one server. With `rediss://` it speaks TLS and verifies the server's name: by the authorities in the PEM file that
/// `?ca=PATH` names or, without it, by those of the operating system.
fn one(url: &str) -> anyhow::Result<Client> {
    let (plain, ca) = url.split_once("?ca=").map_or((url, None), |(plain, ca)| (plain, Some(ca)));
    let Some(ca) = ca else {
        ensure!(
            !url.ends_with("#insecure"),
            "the name of the server is always verified: name its authority with ?ca=PATH"
        );
        return with_settings(url).and_then(Client::open).map_err(|error| invalid(&error));
    };
    ensure!(plain.starts_with("rediss://"), "?ca= is for TLS, rediss://");
    let root_cert = std::fs::read(ca).with_context(|| format!("cannot read the certificate authority in {ca}"))?;
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(root_cert) };
    with_settings(plain).and_then(|info| Client::build_with_tls(info, certificates)).map_err(|error| invalid(&error))
}

/// Whether this is a URL of Redis, in any of its forms.
pub fn is_redis(url: &str) -> bool {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    matches!(scheme.split('+').next(), Some("redis" | "rediss"))
}

struct Servers {
    user: String,
    hosts: Vec<String>,
}

/// The servers, and the path after them without its slash.
fn split(rest: &str) -> (Servers, &str) {
    let (servers, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (user, hosts) = servers.rsplit_once('@').map_or(("", servers), |(user, hosts)| (user, hosts));
    let user = if user.is_empty() { String::new() } else { format!("{user}@") };
    (Servers { user, hosts: hosts.split(',').map(str::to_owned).collect() }, path)
}

fn with_port(host: &str, port: u16) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, digits)| digits.parse::<u16>().is_ok());
    // The last group of an IPv6 address is not a port: a port follows the bracket.
    if has_port && !(host.starts_with('[') && host.ends_with(']')) { host.to_owned() } else { format!("{host}:{port}") }
}

fn with_settings(url: &str) -> RedisResult<ConnectionInfo> {
    Ok(url.into_connection_info()?.set_tcp_settings(tcp_settings()))
}

fn invalid(error: &redis::RedisError) -> anyhow::Error {
    anyhow!("not a redis URL: {error}")
}

/// With these settings, a host that vanishes silently is noticed within seconds. Otherwise its connection would stay open, and
/// every command on it would time out, until the system gives up its retransmissions: a quarter of an hour.
fn tcp_settings() -> TcpSettings {
    let probes = TcpKeepalive::new().with_time(TCP_SILENCE_MAX).with_interval(Duration::from_secs(1)).with_retries(2);
    let settings = TcpSettings::default().set_keepalive(probes);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(TCP_SILENCE_MAX);
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(client: &Client) -> String {
        client.get_connection_info().addr().to_string()
    }

    #[test]
    fn a_sentinel_url_names_a_service_and_its_login_is_for_redis() {
        let target = Target::parse("redis+sentinel://me:se%40cret@one,two:1234,[::1]/orders/3").unwrap();
        let Target::Master { sentinels, service, login } = target else { panic!("no sentinel") };
        assert_eq!(sentinels.iter().map(at).collect::<Vec<_>>(), ["one:26379", "two:1234", "::1:26379"]);
        assert!(sentinels.iter().all(|client| client.get_connection_info().redis_settings().password().is_none()));
        assert_eq!(service, "orders");
        let master = login.client("10.0.0.7:6380").unwrap();
        let settings = master.get_connection_info().redis_settings();
        assert_eq!((settings.username(), settings.password(), settings.db()), (Some("me"), Some("se@cret"), 3));
        assert_eq!(at(&master), "10.0.0.7:6380");
    }

    #[test]
    fn an_invalid_redis_url_is_refused_without_repeating_it() {
        let wrong = [
            "redis+sentinel://:secret@one,two",
            "redis+cluster://:secret@one,two",
            "rediss+sentinel://:secret@one/service",
            "rediss://:secret@one?ca=/no/such/file",
            "rediss://:secret@one/0#insecure",
            "redis://:secret@one?ca=/no/such/file",
            "redis://:secret@",
            "redis+sentinel://:secret@one/service/x",
        ];
        for url in wrong {
            let error = Target::parse(url).err().unwrap_or_else(|| panic!("{url} was taken")).to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
