//! Audit records in Postgres.

use async_trait::async_trait;
use latchgate_core::Timestamp;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::rows::read_timestamp;
use crate::store::StoreError;
use crate::store::audit::{AuditClass, AuditPosition, AuditRecord, AuditStore};

const WRITE: &str = "
insert into audit_records (at, id, class, body)
select at, id, class, body from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::text[]) as r (at, id, class, body)
on conflict do nothing";

const READ: &str = "
select at, id, class, body from audit_records
where (at, id) < ($1, $2)
order by at desc, id desc
limit $3";

const TRIM: &str = "
delete from audit_records
where class = $1 and (at < $2 or (at, id) <= (
    select at, id from audit_records where class = $1 order by at desc, id desc limit 1 offset $3
))";

#[async_trait]
impl AuditStore for PostgresStore {
    async fn write_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError> {
        let mut connection = self.check_out_of(&self.upkeep).await?;
        let numbers = |number: fn(&AuditRecord) -> u64| -> Vec<i64> {
            records.iter().map(|record| number(record).cast_signed()).collect()
        };
        let written = connection
            .query(WRITE)
            .bind(numbers(|record| record.position.at.as_ms()))
            .bind(numbers(|record| record.position.id))
            .bind(numbers(|record| record.class.number().into()))
            .bind(records.iter().map(|record| record.text.as_str()).collect::<Vec<_>>())
            .execute(&mut *connection)
            .await;
        self.written(connection, written).await.map(|_| ())
    }

    async fn read_audit(&self, before: AuditPosition, limit: usize) -> Result<Vec<AuditRecord>, StoreError> {
        let mut connection = self.check_out_of(&self.reads).await?;
        let rows = connection
            .query(READ)
            .bind(before.at.as_ms().cast_signed())
            .bind(before.id.cast_signed())
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&mut *connection)
            .await;
        let records = rows.and_then(|rows| rows.iter().map(read).collect());
        self.read(connection, records).await
    }

    async fn trim_audit(&self, older_than: Timestamp, count_max: usize) -> Result<(), StoreError> {
        for class in AuditClass::ALL {
            let mut connection = self.check_out_of(&self.upkeep).await?;
            let trimmed = connection
                .query(TRIM)
                .bind(i64::from(class.number()))
                .bind(older_than.as_ms().cast_signed())
                .bind(i64::try_from(count_max).unwrap_or(i64::MAX))
                .execute(&mut *connection)
                .await;
            self.written(connection, trimmed).await?;
        }
        Ok(())
    }
}

fn read(row: &PgRow) -> Result<AuditRecord, sqlx::Error> {
    let id: i64 = row.try_get(1)?;
    let class: i64 = row.try_get(2)?;
    let class = AuditClass::from_number(class).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let position = AuditPosition { at: read_timestamp(row, 0)?, id: id.cast_unsigned() };
    Ok(AuditRecord { position, class, text: row.try_get(3)? })
}
