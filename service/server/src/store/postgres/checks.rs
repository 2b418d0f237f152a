//! What a server must be before a node trusts it with locks.

use anyhow::{anyhow, bail, ensure};
use sqlx::PgConnection;
use sqlx::migrate::{Migrate, Migrator};

pub(in crate::store) fn cannot_connect(error: &sqlx::Error) -> anyhow::Error {
    anyhow!("cannot connect to Postgres: {error}")
}

pub(in crate::store) async fn refuse_standby(connection: &mut PgConnection) -> anyhow::Result<()> {
    let in_recovery: bool = sqlx::query_scalar("select pg_is_in_recovery()").fetch_one(connection).await?;
    ensure!(!in_recovery, "this Postgres is a standby: locks can only be written on the primary");
    Ok(())
}

/// An acknowledged grant must survive a crash.
pub(in crate::store) async fn refuse_volatile(connection: &mut PgConnection) -> anyhow::Result<()> {
    for setting in ["fsync", "synchronous_commit"] {
        let value: String =
            sqlx::query_scalar("select current_setting($1)").bind(setting).fetch_one(&mut *connection).await?;
        if value == "off" {
            bail!(
                "this Postgres has {setting} = off: a crash would forget locks that are held. Turn it on, or pass \
                 --allow-volatile to accept that"
            );
        }
    }
    Ok(())
}

pub(in crate::store) async fn refuse_old_schema(
    connection: &mut PgConnection,
    migrations: &Migrator,
) -> anyhow::Result<()> {
    let advice = "run `latchgate migrate`, or start without --migrate=false";
    let applied = connection.list_applied_migrations(&migrations.table_name).await;
    let applied = applied.map_err(|_| anyhow!("this database has no Latchgate schema: {advice}"))?;
    for migration in migrations.iter() {
        let is_applied = applied.iter().any(|done| done.version == migration.version);
        ensure!(is_applied, "migration {} ({}) is missing: {advice}", migration.version, migration.description);
    }
    Ok(())
}
