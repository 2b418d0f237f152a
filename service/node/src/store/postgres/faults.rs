//! What an error of Postgres says about the statement and about the connection.

use sqlx::Error;
use sqlx::postgres::{PgDatabaseError, PgSeverity};

use crate::store::StoreError;

/// Other sessions held what the statement needed for longer than it waits.
pub(in crate::store) const CONTENDED: StoreError =
    StoreError::Contended("the database would not wait for a lock any longer");

pub(in crate::store) fn cannot_connect(error: &sqlx::Error) -> anyhow::Error {
    anyhow::anyhow!("cannot connect to Postgres: {}", message(error))
}

/// The database's own message. sqlx's would include a line number of Postgres' source code.
pub(in crate::store) fn message(error: &sqlx::Error) -> String {
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

fn answered(error: &Error) -> Option<&PgDatabaseError> {
    error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>())
}

/// Whether the server gave up the statement because of other sessions, or because it took too long: lock time-out, cancellation,
/// serialisation failure, deadlock. Nothing was written, and the server is in order.
pub(in crate::store) fn is_contention(error: &Error) -> bool {
    answered(error).is_some_and(|error| matches!(error.code(), "55P03" | "57014") || error.code().starts_with("40"))
}

/// Whether another session kept a lock for longer than the statement waits.
pub(in crate::store) fn is_lock_timeout(error: &Error) -> bool {
    answered(error).is_some_and(|error| error.code() == "55P03")
}

/// Whether the server has no connection left, for this role or at all.
pub(in crate::store) fn is_full(error: &Error) -> bool {
    answered(error).is_some_and(|error| error.code() == "53300")
}

/// Whether a value that was to be written is at fault: one row of a batch, and not the server. Nothing was written.
pub(in crate::store) fn is_of_a_row(error: &Error) -> bool {
    answered(error).is_some_and(|error| error.code().starts_with("22") || error.code().starts_with("23"))
}

/// Whether the error is that of a standby, which refuses writes and the functions for the timeline.
pub(in crate::store) fn is_of_standby(error: &Error) -> bool {
    answered(error).is_some_and(|error| matches!(error.code(), "25006" | "55000"))
}

/// Whether the connection can be used again. An error of the server ends the statement and its transaction, but not the
/// connection. A standby has taken the place of a primary, so its connections are replaced too.
pub(in crate::store) fn is_alive(error: &Error) -> bool {
    match answered(error) {
        Some(answered) => is_refusal(answered) && !is_of_standby(error),
        None => matches!(
            error,
            Error::Encode(_)
                | Error::Decode(_)
                | Error::ColumnDecode { .. }
                | Error::ColumnNotFound(_)
                | Error::ColumnIndexOutOfBounds { .. }
                | Error::RowNotFound
        ),
    }
}

/// Whether the server has answered that the statement failed: its transaction is then rolled back. A server that ends the
/// connection may have committed before.
fn is_refusal(error: &PgDatabaseError) -> bool {
    !matches!(error.severity(), PgSeverity::Fatal | PgSeverity::Panic)
}

/// Whether a value of the answer is not what it should be.
pub(in crate::store) fn is_unreadable(error: &Error) -> bool {
    matches!(error, Error::Decode(_) | Error::ColumnDecode { .. })
}

/// The error of a statement that only reads.
pub(in crate::store) fn of_read(error: &Error) -> StoreError {
    if is_contention(error) {
        CONTENDED
    } else if is_unreadable(error) {
        StoreError::Unreadable { keys: Vec::new(), reason: message(error) }
    } else {
        StoreError::Unavailable(message(error))
    }
}

/// The error of a statement that writes.
pub(in crate::store) fn of_write(error: &Error) -> StoreError {
    let did_nothing = answered(error).is_some_and(is_refusal) || matches!(error, Error::Encode(_));
    if did_nothing { of_read(error) } else { StoreError::OutcomeUnknown(message(error)) }
}
