//! Documents in SQLite: one row each.

use async_trait::async_trait;
use rusqlite::{OptionalExtension, params};

use super::{SqliteStore, record};
use crate::store::StoreError;
use crate::store::documents::{DocumentStore, StoredDocument};
use crate::store::engine_record::{EngineState, Epoch};

const READ: &str = "select version, case when version <> ?2 then body end from documents where name = ?1";

const INSERT: &str =
    "insert into documents (name, version, body) select ?1, ?2, ?3 where ?4 = 0 on conflict do nothing";

const REPLACE: &str = "update documents set version = ?2, body = ?3 where name = ?1 and version = ?4";

#[async_trait]
impl DocumentStore for SqliteStore {
    async fn read_document(&self, name: &str, known: u64) -> Result<StoredDocument, StoreError> {
        let name = name.to_owned();
        let read = self.database.read(move |connection| {
            let document = connection.prepare_cached(READ)?.query_row(params![name, known.cast_signed()], |row| {
                Ok(StoredDocument { version: row.get::<_, i64>(0)?.cast_unsigned(), text: row.get(1)? })
            });
            Ok(document.optional()?)
        });
        Ok(read.await?.unwrap_or_default())
    }

    async fn write_document(
        &self,
        name: &str,
        expected: u64,
        (version, text): (u64, &str),
        fence: Option<(EngineState, Epoch)>,
    ) -> Result<bool, StoreError> {
        let (name, text) = (name.to_owned(), text.to_owned());
        let write = self.database.write(move |connection| {
            fence.map_or(Ok(()), |fence| record::check(connection, fence))?;
            let statement = if expected == 0 { INSERT } else { REPLACE };
            let params = params![name, version.cast_signed(), text, expected.cast_signed()];
            Ok(connection.prepare_cached(statement)?.execute(params)? > 0)
        });
        write.await
    }
}
