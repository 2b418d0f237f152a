//! One process per file.

use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Context, anyhow, bail};

/// A lock that is held while the store is open. The operating system releases it when the process ends.
pub(super) struct FileLock {
    _file: File,
}

impl FileLock {
    /// # Errors
    /// When another process holds the lock, or the lock file beside the database cannot be written.
    pub(super) fn take(database: &Path) -> anyhow::Result<Self> {
        let mut path = OsString::from(database);
        path.push(".lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| explain(&path, &error))?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "{} is in use by another latchgate process: stop that process or name another file. Several nodes need Postgres",
                    database.display()
                )
            }
            Err(TryLockError::Error(error)) => Err(error).context("cannot lock the database's lock file"),
        }
    }
}

fn explain(lock_file: &OsStr, error: &io::Error) -> anyhow::Error {
    let directory = Path::new(lock_file).parent().unwrap_or(Path::new(""));
    let directory = std::env::current_dir().map_or_else(|_| directory.to_owned(), |here| here.join(directory));
    let why = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "this user may not write there",
        ErrorKind::NotFound => "the directory does not exist",
        _ => return anyhow!("cannot create the lock file {}: {error}", lock_file.display()),
    };
    anyhow!(
        "cannot create files in the directory {}: {why}. Create it or change its permissions, start in another directory, or name \
         another file with --locks sqlite:PATH",
        directory.display()
    )
}
