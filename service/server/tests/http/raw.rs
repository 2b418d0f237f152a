//! A connection on which a test decides about every byte.

use std::net::SocketAddr;
use std::time::Duration;

use latchgate_testkit::node::Node;
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

const PATIENCE: Duration = Duration::from_secs(60);

/// A client's connection.
pub struct Raw {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// One answer.
#[derive(Debug)]
pub struct RawAnswer {
    pub status: u16,
    pub body: Value,
}

impl Raw {
    pub async fn connect(node: &Node) -> Self {
        Self { stream: TcpStream::connect(("127.0.0.1", node.port())).await.unwrap(), unread: Vec::new() }
    }

    /// From another address of this machine. The operating system keeps little that is not read.
    pub async fn connect_from(address: [u8; 4], node: &Node) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM.nonblocking(), None).unwrap();
        socket.set_tcp_mss(536).unwrap();
        socket.set_recv_buffer_size(2_048).unwrap();
        socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
        let socket = TcpSocket::from_std_stream(socket.into());
        Self { stream: socket.connect(([127, 0, 0, 1], node.port()).into()).await.unwrap(), unread: Vec::new() }
    }

    /// Fails if the node has closed the connection.
    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let written = tokio::time::timeout(PATIENCE, self.stream.write_all(bytes.as_ref()));
        written.await.expect("the node reads").expect("the connection is open");
    }

    /// Whether the connection took the bytes.
    pub async fn try_send(&mut self, bytes: &[u8]) -> bool {
        matches!(tokio::time::timeout(PATIENCE, self.stream.write_all(bytes)).await, Ok(Ok(())))
    }

    /// Sends what the operating system takes at once.
    pub fn send_at_once(&self, bytes: &[u8]) {
        let _ = self.stream.try_write(bytes);
    }

    /// Closes this client's side alone: it can still read.
    pub async fn half_close(&mut self) {
        self.stream.shutdown().await.unwrap();
    }

    /// Sends a request up to the body, which the node has asked for when this returns.
    pub async fn before_body(node: &Node, target: &str, api_key: &str, body: &Value) -> Self {
        let mut client = Self::connect(node).await;
        let key = if api_key.is_empty() { String::new() } else { format!("authorization: Bearer {api_key}\r\n") };
        let head = format!("{target} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n{key}");
        client.send(format!("{head}content-length: {}\r\n\r\n", body.to_string().len())).await;
        client.read_until("100 Continue\r\n\r\n").await;
        client
    }

    /// The status of the answer to a GET.
    pub async fn status_of(&mut self, path: &str) -> u16 {
        self.send(getting(path)).await;
        self.answer().await.expect("the connection is open").status
    }

    /// Fails unless the node answers on this connection.
    pub async fn is_served(&mut self) {
        assert_eq!(self.status_of("/healthz").await, 200);
    }

    /// Reads and drops what the node sends, until it has sent this text.
    pub async fn read_until(&mut self, end: &str) {
        while !self.unread.ends_with(end.as_bytes()) {
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.unread));
            assert!(read.await.expect("an answer").unwrap() > 0, "the node has closed the connection");
        }
        self.unread.clear();
    }

    /// The next answer; `None` if the node closes the connection instead.
    pub async fn answer(&mut self) -> Option<RawAnswer> {
        loop {
            if let Some(answer) = self.complete() {
                return Some(answer);
            }
            let read = tokio::time::timeout(PATIENCE, self.stream.read_buf(&mut self.unread));
            if read.await.expect("an answer, or the end of the connection").unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    /// An answer with a length, if all of it has arrived.
    fn complete(&mut self) -> Option<RawAnswer> {
        let end = self.unread.windows(4).position(|bytes| bytes == b"\r\n\r\n")? + 4;
        let head = String::from_utf8(self.unread[..end].to_vec()).unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.to_lowercase().lines().find_map(|line| {
            line.strip_prefix("content-length:").map(|length| length.trim().parse::<usize>().unwrap())
        });
        let body = self.unread.get(end..end + length.unwrap_or(0))?;
        let body = serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into());
        self.unread.drain(..end + length.unwrap_or(0));
        Some(RawAnswer { status, body })
    }

    /// The port of this client's side.
    pub fn port(&self) -> u16 {
        self.stream.local_addr().unwrap().port()
    }
}

/// A POST with a body.
pub fn posting(path: &str, body: &Value) -> String {
    let body = body.to_string();
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

pub fn getting(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")
}
