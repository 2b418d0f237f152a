//! The address that a node listens on: parsed, resolved and bound.

use std::fmt;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpSocket};

const HOST_DEFAULT: &str = "127.0.0.1";
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 1_024;
/// Probes that a client may leave unanswered.
const PROBES: u32 = 3;

/// `HOST:PORT`, `:PORT` or `PORT`; without a host it is 127.0.0.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    host: String,
    port: u16,
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
        // An IPv6 address has colons of its own, so it needs brackets.
        let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(host) => host,
            None if host.contains(':') => return Err("an IPv6 address needs brackets: [::1]:7070".to_owned()),
            None => host,
        };
        let port =
            port.parse().map_err(|_| "must be HOST:PORT, :PORT or PORT, for example 127.0.0.1:7070".to_owned())?;
        let host = if host.is_empty() { HOST_DEFAULT } else { host };
        Ok(Self { host: host.to_owned(), port })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

impl Listen {
    /// The host as it was given, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The addresses of the host, IPv4 first.
    ///
    /// # Errors
    /// When the host is unknown.
    pub async fn resolve(&self) -> anyhow::Result<Vec<SocketAddr>> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let found = found.with_context(|| format!("--listen {self}: cannot find the host {}", self.host))?;
        let mut addresses: Vec<SocketAddr> = found.collect();
        addresses.sort_by_key(SocketAddr::is_ipv6);
        addresses.dedup();
        if addresses.is_empty() {
            bail!("--listen {self}: the host {} has no address", self.host);
        }
        Ok(addresses)
    }
}

/// An address that this process has, but does not listen on yet: connections are refused until it does.
pub struct Bound {
    socket: TcpSocket,
    address: SocketAddr,
}

/// Takes the first of the addresses that this machine has.
///
/// # Errors
/// Says which address it is, why it cannot be had, and what to do.
pub fn bind(addresses: &[SocketAddr]) -> anyhow::Result<Bound> {
    let mut error = anyhow!("--listen names no address");
    for &address in addresses {
        match socket_at(address) {
            Ok(bound) => return Ok(bound),
            Err(failure) => {
                let is_elsewhere = failure.kind() == ErrorKind::AddrNotAvailable;
                error = explain(address, &failure);
                if !is_elsewhere {
                    break;
                }
            }
        }
    }
    Err(error)
}

impl Bound {
    /// With the port that was chosen, where the port was 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address for other machines: if the node listens on all addresses, with the name of its machine.
    pub fn shown(&self) -> String {
        let name =
            std::fs::read_to_string("/proc/sys/kernel/hostname").ok().filter(|_| self.address.ip().is_unspecified());
        name.map_or_else(|| self.address.to_string(), |name| format!("{}:{}", name.trim(), self.address.port()))
    }

    /// A connection whose client has not acknowledged anything for `client_timeout` is closed.
    ///
    /// # Errors
    /// When another process has begun to listen on the address.
    pub fn listen(self, client_timeout: Duration) -> anyhow::Result<TcpListener> {
        // Accepted connections inherit it. Without probes, a client whose machine has vanished would wait until its time is over,
        // and could be granted a lock.
        let probes = (client_timeout / PROBES).max(Duration::from_secs(1));
        let keepalive = TcpKeepalive::new().with_time(probes).with_interval(probes).with_retries(PROBES);
        SockRef::from(&self.socket).set_tcp_keepalive(&keepalive).context("cannot set TCP's probes")?;
        #[cfg(target_os = "linux")]
        SockRef::from(&self.socket).set_tcp_user_timeout(Some(client_timeout)).context("cannot set TCP's time-out")?;
        self.socket.listen(BACKLOG).map_err(|error| explain(self.address, &error))
    }
}

fn socket_at(address: SocketAddr) -> std::io::Result<Bound> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Else a restart would have to wait for old connections to time out.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    let address = socket.local_addr()?;
    Ok(Bound { socket, address })
}

fn explain(address: SocketAddr, error: &std::io::Error) -> anyhow::Error {
    let next = SocketAddr::new(address.ip(), address.port().checked_add(1).unwrap_or(0));
    match error.kind() {
        ErrorKind::AddrInUse => anyhow!(
            "cannot listen on {address}: another process, perhaps another Latchgate, already listens there. Stop it, or \
             choose another port, for example with --listen {next}"
        ),
        ErrorKind::AddrNotAvailable => {
            anyhow!("cannot listen on {address}: this machine does not have the address. Choose another with --listen")
        }
        ErrorKind::PermissionDenied => anyhow!(
            "cannot listen on {address}: this user may not use port {}. Choose a port above 1023 with --listen",
            address.port()
        ),
        _ => anyhow!("cannot listen on {address} (--listen): {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_a_port_alone_or_have_a_name() {
        for (text, meant) in [
            ("7071", "127.0.0.1:7071"),
            (":7071", "127.0.0.1:7071"),
            ("localhost:7071", "localhost:7071"),
            ("0.0.0.0:0", "0.0.0.0:0"),
            ("[::1]:7071", "[::1]:7071"),
        ] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), meant);
        }
        for text in ["", "localhost", "::1", "::1:7071", "host:70710", "host:port", "http://host:7071"] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_that_names_the_flag() {
        let taken = bind(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let address = taken.address();
        let _listener = taken.listen(Duration::from_secs(15)).unwrap();
        let error = bind(&[address]).err().expect("bound twice").to_string();
        assert!(error.contains(&address.to_string()) && error.contains("--listen"), "{error}");
    }

    #[tokio::test]
    async fn localhost_is_loopback() {
        let addresses = "localhost:7071".parse::<Listen>().unwrap().resolve().await.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 7071), "{addresses:?}");
    }
}
