//! What a program prints: passed on at once, and kept.

use std::process::ChildStdout;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, stdout};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// How long a process that the program has left behind may keep the pipe open.
const OPEN_MAX: Duration = Duration::from_secs(2);

pub struct Output(JoinHandle<Printed>);

/// What a program has printed.
pub struct Printed {
    /// All of it; `None` if that was too much, or its end has not come.
    pub kept: Option<Vec<u8>>,
    /// It could not be passed on: the disk is full, or the reader has gone.
    pub is_lost: bool,
}

impl Output {
    /// # Errors
    /// When the system refuses.
    pub fn pass_on(pipe: ChildStdout, bytes_max: usize) -> std::io::Result<Self> {
        let mut pipe = tokio::process::ChildStdout::from_std(pipe)?;
        Ok(Self(tokio::spawn(async move {
            let (mut own, mut kept, mut is_lost, mut buffer) = (stdout(), Some(Vec::new()), false, vec![0; 16 * 1_024]);
            loop {
                let bytes = match pipe.read(&mut buffer).await {
                    Ok(0) => return Printed { kept, is_lost },
                    Ok(length) => &buffer[..length],
                    Err(_) => return Printed { kept: None, is_lost },
                };
                // The program goes on: its work is to be done once, and what it prints is kept.
                is_lost = is_lost || own.write_all(bytes).await.is_err() || own.flush().await.is_err();
                kept = kept.filter(|kept| kept.len() + bytes.len() <= bytes_max);
                if let Some(kept) = &mut kept {
                    kept.extend_from_slice(bytes);
                }
            }
        })))
    }

    pub async fn printed(self) -> Printed {
        let unknown = Printed { kept: None, is_lost: false };
        timeout(OPEN_MAX, self.0).await.ok().and_then(Result::ok).unwrap_or(unknown)
    }
}
