//! A proxy between clients and a server. It can be pointed at another server, like a virtual IP, or be cut.

use std::io;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Forwards connections on 127.0.0.1, in the runtime of the test that has started it.
pub struct Proxy {
    port: u16,
    target: watch::Sender<Option<u16>>,
}

impl Proxy {
    /// Starts a proxy that forwards connections to `port`.
    ///
    /// # Panics
    ///
    /// When no port is free.
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let own = listener.local_addr().expect("it is bound").port();
        let target = watch::Sender::new(Some(port));
        tokio::spawn(accept(listener, target.subscribe()));
        Self { port: own, target }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Cuts all connections; new ones are forwarded to `port`.
    pub fn point_at(&self, port: u16) {
        let _ = self.target.send(Some(port));
    }

    /// Cuts all connections and closes new ones.
    pub fn cut(&self) {
        let _ = self.target.send(None);
    }
}

/// The task that accepts connections. It ends with the proxy.
async fn accept(listener: TcpListener, mut target: watch::Receiver<Option<u16>>) {
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { return };
                tokio::spawn(pass(stream, target.clone()));
            }
            changed = target.changed() => if changed.is_err() { return },
        }
    }
}

async fn pass(mut client: TcpStream, mut target: watch::Receiver<Option<u16>>) -> io::Result<()> {
    let Some(port) = *target.borrow_and_update() else { return Ok(()) };
    let passing = async {
        let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
        copy_bidirectional(&mut client, &mut server).await
    };
    tokio::select! {
        passed = passing => passed.map(|_| ()),
        // The client gets a reset.
        _ = target.changed() => client.set_zero_linger(),
    }
}
