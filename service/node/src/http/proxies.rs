//! The address of a client behind proxies. Only proxies that the operator trusts are believed.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// # Errors
/// When the text is neither a network nor an address.
pub fn network(text: &str) -> Result<IpNet, String> {
    let address = |_| text.trim().parse::<IpAddr>().map(IpNet::from);
    let network = text.trim().parse().or_else(address);
    network.map_err(|_| "must be an address or a network, such as 10.0.0.0/8 or fd00::/8".to_owned())
}

/// Where a request comes from, as far as this node can know. Each proxy appends the address of its own client. So the right-most
/// address that is not a trusted proxy is the client; what stands left of it, the client may have made up.
pub fn client(trusted: &[IpNet], peer: IpAddr, headers: &HeaderMap) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(&address));
    let mut client = peer.to_canonical();
    if !is_trusted(client) {
        return client;
    }
    let forwarded = headers.get_all(FORWARDED_FOR).iter().rev();
    let entries = forwarded.flat_map(|value| value.to_str().unwrap_or("?").rsplit(','));
    for entry in entries {
        // The proxy before it is all that is known.
        let Some(address) = address_of(entry.trim()) else { break };
        client = address;
        if !is_trusted(client) {
            break;
        }
    }
    client
}

/// Some proxies add the port.
fn address_of(entry: &str) -> Option<IpAddr> {
    let bare = entry.strip_prefix('[').and_then(|entry| entry.strip_suffix(']')).unwrap_or(entry);
    let address = bare.parse().ok().or_else(|| Some(entry.parse::<SocketAddr>().ok()?.ip()));
    address.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::{FORWARDED_FOR, HeaderMap, IpAddr, IpNet, network};

    fn client(trusted: &[&str], peer: &str, forwarded: &[&str]) -> String {
        let networks: Vec<IpNet> = trusted.iter().map(|text| network(text).unwrap()).collect();
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED_FOR, value.parse().unwrap());
        }
        super::client(&networks, peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn the_right_most_address_that_is_not_a_trusted_proxy_is_the_client() {
        let proxies = ["10.0.0.0/8", "fd00::/8"];
        assert_eq!(client(&proxies, "10.1.2.3", &["1.1.1.1, 2.2.2.2, 10.9.9.9"]), "2.2.2.2");
        assert_eq!(client(&proxies, "10.1.2.3", &["1.1.1.1", "2.2.2.2", "fd00::1"]), "2.2.2.2");
        assert_eq!(client(&proxies, "::ffff:10.1.2.3", &["[2001:db8::1]:443"]), "2001:db8::1");
        assert_eq!(client(&proxies, "10.1.2.3", &["2.2.2.2:1234"]), "2.2.2.2");
        // All are proxies: the first of them has the request from itself.
        assert_eq!(client(&proxies, "10.1.2.3", &["10.0.0.1, 10.0.0.2"]), "10.0.0.1");
    }

    #[test]
    fn a_header_that_no_trusted_proxy_has_sent_does_not_count() {
        assert_eq!(client(&["10.0.0.0/8"], "9.9.9.9", &["1.1.1.1"]), "9.9.9.9");
        assert_eq!(client(&[], "127.0.0.1", &["1.1.1.1"]), "127.0.0.1");
        assert_eq!(client(&["10.0.0.0/8"], "10.1.2.3", &["1.1.1.1, evil\" thing"]), "10.1.2.3");
        assert_eq!(client(&["10.0.0.0/8"], "10.1.2.3", &[]), "10.1.2.3");
    }

    #[test]
    fn a_network_is_one_or_an_address() {
        assert!(network("192.168.4.0/22").unwrap().contains(&"192.168.7.255".parse::<IpAddr>().unwrap()));
        assert!(network(" ::1 ").unwrap().contains(&"::1".parse::<IpAddr>().unwrap()));
        for text in ["", "10.0.0.0/33", "10.0.0/8", "a/8", "10.0.0.0/-1", "10.0.0.0/8/8"] {
            assert!(network(text).is_err(), "{text}");
        }
    }
}
