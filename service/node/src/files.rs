//! Files of the configuration. They are read off the runtime: a FIFO, or a mount that hangs, must not stop a node.

use std::fs::OpenOptions;
use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::fcntl::OFlag;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

const BYTES_MAX: u64 = 1 << 20;
const TIME_MAX: Duration = Duration::from_secs(1);
/// Reads under way. One that hangs keeps its thread.
static READS: Semaphore = Semaphore::const_new(4);

/// # Errors
/// When the file is no regular file, is longer than 1 MiB, or cannot be read within a second.
pub async fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let reading = READS.try_acquire().context("other files that were named do not answer")?;
    let (done, read) = oneshot::channel();
    let path = path.to_owned();
    // Not a thread of the runtime, whose end waits for its threads.
    thread::Builder::new().name("file".to_owned()).spawn(move || {
        let _ = done.send(read_regular(&path));
        drop(reading);
    })?;
    timeout(TIME_MAX, read).await.context("it does not answer")?.context("the reader has ended")?
}

fn read_regular(path: &Path) -> anyhow::Result<Vec<u8>> {
    // Without the flag, opening a FIFO waits for a writer.
    let file = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(path)?;
    ensure!(file.metadata()?.is_file(), "it is not a regular file");
    let mut bytes = Vec::new();
    file.take(BYTES_MAX + 1).read_to_end(&mut bytes)?;
    ensure!(bytes.len() as u64 <= BYTES_MAX, "it is longer than 1 MiB");
    Ok(bytes)
}
