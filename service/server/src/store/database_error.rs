//! Errors of SQL databases and migrations, in words for an operator.

use anyhow::{Error, anyhow};
use sqlx::migrate::MigrateError;

/// The database's own message. sqlx's would include a line number of Postgres' source code.
pub(super) fn message(error: &sqlx::Error) -> String {
    match error.as_database_error() {
        Some(error) => match error.code() {
            Some(code) => format!("{} (code {code})", error.message()),
            None => error.message().to_owned(),
        },
        None => match error {
            sqlx::Error::Configuration(error) => error.to_string(),
            other => other.to_string(),
        },
    }
}

/// Why a schema cannot be brought up to date.
pub(super) fn cannot_migrate(error: &MigrateError) -> Error {
    match error {
        MigrateError::VersionMissing(version) | MigrateError::VersionTooOld(_, version) => anyhow!(
            "its schema has migration {version}, which this version of Latchgate does not know: a newer version, or another \
             program, has made it. Start the newer version, or name another place with --locks"
        ),
        MigrateError::VersionMismatch(version) => anyhow!(
            "its schema was made by another version of Latchgate or by another program: migration {version} differs. Name another \
             place with --locks"
        ),
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
            anyhow!("its schema cannot be brought up to date: {}", message(error))
        }
        other => anyhow!("its schema cannot be brought up to date: {other}"),
    }
}
