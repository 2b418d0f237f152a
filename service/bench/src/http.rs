//! A minimal HTTP/1.1 client: one request at a time on a persistent connection, with bytes built beforehand. The client shares the
//! processors with the server, so it must cost little.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;

use anyhow::{Context, bail};
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

const ANSWER_BYTES_MAX: usize = 1 << 20;
const HEADERS_MAX: usize = 64;

/// A node, and the API key to call it with.
#[derive(Clone, Debug)]
pub struct Target {
    /// The `HOST:PORT` of an `http://HOST:PORT`.
    address: String,
    /// The line of the header, if there is an API key.
    authorization: String,
}

impl Target {
    /// An `http://HOST:PORT`, or an `http://API_KEY@HOST:PORT`.
    pub fn parse(url: &str) -> anyhow::Result<Self> {
        let Some(address) = url.strip_prefix("http://") else { bail!("not an http:// URL: {url}") };
        let address = address.trim_end_matches('/');
        let (api_key, address) = address.rsplit_once('@').map_or((None, address), |(key, rest)| (Some(key), rest));
        if address.contains('/') || !address.contains(':') {
            bail!("not of the form http://HOST:PORT: {url}");
        }
        let authorization = api_key.map(authorization).unwrap_or_default();
        Ok(Self { address: address.to_string(), authorization })
    }

    /// A connection of one's own.
    pub async fn connect(&self) -> io::Result<TcpStream> {
        connect(self).await
    }

    /// The port, by which the node is found if it runs on this machine.
    pub fn port(&self) -> Option<u16> {
        self.address.rsplit_once(':')?.1.parse().ok()
    }

    /// Whether the address is one of this machine's loopback interface.
    pub fn is_loopback(&self) -> bool {
        ["127.", "localhost:", "[::1]:"].iter().any(|prefix| self.address.starts_with(prefix))
    }

    /// As [`Target::parse`], with an API key that is not in the URL.
    pub fn with_key(url: &str, key: Option<&str>) -> anyhow::Result<Self> {
        let target = Self::parse(url)?;
        Ok(match key {
            Some(key) => Self { authorization: authorization(key), ..target },
            None => target,
        })
    }
}

fn authorization(key: &str) -> String {
    format!("authorization: Bearer {}\r\n", key.trim())
}

/// Stands for a number in the text of a request. [`Request::with`] replaces it in place by 12 hexadecimal digits.
pub const SEQUENCE: &str = "{=sequence=}";
/// As [`SEQUENCE`], for the number of a key.
pub const KEY: &str = "{====key===}";
const DIGITS: usize = 12;

/// A POST, built beforehand, in which numbers are replaced in place.
pub struct Request {
    bytes: Vec<u8>,
    sequences: Vec<usize>,
    keys: Vec<usize>,
}

impl Request {
    /// `path` and `body` may contain [`SEQUENCE`] and [`KEY`].
    pub fn post(target: &Target, path: &str, body: &str) -> Self {
        let text = post(target, path, body);
        let all = |mark: &str| text.match_indices(mark).map(|(at, _)| at).collect();
        Self { sequences: all(SEQUENCE), keys: all(KEY), bytes: text.into_bytes() }
    }

    /// The request with these numbers.
    pub fn with(&mut self, sequence: u64, key: u64) -> &[u8] {
        for (offsets, number) in [(&self.sequences, sequence), (&self.keys, key)] {
            for at in offsets {
                write_hex(&mut self.bytes[*at..][..DIGITS], number);
            }
        }
        &self.bytes
    }
}

fn write_hex(digits: &mut [u8], number: u64) {
    let mut rest = number;
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(rest & 15) as usize];
        rest >>= 4;
    }
}

/// The text of a POST.
pub fn post(Target { address, authorization }: &Target, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\n{authorization}content-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// The text of a GET.
pub fn get(Target { address, authorization }: &Target, path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n{authorization}\r\n")
}

/// A lease id in the form of a UUID: random for a run, then the connection, then a sequence number.
pub fn lease_id(run: u64, connection: usize, sequence: u64) -> String {
    lease_id_template(run, connection).replace(SEQUENCE, &format!("{sequence:0DIGITS$x}"))
}

/// With [`SEQUENCE`] in place of the number.
pub fn lease_id_template(run: u64, connection: usize) -> String {
    format!("{:08x}-{:04x}-4000-8000-{SEQUENCE}", run & 0xffff_ffff, connection & 0xffff)
}

/// Random, so that no two runs share keys or lease ids.
pub fn run_id() -> u64 {
    RandomState::new().hash_one(0)
}

/// A request without a 2xx answer.
#[derive(Debug)]
pub struct Failure {
    /// The request, with the status and problem code of the answer: `acquire 423 lock-held`.
    pub what: String,
    /// The request may have been carried out: repeat it with the same lease id, so that no lease is left behind.
    pub outcome_unknown: bool,
}

pub struct Connection<S = TcpStream> {
    target: Target,
    stream: S,
    buffer: Vec<u8>,
}

impl Connection {
    pub async fn open(target: &Target) -> anyhow::Result<Self> {
        let stream = connect(target).await.with_context(|| format!("connecting to {}", target.address))?;
        Ok(Self::over(stream, target))
    }

    /// Sends `request`, called `name` in failures; returns the body of a 2xx answer. Reconnects after a broken connection. If the
    /// call is dropped, the connection must not be used again.
    pub async fn call(&mut self, name: &str, request: &[u8]) -> Result<&[u8], Failure> {
        match self.exchange(request).await {
            Ok((200..300, body)) => Ok(&self.buffer[body]),
            Ok((status, body)) => {
                let code = problem_code(&self.buffer[body]);
                let outcome_unknown = code == "outcome-unknown";
                Err(Failure { what: format!("{name} {status} {code}"), outcome_unknown })
            }
            Err(error) => {
                if let Ok(stream) = connect(&self.target).await {
                    self.stream = stream;
                }
                Err(Failure { what: format!("{name}: {error}"), outcome_unknown: true })
            }
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// A connection to `target` that is there already.
    pub fn over(stream: S, target: &Target) -> Self {
        Self { target: target.clone(), stream, buffer: vec![0; 2048] }
    }

    /// Sends `request`; returns the status and the body of the answer. After an error, or if the call is dropped, the connection
    /// must not be used again.
    pub async fn send(&mut self, request: &[u8]) -> io::Result<(u16, &[u8])> {
        let (status, body) = self.exchange(request).await?;
        Ok((status, &self.buffer[body]))
    }

    /// The answer's status, and where in the buffer its body is.
    async fn exchange(&mut self, request: &[u8]) -> io::Result<(u16, Range<usize>)> {
        self.stream.write_all(request).await?;
        let mut filled = self.read(0).await?;
        let head = loop {
            match Head::parse(&self.buffer[..filled])? {
                Some(head) => break head,
                None => filled += self.read(filled).await?,
            }
        };
        let end = head.length + head.content_length;
        while filled < end {
            filled += self.read(filled).await?;
        }
        Ok((head.status, head.length..end))
    }

    async fn read(&mut self, filled: usize) -> io::Result<usize> {
        if filled == self.buffer.len() {
            if filled >= ANSWER_BYTES_MAX {
                return Err(io::Error::other("the answer is too large"));
            }
            self.buffer.resize(filled * 2, 0);
        }
        match self.stream.read(&mut self.buffer[filled..]).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => Ok(count),
        }
    }
}

async fn connect(target: &Target) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(&target.address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn problem_code(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Problem {
        code: String,
    }
    serde_json::from_slice(body).map(|Problem { code }| code).unwrap_or_default()
}

struct Head {
    length: usize,
    status: u16,
    content_length: usize,
}

impl Head {
    /// `None` while it is incomplete.
    fn parse(bytes: &[u8]) -> io::Result<Option<Self>> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let httparse::Status::Complete(length) = response.parse(bytes).map_err(io::Error::other)? else {
            return Ok(None);
        };
        let content_length = response
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case("content-length"))
            .and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok())
            .ok_or_else(|| io::Error::other("the answer has no content-length"))?;
        Ok(Some(Self { length, status: response.code.unwrap_or(0), content_length }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_a_request_are_replaced_in_place() {
        let target = Target::parse("http://127.0.0.1:1/").unwrap();
        let body = format!(r#"{{"lease_id":"{}"}}"#, lease_id_template(0xabcd, 7));
        let mut request = Request::post(&target, &format!("/x/{KEY}"), &body);
        request.with(5, 6);
        let text = String::from_utf8(request.with(0x1f, 0x2e).to_vec()).unwrap();
        assert!(text.starts_with("POST /x/00000000002e HTTP/1.1\r\n"), "{text}");
        assert!(text.ends_with(r#"{"lease_id":"0000abcd-0007-4000-8000-00000000001f"}"#), "{text}");
        assert!(text.contains("content-length: 51\r\n"), "{text}");
    }

    #[test]
    fn a_url_with_a_path_is_refused() {
        assert!(Target::parse("http://127.0.0.1:1/v1").is_err());
        assert!(Target::parse("https://127.0.0.1:1").is_err());
    }
}
