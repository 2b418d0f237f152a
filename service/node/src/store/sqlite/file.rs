//! One process per file, and the file stays where it is.

use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};

/// The database file of a store, locked while the store is open. The lock belongs to the file itself, and not to its name: a node
/// that reaches the file by another name is refused. The operating system unlocks it when the process ends.
///
/// SQLite does not notice when its files are deleted or replaced: it goes on writing to files that no other process finds. So the
/// store checks them before a commit, and once more before the commit is acknowledged.
pub(super) struct DatabaseFile {
    path: PathBuf,
    wal_path: PathBuf,
    file: Identity,
    /// SQLite keeps its log while a connection is open, so it is the same file as long as the store is open.
    wal: Identity,
    _lock: FileLock,
}

/// A file that is locked, before SQLite opens it.
pub(super) struct FileLock {
    path: PathBuf,
    file: File,
}

/// The device and the number of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Identity(u64, u64);

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }
}

impl FileLock {
    /// With `create`, creates the file if there is none, for this user alone. SQLite gives its other files the same permissions.
    ///
    /// # Errors
    /// When another process has locked the file, it has several names, or it cannot be opened for writing.
    pub(super) fn take(path: &Path, create: bool) -> anyhow::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(create).truncate(false).read(true).write(true).mode(0o600);
        let file = options.open(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound if !create => {
                anyhow!("{} does not exist: a node creates it, or `latchgate migrate`", path.display())
            }
            _ => explain(path, &error),
        })?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                bail!(
                    "{} is in use by another latchgate process: stop that process or name another file. Several nodes need Postgres",
                    path.display()
                )
            }
            Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the file"),
        }
        let metadata = file.metadata().context("cannot read the file's metadata")?;
        if let Err(why) = refuse_links(path, &metadata) {
            bail!("{why}");
        }
        Ok(Self { path: path.to_owned(), file })
    }

    /// To be called when a connection is open and has used the database, so that SQLite's log is there.
    pub(super) fn opened(self) -> anyhow::Result<DatabaseFile> {
        let file = Identity::of(&self.file.metadata().context("cannot read the file's metadata")?);
        let mut wal_path = OsString::from(&self.path);
        wal_path.push("-wal");
        let wal_path = PathBuf::from(wal_path);
        let wal = std::fs::metadata(&wal_path).with_context(|| format!("cannot find {}", wal_path.display()))?;
        let file = DatabaseFile { path: self.path.clone(), wal_path, file, wal: Identity::of(&wal), _lock: self };
        file.check().map_err(|why| anyhow!(why))?;
        Ok(file)
    }
}

impl DatabaseFile {
    /// # Errors
    /// Says why what is written now would not be found again.
    pub(super) fn check(&self) -> Result<(), String> {
        for (path, opened) in [(&self.path, self.file), (&self.wal_path, self.wal)] {
            let gone = |what: &str| format!("{} {what} while this node was using it: restart the node", path.display());
            match std::fs::metadata(path) {
                Ok(metadata) if Identity::of(&metadata) == opened => refuse_links(path, &metadata)?,
                Ok(_) => return Err(gone("was replaced")),
                Err(error) if error.kind() == ErrorKind::NotFound => return Err(gone("was deleted or moved")),
                Err(error) => return Err(format!("{} cannot be checked: {error}", path.display())),
            }
        }
        Ok(())
    }
}

/// SQLite finds its log by the name of the file. Two processes that know the file by different names would have different logs.
fn refuse_links(path: &Path, metadata: &Metadata) -> Result<(), String> {
    if metadata.nlink() == 1 {
        return Ok(());
    }
    Err(format!("{} has several names (hard links): remove the others", path.display()))
}

fn explain(path: &Path, error: &io::Error) -> anyhow::Error {
    let directory = path.parent().unwrap_or(Path::new(""));
    let directory = std::env::current_dir().map_or_else(|_| directory.to_owned(), |here| here.join(directory));
    let why = match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => "this user may not write there",
        ErrorKind::NotFound => "the directory does not exist",
        _ => return anyhow!("cannot open {}: {error}", path.display()),
    };
    if path.exists() {
        return anyhow!("cannot use {}: this user may not write the file", path.display());
    }
    anyhow!(
        "cannot create files in the directory {}: {why}. Create it or change its permissions, start in another directory, or name \
         another file with --locks sqlite:PATH",
        directory.display()
    )
}
