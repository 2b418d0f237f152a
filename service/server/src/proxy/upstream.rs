//! HTTP/1.1 to a server, with a connection for each request.

use std::str::FromStr;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, header};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// Headers that concern one connection only.
const HOPS: [&str; 10] = [
    "connection",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

pub type Connection = SendRequest<Body>;

/// A server by its address: `http://HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// As in the header `Host`.
    authority: String,
    /// With a port, to connect to.
    address: String,
}

impl FromStr for Server {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rule = || format!("must be http://HOST:PORT, not {text:?}");
        let authority = text.strip_prefix("http://").ok_or_else(rule)?.trim_end_matches('/');
        let uri: Uri = authority.parse().map_err(|_| rule())?;
        let (Some(_), None | Some("" | "/")) = (uri.host(), uri.path_and_query().map(PathAndQuery::as_str)) else {
            return Err(rule());
        };
        let address = if uri.port().is_some() { authority.to_owned() } else { format!("{authority}:80") };
        Ok(Self { authority: authority.to_owned(), address })
    }
}

impl Server {
    pub async fn connect(&self) -> anyhow::Result<Connection> {
        let stream = TcpStream::connect(&self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(sender)
    }

    /// The request as the server gets it: with the client's `Host`, if it has sent one.
    pub fn request(&self, mut head: Parts, body: Body) -> Request<Body> {
        without_hops(&mut head.headers);
        let path = head.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        head.uri = path.into();
        head.version = axum::http::Version::HTTP_11;
        if let Ok(host) = HeaderValue::try_from(self.authority.as_str()) {
            head.headers.entry(header::HOST).or_insert(host);
        }
        head.extensions.clear();
        Request::from_parts(head, body)
    }

    /// For messages.
    pub fn name(&self) -> &str {
        &self.authority
    }
}

/// Removes the headers that concern one connection only.
pub fn without_hops(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|names| names.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOPS {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_an_address_without_a_path() {
        let server: Server = "http://127.0.0.1:8000/".parse().unwrap();
        assert_eq!((server.authority.as_str(), server.address.as_str()), ("127.0.0.1:8000", "127.0.0.1:8000"));
        assert_eq!("http://billing".parse::<Server>().unwrap().address, "billing:80");
        assert_eq!("http://[::1]:80".parse::<Server>().unwrap().address, "[::1]:80");
        for text in ["", "127.0.0.1:8000", "https://host", "http://", "http://host/path", "http://host?query"] {
            assert!(text.parse::<Server>().is_err(), "{text}");
        }
    }

    #[test]
    fn headers_of_one_connection_are_not_passed_on() {
        let mut headers = HeaderMap::new();
        for (name, value) in [("connection", "close, X-Mine"), ("x-mine", "1"), ("te", "trailers"), ("x-other", "2")] {
            headers.insert(name.parse::<HeaderName>().unwrap(), HeaderValue::from_static(value));
        }
        without_hops(&mut headers);
        assert_eq!(headers.keys().map(HeaderName::as_str).collect::<Vec<_>>(), ["x-other"]);
    }
}
