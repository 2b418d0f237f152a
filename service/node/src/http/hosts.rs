//! Web pages in a browser that reaches this node must not act on it. A browser tells where a request comes from; a page whose
//! owner has pointed a name of its own at this node (DNS rebinding) is known by that name.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};

use super::problem::{Code, Problem};

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const UPGRADE: HeaderName = HeaderName::from_static("upgrade-insecure-requests");
/// The longest name of DNS.
const NAME_BYTES_MAX: usize = 253;

/// A host name, all names under a domain (`*.example.com`), or any (`*`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowedHost {
    Any,
    /// Begins with a dot.
    Under(String),
    Name(String),
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim().to_ascii_lowercase();
        if text == "*" {
            return Ok(Self::Any);
        }
        let (name, is_domain) = text.strip_prefix("*.").map_or((text.as_str(), false), |domain| (domain, true));
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_name_byte) {
            return Err(
                "must be a host name without scheme and port, such as locks.example.com, *.example.com or *".to_owned()
            );
        }
        Ok(if is_domain { Self::Under(format!(".{name}")) } else { Self::Name(name.to_owned()) })
    }
}

/// The names of this node.
#[derive(Clone, Debug)]
pub struct Hosts {
    allowed: Vec<AllowedHost>,
    listen: String,
    /// Whether requests for other names are refused. On a public address without `--allowed-hosts` only browsers are, because the
    /// node cannot know by which names load balancers and their clients call it.
    is_strict: bool,
}

impl Hosts {
    /// `listen` is the host that the node was told to listen on, and `addresses` are those that it stands for.
    pub fn new(allowed: &[AllowedHost], listen: &str, addresses: &[SocketAddr]) -> Self {
        let is_strict = !allowed.is_empty() || addresses.iter().all(|address| address.ip().is_loopback());
        Self { allowed: allowed.to_vec(), listen: listen.to_owned(), is_strict }
    }

    /// `is_allowed_origin`: the operator allows pages of the request's origin.
    ///
    /// # Errors
    /// `foreign-host` or `foreign-origin`.
    pub fn check(&self, method: &Method, headers: &HeaderMap, is_allowed_origin: bool) -> Result<(), Problem> {
        if (self.is_strict || (is_of_browser(headers) && !is_allowed_origin))
            && let Some(host) = headers.get_all(header::HOST).iter().find(|host| !self.is_own(name_of(host)))
        {
            let detail =
                "The header Host has a name that is not one of this node's. If it is, add it to --allowed-hosts.";
            return Err(Problem::new(Code::ForeignHost, detail).with("host", shown(host)));
        }
        // It changes nothing, and the answer allows nothing to a page of another origin.
        if method == Method::OPTIONS || is_allowed_origin {
            return Ok(());
        }
        let is_own = match (headers.get(SITE), headers.get(header::ORIGIN)) {
            (Some(site), _) => site == "same-origin" || site == "none" || is_link(method, headers),
            (None, Some(origin)) => self.is_own_origin(origin, headers.get(header::HOST)),
            (None, None) => true,
        };
        if is_own {
            return Ok(());
        }
        let origin = headers.get(header::ORIGIN).map(shown);
        let detail = "A web page of another origin has sent this request. If the page is this node's own, behind a proxy, add \
                      the host of its address to --allowed-hosts.";
        Err(Problem::new(Code::ForeignOrigin, detail).with("origin", origin))
    }

    /// Addresses, names without a dot and `localhost` are own names: an attacker cannot register one of them and let it resolve to
    /// this node in a victim's browser.
    fn is_own(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case(&self.listen)
            || (!name.contains(['.', '[']))
            || name.parse::<Ipv4Addr>().is_ok()
            || name
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
                .is_some_and(|v6| v6.parse::<Ipv6Addr>().is_ok())
            || ends_with(name, ".localhost")
            || self.is_allowed(name, true)
    }

    fn is_allowed(&self, name: &str, or_any: bool) -> bool {
        self.allowed.iter().any(|allowed| match allowed {
            AllowedHost::Any => or_any,
            AllowedHost::Under(domain) => ends_with(name, domain),
            AllowedHost::Name(own) => name.eq_ignore_ascii_case(own),
        })
    }

    /// Whether the page is this node's: its address is the one that it calls, or has an allowed host, which a proxy may not
    /// have passed on.
    fn is_own_origin(&self, origin: &HeaderValue, host: Option<&HeaderValue>) -> bool {
        let Some((_, authority)) = origin.to_str().ok().and_then(|origin| origin.split_once("://")) else {
            return false;
        };
        let name = without_port(authority);
        let is_called = host.is_some_and(|host| host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()));
        (is_called && self.is_own(name)) || self.is_allowed(name, false)
    }
}

/// To a name that is not a secure origin, browsers send no `Sec-Fetch-Site`, and no `Origin` with a GET of the page's own origin: which
/// is all that a page needs whose name its owner has pointed at this node. Programs that send `Accept-Language` send `*`.
fn is_of_browser(headers: &HeaderMap) -> bool {
    let is_sent = |name: &HeaderName| headers.contains_key(name);
    [SITE, header::ORIGIN, header::REFERER, UPGRADE].iter().any(is_sent)
        || headers.get(header::USER_AGENT).is_some_and(|agent| agent.as_bytes().starts_with(b"Mozilla/"))
        || headers.get(header::ACCEPT_LANGUAGE).is_some_and(|language| language != "*")
}

/// A link, a bookmark or a typed address: the page that has the link does not see the answer.
fn is_link(method: &Method, headers: &HeaderMap) -> bool {
    (method == Method::GET || method == Method::HEAD) && headers.get(MODE).is_some_and(|mode| mode == "navigate")
}

/// The host without its port and without the dot at its end; a text that no node has as a name if it is not ASCII.
fn name_of(host: &HeaderValue) -> &str {
    host.to_str().map_or("?.", without_port)
}

fn without_port(authority: &str) -> &str {
    let name = match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    };
    name.strip_suffix('.').unwrap_or(name)
}

fn ends_with(name: &str, end: &str) -> bool {
    let (name, end) = (name.as_bytes(), end.as_bytes());
    name.len() > end.len() && name[name.len() - end.len()..].eq_ignore_ascii_case(end)
}

fn shown(value: &HeaderValue) -> String {
    value.to_str().unwrap_or_default().chars().take(NAME_BYTES_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowed_host_is_a_name_and_no_address_of_a_page() {
        assert_eq!("Locks.Example.com".parse(), Ok(AllowedHost::Name("locks.example.com".to_owned())));
        assert_eq!("*.example.com".parse(), Ok(AllowedHost::Under(".example.com".to_owned())));
        assert_eq!("*".parse(), Ok(AllowedHost::Any));
        for text in ["", "https://locks.example.com", "locks.example.com:443", "*.", "a/b", "*x", "a*"] {
            assert!(text.parse::<AllowedHost>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_with_a_dot_is_own_only_if_it_is_allowed_or_an_address() {
        let hosts = Hosts::new(&[], "locks.internal", &["127.0.0.1:7070".parse().unwrap()]);
        for own in ["127.0.0.1", "[::1]", "localhost", "a.LOCALHOST", "node-1", "", "locks.internal"] {
            assert!(hosts.is_own(own), "{own}");
        }
        for foreign in ["evil.example", "127.0.0.1.evil.example", "127.1", "[::1", "[evil]", ".localhost", "?."] {
            assert!(!hosts.is_own(foreign), "{foreign}");
        }
        assert_eq!(without_port("[::1]:7070"), "[::1]");
        assert_eq!(without_port("[::1]"), "[::1]");
        assert_eq!(without_port("a.b.:1"), "a.b");
    }
}
