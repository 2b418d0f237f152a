package latchgate

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// Revocation: an operator asks the holder to release. The lease ends at Deadline (RFC 3339, by the store's clock).
type Revocation struct{ Deadline, Reason, By string }

type asked struct {
	Revocation
	Left int64 `json:"deadline_ms"`
}

// Under this key, the context of a lease has its keeper.
type insideOf struct {
	renewals *renewals
	key      string
}

// outerOwner is the owner of a lease of these keys whose context this is; empty if there is none, or if the caller has named it.
func (r *renewals) outerOwner(ctx context.Context, keys []Key) string {
	for _, key := range keys {
		outer, is := ctx.Value(insideOf{r, key.Key}).(*keeper)
		if is && outer.remaining() > 0 {
			return outer.owner
		}
	}
	return ""
}

// Lease is a lease that renews itself in the background until it is released. It is of the process that has taken it: one that was read from
// elsewhere is lost.
type Lease struct {
	// Key is the first one if there are several.
	Key string
	// ID proves that the lease is the caller's.
	ID string
	// Owner is shown to callers that are refused.
	Owner string
	// Tokens of all keys.
	Tokens map[string]int64
	// Slots are the numbers of the permits.
	Slots []int

	keeper   *keeper
	ctx      context.Context
	released atomic.Bool
}

func newLease(ctx context.Context, k *keeper, granted answer) *Lease {
	l := &Lease{Key: k.leases[0].Key, ID: k.leases[0].LeaseID, Owner: granted.Owner, Slots: granted.Slots, keeper: k}
	l.Tokens = map[string]int64{l.Key: granted.Token}
	for _, lock := range granted.Locks {
		l.Tokens[lock.Key] = lock.Token
	}
	for _, lease := range k.leases {
		ctx = context.WithValue(ctx, insideOf{k.renewals, lease.Key}, k)
	}
	l.ctx, k.ended = context.WithCancel(ctx)
	k.renewals.keep(k, granted)
	// A lease that is forgotten is not renewed any more, and expires.
	runtime.SetFinalizer(l, func(*Lease) { k.stop() })
	return l
}

// String has no ID, which proves that the lease is the caller's.
func (l *Lease) String() string {
	state := "released"
	if left := l.Remaining(); left > 0 {
		state = fmt.Sprintf("for %.1f s", left.Seconds())
	} else if err := l.Err(); err.(*Error).Why != "released" {
		state = "lost: " + err.(*Error).Why
	}
	return fmt.Sprintf("lease of %s, token %d, owner %s, %s", l.Key, l.Token(), l.Owner, state)
}

// GoString is like String.
func (l *Lease) GoString() string { return l.String() }

// Token is higher than that of every earlier lease of the key: send it with each write.
func (l *Lease) Token() int64 { return l.Tokens[l.Key] }

// Context is derived from that of Lock. It ends when the lease is lost or released: pass it to the work.
func (l *Lease) Context() context.Context {
	if l.ctx == nil {
		ended, end := context.WithCancel(context.Background())
		end()
		return ended
	}
	return l.ctx
}

// Remaining is for how long the lease is surely live; 0 if it is lost or released.
func (l *Lease) Remaining() time.Duration { return l.keeper.remaining() }

// Err is nil while the lease is surely live, and then an ErrLeaseLost, which says why. Ask before each step that cannot be undone.
func (l *Lease) Err() error { return l.keeper.err() }

// Revocation is not nil when a renewal has shown that an operator asks for the lock: finish, and release it.
func (l *Lease) Revocation() *Revocation {
	if l.keeper == nil {
		return nil
	}
	l.keeper.renewals.mu.Lock()
	defer l.keeper.renewals.mu.Unlock()
	if l.keeper.revocation == nil {
		return nil
	}
	return &l.keeper.revocation.Revocation
}

// Release releases the lease. An ErrLeaseLost says that it had ended before, so other callers may have had the lock meanwhile; an
// ErrUnavailable that no node answers: then the lease ends by its TTL. A second release does nothing.
func (l *Lease) Release() error {
	left := l.Remaining()
	if l.keeper == nil {
		return l.Err()
	}
	if l.released.Swap(true) {
		return nil
	}
	loss := l.keeper.stop()
	runtime.SetFinalizer(l, nil)
	if loss != nil && loss.Status != 0 && len(l.keeper.leases) == 1 {
		return loss
	}
	// Also if the loss is only presumed, or of one key of several: no lease shall stay behind.
	nodes := l.keeper.renewals.nodes
	err := nodes.release(l.keeper.leases, now()+least(or(left, time.Second), nodes.retryFor))
	if loss != nil {
		return loss
	}
	return err
}

func (n *nodes) release(leases []leaseRef, until time.Duration) error {
	_, err := n.call(context.Background(), &call{path: "/v1/leases/release", body: fields{"leases": leases}, until: until})
	return err
}
