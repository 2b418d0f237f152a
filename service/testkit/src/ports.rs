use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

// Below the kernel's ephemeral range (32768 and up). While a server is down, an outgoing connection may take a port in that range,
// and a client that keeps reconnecting to it can even connect to itself.
const FIRST: u32 = 15_000;
const COUNT: u32 = 15_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A loopback port on which no process listens now. Another process may take it first: on a clash, start again.
///
/// # Panics
///
/// When every candidate is taken.
pub fn free_port() -> u16 {
    // Test binaries that run at the same time begin far apart: where a server was killed, its replica must not find that of another test.
    let begin = std::process::id() % COUNT * 9_271;
    for _ in 0..COUNT {
        let offset = begin.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("the range ends below 2^16");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free loopback port from {FIRST} to {}", FIRST + COUNT - 1);
}
