//! Links between nodes and their stores, which break as files say: `latchgate-testkit links`.

use std::io;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// How often the file of a link is read.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Pieces of data on their way in one direction of a connection.
const ON_THE_WAY_MAX: usize = 1_024;

#[derive(Clone, clap::Args)]
pub struct Args {
    /// Each link as PORT:TARGET:FILE. Connections to PORT are passed to TARGET, both on 127.0.0.1. While FILE contains one of these
    /// words, `delay MS`: everything arrives later; `jitter MS`: later by a random time, in order; `hold`, `hold-requests`,
    /// `hold-answers`: nothing arrives (in this direction) until the end of the fault; `half-open`: the target loses its connections,
    /// which the other side learns at the end of the fault; `cut`: no connections
    #[arg(required = true)]
    pub links: Vec<Link>,
}

#[derive(Clone, Debug)]
pub struct Link {
    port: u16,
    target: u16,
    file: PathBuf,
}

impl FromStr for Link {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (port, rest) = text.split_once(':').context("a link is PORT:TARGET:FILE")?;
        let (target, file) = rest.split_once(':').context("a link is PORT:TARGET:FILE")?;
        Ok(Self { port: port.parse()?, target: target.parse()?, file: file.into() })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fault {
    #[default]
    None,
    Delay(Duration),
    Jitter(Duration),
    Hold {
        requests: bool,
        answers: bool,
    },
    HalfOpen,
    Cut,
}

impl FromStr for Fault {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let words: Vec<&str> = text.split_whitespace().collect();
        Ok(match words[..] {
            [] => Self::None,
            ["delay", ms] => Self::Delay(Duration::from_millis(ms.parse()?)),
            ["jitter", ms] => Self::Jitter(Duration::from_millis(ms.parse()?)),
            ["hold"] => Self::Hold { requests: true, answers: true },
            ["hold-requests"] => Self::Hold { requests: true, answers: false },
            ["hold-answers"] => Self::Hold { requests: false, answers: true },
            ["half-open"] => Self::HalfOpen,
            ["cut"] => Self::Cut,
            _ => bail!("no such fault: {text}"),
        })
    }
}

impl Fault {
    fn ends_connections(self) -> bool {
        matches!(self, Self::HalfOpen | Self::Cut)
    }

    fn holds(self, is_answer: bool) -> bool {
        matches!(self, Self::Hold { requests, answers } if if is_answer { answers } else { requests })
    }
}

/// Passes connections on until the process ends.
pub async fn run(args: &Args) -> anyhow::Result<()> {
    let mut links = JoinSet::new();
    for link in &args.links {
        let listener = TcpListener::bind(("127.0.0.1", link.port)).await.with_context(|| format!("{link:?}"))?;
        let fault = watch::Sender::new(Fault::None);
        links.spawn(accept(listener, link.target, fault.subscribe()));
        links.spawn(follow(link.file.clone(), fault));
    }
    links.join_next().await.context("there is no link")?.context("a link has ended")?
}

/// Sets the fault that the file names; none if there is no file.
async fn follow(file: PathBuf, fault: watch::Sender<Fault>) -> anyhow::Result<()> {
    loop {
        let named = std::fs::read_to_string(&file).unwrap_or_default().parse()?;
        fault.send_if_modified(|fault| std::mem::replace(fault, named) != named);
        sleep(LOOK_EVERY).await;
    }
}

async fn accept(listener: TcpListener, target: u16, fault: watch::Receiver<Fault>) -> anyhow::Result<()> {
    loop {
        let (client, _) = listener.accept().await?;
        tokio::spawn(pass(client, target, fault.clone()));
    }
}

async fn pass(mut client: TcpStream, target: u16, mut fault: watch::Receiver<Fault>) -> io::Result<()> {
    let Ok(begun) = fault.wait_for(|fault| !fault.holds(false) && *fault != Fault::HalfOpen).await.map(|fault| *fault)
    else {
        return Ok(());
    };
    if begun == Fault::Cut {
        return Ok(());
    }
    let mut server = TcpStream::connect(("127.0.0.1", target)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        let requests = forward(from_client, to_server, false, fault.clone());
        let answers = forward(from_server, to_client, true, fault.clone());
        tokio::select! {
            passed = async { tokio::try_join!(requests, answers) } => return passed.map(drop),
            _ = fault.wait_for(|fault| fault.ends_connections()) => {}
        }
    }
    drop(server);
    let _ = fault.wait_for(|fault| *fault != Fault::HalfOpen).await;
    Ok(())
}

/// One direction of a connection.
async fn forward(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    is_answer: bool,
    mut fault: watch::Receiver<Fault>,
) -> io::Result<()> {
    let (queue, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(ON_THE_WAY_MAX);
    let reading = async move {
        let mut buffer = vec![0; 65_536];
        loop {
            let length = from.read(&mut buffer).await?;
            // An empty piece is the end.
            let piece = (Instant::now(), buffer[..length].to_vec());
            if queue.send(piece).await.is_err() || length == 0 {
                return Ok(());
            }
        }
    };
    let writing = async move {
        while let Some((read_at, piece)) = queued.recv().await {
            let lateness: f64 = rand::random();
            loop {
                let now = *fault.borrow_and_update();
                let due = match now {
                    Fault::Delay(delay) => read_at + delay,
                    Fault::Jitter(delay) => read_at + delay.mul_f64(lateness),
                    _ => read_at,
                };
                if !now.holds(is_answer) && due <= Instant::now() {
                    break;
                }
                tokio::select! {
                    () = sleep_until(due), if !now.holds(is_answer) => {}
                    changed = fault.changed() => if changed.is_err() { return Ok(()) },
                }
            }
            if piece.is_empty() {
                return to.shutdown().await;
            }
            to.write_all(&piece).await?;
        }
        Ok(())
    };
    tokio::try_join!(reading, writing).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link to a server that sends back what it gets, and a connection through it.
    async fn connected() -> (watch::Sender<Fault>, TcpStream) {
        let (server, listener) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let (target, port) = (server.local_addr().unwrap().port(), listener.local_addr().unwrap().port());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = server.accept().await {
                tokio::spawn(async move {
                    let (mut read, mut write) = stream.split();
                    tokio::io::copy(&mut read, &mut write).await
                });
            }
        });
        let fault = watch::Sender::new(Fault::None);
        tokio::spawn(accept(listener, target, fault.subscribe()));
        (fault, TcpStream::connect(("127.0.0.1", port)).await.unwrap())
    }

    #[tokio::test]
    async fn a_fault_holds_what_is_sent_until_its_end_or_ends_the_connection() {
        for (word, is_held, arrives) in [
            ("hold", true, "bc"),
            ("hold-requests", true, "bc"),
            ("hold-answers", true, "bc"),
            ("delay 60000", true, "bc"),
            ("half-open", true, ""),
            ("cut", false, ""),
        ] {
            let (fault, mut stream) = connected().await;
            stream.write_all(b"a").await.unwrap();
            assert_eq!(stream.read_u8().await.unwrap(), b'a');
            fault.send_replace(word.parse().unwrap());
            let _ = stream.write_all(b"bc").await;
            if is_held {
                let early = tokio::time::timeout(Duration::from_millis(50), stream.read_u8()).await;
                assert!(early.is_err(), "{word}");
                fault.send_replace(Fault::None);
            }
            // A reset ends a connection, too.
            let mut read = String::new();
            let _ = stream.take(2).read_to_string(&mut read).await;
            assert_eq!(read, arrives, "{word}");
        }
    }
}
