//! guarded ACCOUNT AMOUNT: needs sqlx and tokio, DATABASE_URL, and the LATCHGATE_LEASE of `latchgate lock`.
use std::env::{args, var};
use std::error::Error;

use sqlx::postgres::{PgDatabaseError, PgPool};

async fn add(pool: &PgPool, account: i32, amount: i32, lease: &str) -> sqlx::Result<()> {
    let mut transaction = pool.begin().await?;
    let update = sqlx::query("update accounts set balance = balance + $1 where id = $2").persistent(false);
    update.bind(amount).bind(account).execute(&mut *transaction).await?;
    let guard = sqlx::query("select latchgate.guard($1, $2)").persistent(false);
    guard.bind(format!("accounts/{account}")).bind(lease).execute(&mut *transaction).await?;
    transaction.commit().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let numbers = args().skip(1).map(|text| text.parse()).collect::<Result<Vec<i32>, _>>()?;
    let [account, amount] = numbers[..] else { return Err("guarded ACCOUNT AMOUNT".into()) };
    let pool = PgPool::connect(&var("DATABASE_URL")?).await?;
    match add(&pool, account, amount, &var("LATCHGATE_LEASE")?).await {
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("LG001") => {
            let detail = error.downcast_ref::<PgDatabaseError>().detail().unwrap_or_default();
            Err(format!("not done: the lease was lost ({detail})").into())
        }
        added => Ok(added?),
    }
}
