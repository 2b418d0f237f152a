#!/usr/bin/env node
// guarded ACCOUNT AMOUNT: adds to an account under its lock. Needs pg, and DATABASE_URL or PGDATABASE.
import { Client } from "latchgate";
import pg from "pg";

const [account, amount] = process.argv.slice(2);
const key = `accounts/${account}`;
const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL });
await new Client().withLock(key, { waitMs: 20_000 }, async (lease) => {
  const connection = await pool.connect();
  try {
    await connection.query("begin");
    await connection.query("update accounts set balance = balance + $1 where id = $2", [amount, account]);
    await connection.query("select latchgate.guard($1, $2)", [key, lease.leaseId]);
    await connection.query("commit");
  } catch (error) {
    await connection.query("rollback");
    throw error.code === "LG001" ? new Error(`not done: the lease was lost (${error.detail})`) : error;
  } finally {
    connection.release();
  }
});
await pool.end();
