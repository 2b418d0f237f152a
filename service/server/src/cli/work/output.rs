//! What a program prints: passed on at once, and kept.

use std::process::ChildStdout;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, stdout};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a process that the program has left behind may keep the pipe open.
const OPEN_MAX: Duration = Duration::from_secs(2);

pub struct Output(JoinHandle<Option<Vec<u8>>>);

impl Output {
    /// # Errors
    /// When the system refuses.
    pub fn pass_on(pipe: ChildStdout, bytes_max: usize) -> std::io::Result<Self> {
        let mut pipe = tokio::process::ChildStdout::from_std(pipe)?;
        Ok(Self(tokio::spawn(async move {
            let (mut own, mut kept, mut buffer) = (stdout(), Some(Vec::new()), vec![0; 16 * 1_024]);
            loop {
                let bytes = match pipe.read(&mut buffer).await {
                    Ok(0) => return kept,
                    Ok(length) => &buffer[..length],
                    Err(_) => return None,
                };
                // The end of the reader ends the program too, by SIGPIPE.
                own.write_all(bytes).await.ok()?;
                own.flush().await.ok()?;
                kept = kept.filter(|kept| kept.len() + bytes.len() <= bytes_max);
                if let Some(kept) = &mut kept {
                    kept.extend_from_slice(bytes);
                }
            }
        })))
    }

    /// All that was printed; `None` if that was too much, or its end has not come.
    pub async fn kept(self) -> Option<Vec<u8>> {
        timeout(OPEN_MAX, self.0).await.ok()?.ok()?
    }
}
