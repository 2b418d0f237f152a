//! A proxy in front of a node that loses answers, or answers itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::node::Node;
use crate::wait::until;

/// Passes requests on to a node, in the runtime of the test that has started it. Of those whose path ends so, it loses answers.
pub struct Lossy {
    port: u16,
    faults: Arc<Faults>,
}

struct Faults {
    path: &'static str,
    /// Answers that are still to be lost.
    left: AtomicUsize,
    /// Then, the answer to requests that the node does not get, and how many of them there were.
    refusal: Option<String>,
    refused: AtomicUsize,
    is_over: AtomicBool,
}

impl Lossy {
    /// Loses so many answers to requests whose path ends with `path`.
    ///
    /// # Panics
    ///
    /// When no port is free.
    pub async fn start(node: &Node, path: &'static str, times: usize) -> Self {
        Self::faulty(node, path, times, None).await
    }

    /// Loses so many answers. Then it refuses such requests with this problem until [`Self::pass_all`]: the node does not get them.
    pub async fn then_refusing(node: &Node, path: &'static str, times: usize, status: u16, code: &str) -> Self {
        let body = format!("{{\"status\":{status},\"code\":\"{code}\",\"detail\":\"refused by the test\"}}");
        let head = format!("HTTP/1.1 {status} Refused\r\ncontent-type: application/problem+json\r\nconnection: close");
        let refusal = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        Self::faulty(node, path, times, Some(refusal)).await
    }

    async fn faulty(node: &Node, path: &'static str, times: usize, refusal: Option<String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (port, target) = (listener.local_addr().expect("it is bound").port(), node.port());
        let (left, refused, is_over) = (AtomicUsize::new(times), AtomicUsize::new(0), AtomicBool::new(false));
        let faults = Arc::new(Faults { path, left, refusal, refused, is_over });
        let shared = faults.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, target, shared.clone()));
            }
        });
        Self { port, faults }
    }

    /// Loses every answer until [`Self::pass_all`].
    pub async fn of_all(node: &Node, path: &'static str) -> Self {
        Self::start(node, path, usize::MAX).await
    }

    /// `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn base_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns when an answer was lost, of one that [loses all](Self::of_all).
    pub async fn until_lost_one(&self) {
        until("an answer is lost", || std::future::ready(self.faults.left.load(Ordering::SeqCst) < usize::MAX)).await;
    }

    /// Returns when so many requests were refused.
    pub async fn until_refused(&self, times: usize) {
        until("requests are refused", || std::future::ready(self.faults.refused.load(Ordering::SeqCst) >= times)).await;
    }

    /// From now on, no answer is lost and no request refused.
    pub fn pass_all(&self) {
        self.faults.is_over.store(true, Ordering::SeqCst);
        self.faults.left.store(0, Ordering::SeqCst);
    }
}

async fn pass(mut client: TcpStream, target: u16, faults: Arc<Faults>) -> io::Result<()> {
    let Faults { path, left, refusal, refused, is_over } = &*faults;
    let mut node = TcpStream::connect(("127.0.0.1", target)).await?;
    let (mut request, mut answer) = (vec![0; 65_536], vec![0; 65_536]);
    let mut is_meant = false;
    loop {
        tokio::select! {
            length = client.read(&mut request) => match length? {
                0 => return Ok(()),
                length => {
                    let text = String::from_utf8_lossy(&request[..length]);
                    is_meant |= text.lines().next().is_some_and(|line| line.contains(&format!("{path} HTTP")));
                    let is_refusing = is_meant && left.load(Ordering::SeqCst) == 0 && !is_over.load(Ordering::SeqCst);
                    if let (true, Some(refusal)) = (is_refusing, refusal) {
                        refused.fetch_add(1, Ordering::SeqCst);
                        return client.write_all(refusal.as_bytes()).await;
                    }
                    node.write_all(&request[..length]).await?;
                }
            },
            length = node.read(&mut answer) => match length? {
                0 => return Ok(()),
                length => {
                    let take = |left: usize| left.checked_sub(1);
                    if is_meant && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok() {
                        return Ok(());
                    }
                    is_meant = false;
                    client.write_all(&answer[..length]).await?;
                }
            },
        }
    }
}
