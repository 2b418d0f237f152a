//! Audit records in SQLite.

use async_trait::async_trait;
use latchgate_core::Timestamp;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use sqlx::types::Json;

use super::{SqliteStore, check_out, unavailable};
use crate::store::StoreError;
use crate::store::audit::{AuditClass, AuditPosition, AuditRecord, AuditStore};

const WRITE: &str = "
insert into audit_records (at, id, class, body)
select value ->> 0, value ->> 1, value ->> 2, value ->> 3 from json_each(?1)
where true
on conflict do nothing";

const READ: &str = "
select at, id, class, body from audit_records
where (at, id) < (?1, ?2)
order by at desc, id desc
limit ?3";

const TRIM: &str = "
delete from audit_records
where class = ?1 and (at < ?2 or (at, id) <= (
    select at, id from audit_records where class = ?1 order by at desc, id desc limit 1 offset ?3
))";

#[async_trait]
impl AuditStore for SqliteStore {
    async fn write_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError> {
        let mut connection = self.check_out_writer().await?;
        let rows: Vec<_> = records
            .iter()
            .map(|AuditRecord { position, class, text }| (position.at.as_ms(), position.id, class.number(), text))
            .collect();
        let written = sqlx::query(WRITE).bind(Json(rows)).execute(&mut *connection).await;
        written.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(())
    }

    async fn read_audit(&self, before: AuditPosition, limit: usize) -> Result<Vec<AuditRecord>, StoreError> {
        let mut connection = check_out(&self.list_reader, &self.file).await?;
        let rows = sqlx::query(READ)
            .bind(before.at.as_ms().cast_signed())
            .bind(before.id.cast_signed())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let records = rows.and_then(|rows| rows.iter().map(read).collect());
        let records = records.map_err(|error| unavailable(&error))?;
        connection.put_back();
        Ok(records)
    }

    async fn trim_audit(&self, older_than: Timestamp, count_max: usize) -> Result<(), StoreError> {
        let mut connection = self.check_out_writer().await?;
        for class in AuditClass::ALL {
            let trimmed = sqlx::query(TRIM)
                .bind(i64::from(class.number()))
                .bind(older_than.as_ms().cast_signed())
                .bind(i64::try_from(count_max).unwrap_or(i64::MAX))
                .execute(&mut *connection)
                .await;
            trimmed.map_err(|error| unavailable(&error))?;
        }
        connection.put_back();
        Ok(())
    }
}

fn read(row: &SqliteRow) -> Result<AuditRecord, sqlx::Error> {
    let (at, id): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
    let class = AuditClass::from_number(row.try_get(2)?).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let position = AuditPosition { at: Timestamp::from_ms(at.cast_unsigned()), id: id.cast_unsigned() };
    Ok(AuditRecord { position, class, text: row.try_get(3)? })
}
