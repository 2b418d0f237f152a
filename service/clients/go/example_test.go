package latchgate_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"latchgate"
)

func ExampleClient_Lock() {
	client, _ := latchgate.New(latchgate.Config{})
	lease, err := client.Lock(context.Background(), "orders/42", latchgate.Options{TTL: 30 * time.Second})
	if err != nil {
		panic(err)
	}
	defer lease.Release()
	fmt.Println(lease.Token() > 0, lease.Context().Err())
	// Output: true <nil>
}

func ExampleOnce() {
	client, _ := latchgate.New(latchgate.Config{})
	order := fmt.Sprint("order ", time.Now())
	charge := func(ctx context.Context, attempt *latchgate.Attempt) (string, error) { return "receipt 7", nil }
	for range [2]int{} {
		done, err := latchgate.Once(context.Background(), client, "charge", order, latchgate.OnceOptions{}, charge)
		fmt.Println(done.Result, done.Duplicate, err)
	}
	// Output:
	// receipt 7 false <nil>
	// receipt 7 true <nil>
}

func ExampleError() {
	client, _ := latchgate.New(latchgate.Config{})
	lease, _ := client.Lock(context.Background(), "reports", latchgate.Options{})
	defer lease.Release()
	_, err := client.Lock(context.Background(), "reports", latchgate.Options{Wait: latchgate.NoWait})
	var held *latchgate.Error
	fmt.Println(errors.Is(err, latchgate.ErrLockHeld), errors.As(err, &held) && held.Holders[0].Owner == lease.Owner)
	// Output: true true
}
