//! Bodies of requests with a key, which are whole before the gate is called: short ones in memory, longer ones in files without a name,
//! which the system deletes with the process.

use std::io::{self, SeekFrom};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures::stream;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use sha2::{Digest, Sha256};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use crate::http::{Code, Problem, RequestBody};

/// What is read from a file at once.
const PART_BYTES: usize = 64 * 1_024;
const KIB: usize = 1_024;

pub struct Spool {
    memory_bytes_max: usize,
    /// Of all files together.
    disk_bytes_max: usize,
    /// KiB that are left of it.
    space: Arc<Semaphore>,
}

/// A whole body.
pub enum Contents {
    Memory(Bytes),
    File(Spooled),
}

pub struct Spooled {
    file: File,
    len: u64,
    space: OwnedSemaphorePermit,
}

impl Spool {
    /// `disk_bytes_max` counts in KiB; 0 keeps everything in memory.
    pub fn new(memory_bytes_max: usize, disk_bytes_max: usize) -> Self {
        let kib = (disk_bytes_max / KIB).min(Semaphore::MAX_PERMITS);
        Self { memory_bytes_max, disk_bytes_max, space: Arc::new(Semaphore::new(kib)) }
    }

    /// Receives a whole body. Each part of `memory_bytes_max` may take as long as `time_out`.
    ///
    /// # Errors
    /// `body-too-large`, with a `Retry-After` if other bodies use the space; `body-timeout`; or `invalid-request` if the connection
    /// ended before the body did.
    pub async fn receive(&self, mut body: RequestBody, time_out: Duration) -> Result<Contents, Problem> {
        if body.size_hint().lower() > self.bytes_max() as u64 {
            return Err(self.too_large());
        }
        let mut deadline = Instant::now() + time_out;
        let mut memory = BytesMut::new();
        let mut spooled = None;
        let late = |_| {
            let detail =
                format!("The body, or the next part of it, did not arrive within {} ms.", time_out.as_millis());
            Problem::new(Code::BodyTimeout, detail)
        };
        while let Some(frame) = timeout_at(deadline, body.frame()).await.map_err(late)? {
            let frame = frame.map_err(|_| Problem::new(Code::InvalidRequest, "The body ended early."))?;
            let Ok(data) = frame.into_data() else { continue };
            if memory.len() + data.len() > self.memory_bytes_max {
                spooled = Some(self.append(spooled, memory.split()).await?);
                deadline = Instant::now() + time_out;
            }
            memory.extend_from_slice(&data);
        }
        if spooled.is_none() {
            return Ok(Contents::Memory(memory.freeze()));
        }
        Ok(Contents::File(self.append(spooled, memory).await?))
    }

    async fn append(&self, spooled: Option<Spooled>, part: BytesMut) -> Result<Spooled, Problem> {
        let len = spooled.as_ref().map_or(0, |spooled| spooled.len) + part.len() as u64;
        if len > self.disk_bytes_max as u64 || self.disk_bytes_max == 0 {
            return Err(self.too_large());
        }
        let kib = u32::try_from(part.len().div_ceil(KIB)).unwrap_or(u32::MAX);
        let space = Arc::clone(&self.space).try_acquire_many_owned(kib).map_err(|_| no_space())?;
        written(spooled, space, len, &part).await.map_err(|error| cannot_keep(&error))
    }

    fn bytes_max(&self) -> usize {
        self.memory_bytes_max.max(self.disk_bytes_max)
    }

    fn too_large(&self) -> Problem {
        let detail = format!("The body of a request with a key may have at most {} bytes.", self.bytes_max());
        Problem::new(Code::BodyTooLarge, detail)
    }
}

async fn written(spooled: Option<Spooled>, space: OwnedSemaphorePermit, len: u64, part: &[u8]) -> io::Result<Spooled> {
    let mut spooled = match spooled {
        Some(mut spooled) => {
            spooled.space.merge(space);
            spooled
        }
        None => Spooled { file: File::from_std(spawn_blocking(tempfile::tempfile).await??), len, space },
    };
    spooled.len = len;
    spooled.file.write_all(part).await?;
    // Reports the errors of what was written.
    spooled.file.flush().await?;
    Ok(spooled)
}

impl Contents {
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory(bytes) => bytes.len() as u64,
            Self::File(spooled) => spooled.len,
        }
    }

    /// Adds the bytes to a digest.
    ///
    /// # Errors
    /// `body-too-large` with a `Retry-After`, if the file cannot be read.
    pub async fn add_to(&mut self, digest: &mut Sha256) -> Result<(), Problem> {
        match self {
            Self::Memory(bytes) => digest.update(bytes),
            Self::File(spooled) => spooled.add_to(digest).await.map_err(|error| cannot_keep(&error))?,
        }
        Ok(())
    }

    pub fn into_body(self) -> Body {
        match self {
            Self::Memory(bytes) => Body::from(bytes),
            Self::File(spooled) => Body::from_stream(stream::try_unfold(spooled, async |mut spooled| {
                let part = spooled.next().await?;
                io::Result::Ok((!part.is_empty()).then_some((part, spooled)))
            })),
        }
    }
}

impl Spooled {
    async fn add_to(&mut self, digest: &mut Sha256) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(0)).await?;
        loop {
            let part = self.next().await?;
            if part.is_empty() {
                break;
            }
            digest.update(&part);
        }
        self.file.seek(SeekFrom::Start(0)).await?;
        Ok(())
    }

    /// Empty at the end.
    async fn next(&mut self) -> io::Result<Bytes> {
        let mut part = BytesMut::with_capacity(PART_BYTES);
        self.file.read_buf(&mut part).await?;
        Ok(part.freeze())
    }
}

fn no_space() -> Problem {
    let detail = "The proxy has no space left for long bodies of requests with a key. Nothing was done.";
    Problem::new(Code::BodyTooLarge, detail).retry_after_ms(1_000)
}

fn cannot_keep(error: &io::Error) -> Problem {
    tracing::error!(%error, directory = %std::env::temp_dir().display(), "cannot keep a body in a temporary file");
    no_space()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_files_of_all_bodies_share_the_space_and_give_it_back() {
        let spool = Spool::new(KIB, 8 * KIB);
        let part = || BytesMut::from(&[b'a'; 5 * KIB][..]);
        let spooled = spool.append(None, part()).await.unwrap();
        let refused = spool.append(None, part()).await.err().map(|problem| serde_json::to_value(problem).unwrap());
        assert_eq!(refused.unwrap()["retry_after_ms"], 1_000);
        let refused =
            spool.append(Some(spooled), part()).await.err().map(|problem| serde_json::to_value(problem).unwrap());
        assert!(refused.unwrap()["retry_after_ms"].is_null(), "it is too long by itself");
        let spooled = spool.append(None, part()).await.unwrap();
        let mut contents = Contents::File(spool.append(Some(spooled), BytesMut::from("end")).await.unwrap());
        let mut digest = Sha256::new();
        contents.add_to(&mut digest).await.unwrap();
        let bytes = contents.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((bytes.len(), Sha256::digest(&bytes)), (5 * KIB + 3, digest.finalize()));
        assert_eq!(spool.space.available_permits(), 8);
    }
}
