//! The reading half of a small HTTP server.

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

pub struct Request {
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    /// The name is in lower case.
    pub fn header(&self, name: &str) -> Option<String> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

/// Reads one request with a `Content-Length`, or chunked in one piece; `None` if the connection ends before.
pub async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    loop {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4);
        if let Some(end) = end {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let mut lines = head.lines();
            let path = lines.next()?.split(' ').nth(1)?.to_owned();
            let header =
                |line: &str| Some((line.split_once(':')?.0.to_lowercase(), line.split_once(':')?.1.trim().to_owned()));
            let mut request = Request { path, headers: lines.filter_map(header).collect(), body: Vec::new() };
            let length = request.header("content-length").map_or(0, |length| length.parse().unwrap());
            if bytes.len() >= end + length {
                request.body = bytes[end..end + length].to_vec();
                return Some(request);
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
