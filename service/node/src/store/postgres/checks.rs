//! Checks of a server before a node uses it for locks.

use anyhow::{anyhow, bail, ensure};
use sqlx::PgConnection;
use sqlx::migrate::{Migrate, MigrateError, Migrator};

use super::config::PostgresConfig;
use super::hosts::Hosts;
use crate::store::postgres::faults::{cannot_connect, message};

/// Connects, and checks that this server can be used for writing.
///
/// # Errors
/// The error names the fault of the server or the schema.
pub(in crate::store) async fn connect(
    hosts: &Hosts,
    config: &PostgresConfig,
    migrations: &Migrator,
) -> anyhow::Result<PgConnection> {
    let mut connection = hosts.open().await.map_err(|error| cannot_connect(&error))?;
    refuse_imitations(&mut connection).await?;
    refuse_encoding(&mut connection).await?;
    refuse_missing_grants(&mut connection).await?;
    refuse_old_schema(&mut connection, migrations).await?;
    if !config.allow_volatile {
        refuse_volatile(&mut connection, config.durable_elsewhere).await?;
    }
    Ok(connection)
}

/// The owner of the schema, and whether it may do what this role may do.
const OWNER: &str = "
select o.rolname, o.oid = me.oid or o.rolsuper or not me.rolsuper and pg_has_role(me.oid, o.oid, 'member')
from pg_namespace n join pg_roles o on o.oid = n.nspowner, pg_roles me
where n.nspname = 'latchgate' and me.rolname = current_user";

/// Nodes that start together may all try to create the schema.
pub(in crate::store) async fn make_schema(connection: &mut PgConnection) -> anyhow::Result<()> {
    refuse_imitations(connection).await?;
    refuse_encoding(connection).await?;
    if let Some((owner, is_trusted)) =
        sqlx::query_as::<_, (String, bool)>(OWNER).fetch_optional(&mut *connection).await?
    {
        ensure!(
            is_trusted,
            "the schema latchgate belongs to the role {owner}, whose functions this node would run as its own: drop it, or make it the node's \
             own (alter schema latchgate owner to …). If you trust that role, let it run `latchgate migrate`, and start nodes with --no-migrate"
        );
        return Ok(());
    }
    match sqlx::query("create schema if not exists latchgate").execute(connection).await {
        Ok(_) => Ok(()),
        // Another node has just created it.
        Err(sqlx::Error::Database(error))
            if error.is_unique_violation() || error.code().is_some_and(|code| code == "42P06") =>
        {
            Ok(())
        }
        Err(error) => Err(anyhow!(
            "cannot make the schema latchgate: {}. The node's role needs `grant create on database … to …`; or let another role run `latchgate \
             migrate`, and start nodes with --no-migrate",
            message(&error)
        )),
    }
}

/// Refuses databases that speak the protocol of Postgres, but whose advisory locks do not exclude other sessions.
async fn refuse_imitations(connection: &mut PgConnection) -> anyhow::Result<()> {
    let version: String = sqlx::query_scalar("select version()").fetch_one(connection).await?;
    match imitation(&version) {
        Some(name) => {
            bail!(
                "this is {name}, whose advisory locks do not exclude other sessions: two clients could get one lock. Use Postgres"
            )
        }
        None => Ok(()),
    }
}

fn imitation(version: &str) -> Option<&'static str> {
    [("CockroachDB", "CockroachDB"), ("-YB-", "YugabyteDB")]
        .into_iter()
        .find_map(|(mark, name)| version.contains(mark).then_some(name))
}

/// Why a schema cannot be brought up to date.
pub(super) fn cannot_migrate(error: &MigrateError) -> anyhow::Error {
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

/// A database in another encoding cannot store every key.
async fn refuse_encoding(connection: &mut PgConnection) -> anyhow::Result<()> {
    let encoding: String =
        sqlx::query_scalar("select current_setting('server_encoding')").fetch_one(&mut *connection).await?;
    ensure!(
        encoding == "UTF8",
        "this database has the encoding {encoding}, in which not every key can be stored: create one with encoding 'UTF8'"
    );
    Ok(())
}

/// Refuses a server that may lose acknowledged grants in a crash. Later each transaction that writes looks: see `refuse_risk` in
/// the migration.
async fn refuse_volatile(connection: &mut PgConnection, durable_elsewhere: bool) -> anyhow::Result<()> {
    let settings: &[&str] = if durable_elsewhere { &[] } else { &["fsync", "full_page_writes"] };
    for &setting in settings {
        let value: String =
            sqlx::query_scalar("select current_setting($1)").bind(setting).fetch_one(&mut *connection).await?;
        if value == "off" {
            bail!(
                "this Postgres has {setting} = off: a crash would forget locks that are held. Turn it on, or pass \
                 --allow-volatile to accept that, or --durable-elsewhere if its storage keeps them all the same"
            );
        }
    }
    let unlogged: Option<String> =
        sqlx::query_scalar("select latchgate.unlogged_here()").fetch_one(&mut *connection).await?;
    if let Some(table) = unlogged {
        bail!(
            "the table latchgate.{table} is unlogged: a crash would empty it. `alter table latchgate.{table} set logged`, or pass \
             --allow-volatile to accept that"
        );
    }
    Ok(())
}

/// What a role must be granted by the owner of the schema, as statements.
const MISSING_GRANTS: &str = "
select format(missing.what, current_user)
from pg_namespace n, lateral (
    select 1, 'grant usage on schema latchgate to %I' where not has_schema_privilege(n.oid, 'usage')
    union all
    select 2, 'grant select, insert, update, delete, truncate on all tables in schema latchgate to %I' where exists (
        select from pg_class c, unnest(array['select', 'insert', 'update', 'delete', 'truncate']) needed
        where c.relnamespace = n.oid and case when c.relkind = 'r' then not has_table_privilege(c.oid, needed) end
    )
    union all
    select 3, 'grant usage on all sequences in schema latchgate to %I' where exists (
        select from pg_class c
        where c.relnamespace = n.oid and case when c.relkind = 'S' then not has_sequence_privilege(c.oid, 'usage') end
    )
    union all
    select 4, 'grant execute on all functions in schema latchgate to %I' where exists (
        select from pg_proc p where p.pronamespace = n.oid and not has_function_privilege(p.oid, 'execute')
    )
) missing (place, what)
where n.nspname = 'latchgate'
order by missing.place";

/// A node may run as a role that does not own the schema, if `latchgate migrate` has run as its owner.
async fn refuse_missing_grants(connection: &mut PgConnection) -> anyhow::Result<()> {
    let missing = sqlx::query_scalar(MISSING_GRANTS).fetch_all(connection).await;
    let missing: Vec<String> =
        missing.map_err(|error| anyhow!("cannot read what this role may do: {}", message(&error)))?;
    ensure!(
        missing.is_empty(),
        "this role may not use all of the schema latchgate. As the owner of the schema: {};",
        missing.join("; ")
    );
    Ok(())
}

pub(in crate::store) async fn refuse_old_schema(
    connection: &mut PgConnection,
    migrations: &Migrator,
) -> anyhow::Result<()> {
    let advice = "run `latchgate migrate`, or start without --no-migrate";
    let applied = connection.list_applied_migrations(&migrations.table_name).await;
    let applied = applied.map_err(|_| anyhow!("this database has no Latchgate schema: {advice}"))?;
    for migration in migrations.iter() {
        let is_applied = applied.iter().any(|done| done.version == migration.version);
        ensure!(is_applied, "migration {} ({}) is missing: {advice}", migration.version, migration.description);
    }
    Ok(())
}

/// The limit of connections for this role and database, and how many clients are connected now.
const CONNECTIONS: &str = "
select least(
        current_setting('max_connections')::bigint - current_setting('superuser_reserved_connections')::bigint
            - coalesce(current_setting('reserved_connections', true)::bigint, 0),
        (select nullif(rolconnlimit, -1) from pg_roles where rolname = current_user),
        (select nullif(datconnlimit, -1) from pg_database where datname = current_database())),
    (select count(*) from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid())";

/// Warns if the server may run out of connections: a node without a connection cannot renew leases.
pub(in crate::store) async fn warn_of_few_connections(
    connection: &mut PgConnection,
    connections_max: usize,
) -> anyhow::Result<()> {
    let (allowed, others): (i64, i64) = sqlx::query_as(CONNECTIONS).fetch_one(connection).await?;
    let needed = i64::try_from(connections_max).unwrap_or(i64::MAX);
    if needed.saturating_add(others) > allowed {
        tracing::warn!(
            allowed,
            needed,
            others,
            "this Postgres may run out of connections: raise max_connections, or the limit of the role or the database"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn databases_that_only_speak_the_protocol_are_known_by_their_version() {
        for (version, name) in [
            ("CockroachDB CCL v24.1.0 (x86_64-pc-linux-gnu, built 2024/05/15 21:28:29, go1.22.2)", Some("CockroachDB")),
            (
                "PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 16.0.6",
                Some("YugabyteDB"),
            ),
            ("PostgreSQL 15.13 (Debian 15.13-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc", None),
            ("PostgreSQL 16.1 on aarch64-unknown-linux-gnu, compiled by aarch64-unknown-linux-gnu-gcc (Aurora)", None),
        ] {
            assert_eq!(imitation(version), name, "{version}");
        }
    }
}
