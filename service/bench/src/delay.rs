//! A proxy that delays what a server answers, as a slower disk or network would. It uses threads, whose sleeps are more exact than
//! the timers of the runtime.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    #[arg(long, value_name = "ADDRESS")]
    listen: SocketAddr,
    /// The server
    #[arg(long, value_name = "ADDRESS")]
    to: SocketAddr,
    /// How much later its answers arrive
    #[arg(long, default_value_t = 1)]
    ms: u64,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen)?;
    println!("the proxy listens on {}", listener.local_addr()?);
    for client in listener.incoming() {
        let (client, server) = (client?, TcpStream::connect(args.to)?);
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        forward(client.try_clone()?, server.try_clone()?, None);
        forward(server, client, Some(Duration::from_millis(args.ms)));
    }
    Ok(())
}

/// Passes on what `from` sends, in threads that end with the connection.
fn forward(mut from: TcpStream, to: TcpStream, delay: Option<Duration>) {
    let Some(delay) = delay else {
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut (&to));
            let _ = to.shutdown(Shutdown::Write);
        });
        return;
    };
    let (sender, receiver) = channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            if sender.send((Instant::now() + delay, buffer[..length].to_vec())).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || write_later(to, &receiver));
}

fn write_later(mut to: TcpStream, receiver: &Receiver<(Instant, Vec<u8>)>) {
    for (due, bytes) in receiver {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}
