//! A caller's connection to the database of the locks.

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, Executor as _, PgConnection};

pub struct Caller(PgConnection);

impl Caller {
    pub async fn connect(database: &str) -> Self {
        // PgBouncer refuses the parameter that sqlx sends otherwise.
        let options: PgConnectOptions = database.parse().unwrap();
        Self(PgConnection::connect_with(&options.extra_float_digits(None)).await.unwrap())
    }

    /// # Panics
    ///
    /// When a statement fails.
    pub async fn run(&mut self, statements: &str) {
        self.try_run(statements).await.unwrap_or_else(|error| panic!("{statements}: {error:?}"));
    }

    pub async fn try_run(&mut self, statements: &str) -> Result<(), String> {
        self.0
            .execute(sqlx::raw_sql(AssertSqlSafe(statements.to_owned())))
            .await
            .map(drop)
            .map_err(|error| refused(&error))
    }

    /// The only number of the answer.
    pub async fn number(&mut self, statement: &str) -> Result<i64, String> {
        let cast = AssertSqlSafe(format!("select ({statement})::bigint"));
        sqlx::query_scalar(cast).fetch_one(&mut self.0).await.map_err(|error| refused(&error))
    }

    pub async fn guard(&mut self, key: &str, lease_id: &str) -> Result<i64, String> {
        self.number(&format!("select latchgate.guard('{key}', '{lease_id}')")).await
    }

    pub async fn begin_guarded(&mut self, key: &str, lease_id: &str) {
        self.run("begin").await;
        self.guard(key, lease_id).await.unwrap();
    }

    /// Waits until the database's clock is past the expiry of the last lease of the key.
    pub async fn until_expired(&mut self, key: &str) {
        let left = format!(
            "select (latchgate.read_state(state) #>> '{{holders,0,expires_at}}')::bigint - latchgate.now_ms()
            from latchgate.locks where key = '{key}'"
        );
        while self.number(&left).await.unwrap() >= 0 {}
    }

    /// Waits until a session waits for a row, a transaction or an advisory lock.
    pub async fn until_blocked(&mut self) {
        let waiting =
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        while self.number(waiting).await == Ok(0) {}
    }
}

/// The code of an error, and its detail if there is one.
fn refused(error: &sqlx::Error) -> String {
    let answer = error.as_database_error().unwrap_or_else(|| panic!("{error}"));
    let answer = answer.downcast_ref::<sqlx::postgres::PgDatabaseError>();
    format!("{} {}", answer.code(), answer.detail().unwrap_or_default()).trim_end().to_owned()
}

/// The code of a refusal.
///
/// # Panics
///
/// When it is none.
pub fn code_of<T: std::fmt::Debug>(answer: Result<T, String>) -> String {
    answer.unwrap_err()[..5].to_owned()
}
