#!/usr/bin/env python3
# guarded ACCOUNT AMOUNT: adds to an account under its lock. Needs psycopg, and DATABASE_URL or PGDATABASE.
import os
import sys

import latchgate
import psycopg

account, amount = sys.argv[1:]
key = f"accounts/{account}"
with psycopg.connect(os.environ.get("DATABASE_URL", "")) as connection, latchgate.Client().lock(key, wait=20) as lease:
    try:
        with connection.transaction():
            connection.execute("update accounts set balance = balance + %s where id = %s", [amount, account])
            connection.execute("select latchgate.guard(%s, %s)", [key, lease.lease_id])
    except psycopg.Error as error:
        if error.sqlstate == "LG001":
            sys.exit(f"not done: the lease was lost ({error.diag.message_detail})")
        raise
