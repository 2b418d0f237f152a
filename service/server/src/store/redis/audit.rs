//! Audit records in Redis: for each class a sorted set, whose scores are times and whose members begin with the record's id.

use async_trait::async_trait;
use latchgate_core::Timestamp;

use super::RedisStore;
use super::scripts::{read, unexpected};
use crate::store::StoreError;
use crate::store::audit::{AuditClass, AuditPosition, AuditRecord, AuditStore};

#[async_trait]
impl AuditStore for RedisStore {
    async fn write_audit(&self, records: &[AuditRecord]) -> Result<(), StoreError> {
        for class in AuditClass::ALL {
            let key = self.shared.layout.audit(class);
            let mut add = redis::cmd("ZADD");
            add.arg(&key);
            let mut is_empty = true;
            for AuditRecord { position, text, .. } in records.iter().filter(|record| record.class == class) {
                add.arg(position.at.as_ms()).arg(format!("{:016x} {text}", position.id));
                is_empty = false;
            }
            if !is_empty {
                self.shared.servers.send(&key, &add).await.map_err(|failed| failed.of_write())?;
            }
        }
        Ok(())
    }

    async fn read_audit(&self, before: AuditPosition, limit: usize) -> Result<Vec<AuditRecord>, StoreError> {
        let mut records = Vec::new();
        for class in AuditClass::ALL {
            records.extend(self.read_class(class, before, limit).await?);
        }
        records.sort_unstable_by_key(|record: &AuditRecord| std::cmp::Reverse(record.position));
        records.truncate(limit);
        Ok(records)
    }

    async fn trim_audit(&self, older_than: Timestamp, count_max: usize) -> Result<(), StoreError> {
        for class in AuditClass::ALL {
            let key = self.shared.layout.audit(class);
            let mut by_age = redis::cmd("ZREMRANGEBYSCORE");
            by_age.arg(&key).arg("-inf").arg(format!("({}", older_than.as_ms()));
            let mut by_count = redis::cmd("ZREMRANGEBYRANK");
            by_count.arg(&key).arg(0).arg(-1 - i64::try_from(count_max).unwrap_or(i64::MAX - 1));
            for trim in [by_age, by_count] {
                self.shared.servers.send(&key, &trim).await.map_err(|failed| failed.of_write())?;
            }
        }
        Ok(())
    }
}

impl RedisStore {
    async fn read_class(
        &self,
        class: AuditClass,
        before: AuditPosition,
        limit: usize,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        let key = self.shared.layout.audit(class);
        let mut records = Vec::new();
        let mut seen = 0;
        // Records of the same ms as the position may come after it.
        while records.len() < limit {
            let mut page = redis::cmd("ZREVRANGEBYSCORE");
            page.arg(&key).arg(before.at.as_ms()).arg("-inf").arg("WITHSCORES").arg("LIMIT").arg(seen).arg(limit);
            let page = self.shared.servers.query(&key, &page).await.map_err(|failed| failed.of_read())?;
            let page: Vec<(String, f64)> = read(page).map_err(StoreError::of_reading)?;
            seen += page.len();
            let is_last = page.len() < limit;
            for (member, at) in page {
                let record = read_record(class, &member, at).ok_or_else(unexpected).map_err(StoreError::of_reading)?;
                if record.position < before {
                    records.push(record);
                }
            }
            if is_last {
                break;
            }
        }
        Ok(records)
    }
}

fn read_record(class: AuditClass, member: &str, at: f64) -> Option<AuditRecord> {
    let (id, text) = member.split_once(' ')?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a whole number below 2^53")]
    let position = AuditPosition { at: Timestamp::from_ms(at as u64), id: u64::from_str_radix(id, 16).ok()? };
    Some(AuditRecord { position, class, text: text.to_owned() })
}
