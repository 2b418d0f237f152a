//! One process per file.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use anyhow::{Context, bail};

/// Held as long as the store is open. The operating system drops it with the process, however that ends.
pub(super) struct FileLock {
    _file: File,
}

impl FileLock {
    /// # Errors
    /// When another process has it, or the lock file beside the database cannot be written.
    pub(super) fn take(database: &Path) -> anyhow::Result<Self> {
        let mut path = OsString::from(database);
        path.push(".lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("cannot write beside {}", database.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => {
                bail!("{} is in use by another latchgate process; several nodes need Postgres", database.display())
            }
            Err(TryLockError::Error(error)) => Err(error).context("cannot lock the database's lock file"),
        }
    }
}
