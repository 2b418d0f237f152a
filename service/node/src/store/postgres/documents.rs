//! Documents in Postgres: one row each.

use async_trait::async_trait;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use crate::store::StoreError;
use crate::store::documents::{DocumentStore, StoredDocument};
use crate::store::engine_record::{EngineState, Epoch};

const READ: &str = "select version, case when version <> $2 then body end from documents where name = $1";

const WRITE: &str = "select replace_document($1, $2, $3, $4, $5, $6, $7)";

#[async_trait]
impl DocumentStore for PostgresStore {
    async fn read_document(&self, name: &str, known: u64) -> Result<StoredDocument, StoreError> {
        let mut connection = self.connections.check_out().await?;
        let query = connection.query(READ).bind(name).bind(known.cast_signed());
        let row = query.fetch_optional(&mut *connection).await;
        let read = |row: PgRow| {
            Ok(StoredDocument { version: row.try_get::<i64, _>(0)?.cast_unsigned(), text: row.try_get(1)? })
        };
        let document = row.and_then(|row| row.map_or_else(|| Ok(StoredDocument::default()), read));
        connection.read(document).await
    }

    async fn write_document(
        &self,
        name: &str,
        expected: u64,
        (version, text): (u64, &str),
        fence: Option<(EngineState, Epoch)>,
    ) -> Result<bool, StoreError> {
        let (state, epoch) = fence.unzip();
        let mut connection = self.connections.check_out().await?;
        let query = connection
            .query(WRITE)
            .bind(name)
            .bind(expected.cast_signed())
            .bind(version.cast_signed())
            .bind(text)
            .bind(state.map(EngineState::as_str))
            .bind(epoch.map(|epoch| epoch.number().cast_signed()))
            .bind(connection.knows_timeline());
        let written = query.fetch_one(&mut *connection).await.and_then(|row| row.try_get::<Option<bool>, _>(0));
        connection.written(written).await?.ok_or(StoreError::EpochOver)
    }
}
