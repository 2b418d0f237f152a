//! Single calls, each on a connection of its own, and programs that are run to their end.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::time::timeout;

/// An answer; without one, the status is 0.
#[derive(Clone, Debug, Default)]
pub struct Reply {
    pub status: u16,
    pub text: String,
    /// Null if it is no JSON.
    pub body: Value,
}

pub async fn get(url: &str, path: &str, within: Duration) -> Reply {
    ask(url, "GET", path, "", within).await
}

pub async fn post(url: &str, path: &str, body: &Value, within: Duration) -> Reply {
    ask(url, "POST", path, &body.to_string(), within).await
}

/// Whether a server answers with 200.
pub async fn is_ok(url: &str, path: &str) -> bool {
    get(url, path, Duration::from_secs(2)).await.status == 200
}

/// Calls `http://HOST:PORT`.
pub async fn ask(url: &str, method: &str, path: &str, body: &str, within: Duration) -> Reply {
    let (address, length) = (url.trim_start_matches("http://"), body.len());
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    let call = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        // Patroni gives no length.
        stream.read_to_end(&mut answer).await?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, text) = answer.split_once("\r\n\r\n").context("no answer")?;
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        anyhow::Ok(Reply { status, text: text.to_owned(), body: serde_json::from_str(text).unwrap_or_default() })
    };
    timeout(within, call).await.ok().and_then(Result::ok).unwrap_or_default()
}

/// Runs a program to its end; returns its output.
pub async fn run(command: &mut Command) -> anyhow::Result<String> {
    let output =
        command.stdin(Stdio::null()).kill_on_drop(true).output().await.with_context(|| format!("{command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub async fn output(program: &str, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> anyhow::Result<String> {
    run(Command::new(program).args(args)).await
}
