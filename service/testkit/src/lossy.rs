//! A proxy in front of a node that loses answers.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::node::Node;
use crate::wait::until;

/// Passes requests on to a node, in the runtime of the test that has started it. Of those whose path ends so, it loses answers.
pub struct Lossy {
    port: u16,
    left: Arc<AtomicUsize>,
}

impl Lossy {
    /// Loses so many answers to requests whose path ends with `path`.
    ///
    /// # Panics
    ///
    /// When no port is free.
    pub async fn start(node: &Node, path: &'static str, times: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let (port, target) = (listener.local_addr().expect("it is bound").port(), node.port());
        let left = Arc::new(AtomicUsize::new(times));
        let counter = left.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pass(stream, target, path, counter.clone()));
            }
        });
        Self { port, left }
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
        until("an answer is lost", || std::future::ready(self.left.load(Ordering::SeqCst) < usize::MAX)).await;
    }

    /// From now on, no answer is lost.
    pub fn pass_all(&self) {
        self.left.store(0, Ordering::SeqCst);
    }

    /// Whether it has lost as many answers as it was to lose.
    pub fn lost_all(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

async fn pass(mut client: TcpStream, target: u16, path: &str, left: Arc<AtomicUsize>) -> io::Result<()> {
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
