package latchgate

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"
)

// Revocation: an operator asks the holder to release. The lease ends at Deadline (RFC 3339, by the store's clock).
type Revocation struct {
	Deadline string `json:"deadline"`
	Reason   string `json:"reason"`
	By       string `json:"by"`
}

// renewed is what an answer shows of the lease, or of the shortest of several.
func (a answer) renewed() renewed {
	next := renewed{a.sent, ms(a.TTL), a.Revoked}
	for i, one := range a.results() {
		if left := ms(one.TTL); i == 0 || left < next.left {
			next.left = left
		}
		next.revocation = or(next.revocation, one.Revoked)
	}
	return next
}

func ms(count int64) time.Duration { return time.Duration(count) * time.Millisecond }

// Under this key, the context of a lease has its keeper.
type insideOf struct{}

// ownerOf is the owner for a lease of these keys, and whether it is to be nested in one whose context this is.
func (r *renewals) ownerOf(ctx context.Context, keys []Key, o Options) (owner string, isNested bool, err error) {
	if o.Owner != "" {
		return o.Owner, o.Reentrant, nil
	}
	outer, _ := ctx.Value(insideOf{}).(*keeper)
	for ; o.Reentrant && outer != nil; outer = outer.outer {
		if outer.renewals != r || !outer.isOfAny(keys) || outer.remaining() == 0 {
			continue
		}
		if outer.isNamed {
			return "", false, invalid("the lease around this one has an owner that the caller has named: name it here too")
		}
		if owner != "" && owner != outer.owner {
			return "", false, invalid("a multilock cannot be nested in several leases: name one owner for all of them")
		}
		owner = outer.owner
	}
	return or(owner, ownerName()), owner != "", nil
}

func (k *keeper) isOfAny(keys []Key) bool {
	for _, lease := range k.leases {
		for _, key := range keys {
			if lease.Key == key.Key {
				return true
			}
		}
	}
	return false
}

// Lease is a lease that renews itself in the background until it is released.
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

func newLease(ctx context.Context, r *renewals, k *keeper, granted answer, first renewed) *Lease {
	l := &Lease{Key: k.leases[0].Key, ID: k.leases[0].LeaseID, Owner: granted.Owner, Slots: granted.Slots, keeper: k}
	l.Tokens = map[string]int64{l.Key: granted.Token}
	for _, lock := range granted.Locks {
		l.Tokens[lock.Key] = lock.Token
	}
	k.owner = granted.Owner
	k.outer, _ = ctx.Value(insideOf{}).(*keeper)
	l.ctx, k.ended = context.WithCancel(context.WithValue(ctx, insideOf{}, k))
	r.keep(k, first)
	// A lease that is forgotten is not renewed any more, and expires.
	runtime.SetFinalizer(l, func(*Lease) { k.stop() })
	return l
}

// Token is higher than that of every earlier lease of the key: send it with each write.
func (l *Lease) Token() int64 { return l.Tokens[l.Key] }

// Context is derived from that of Lock. It ends when the lease is lost or released: pass it to the work.
func (l *Lease) Context() context.Context { return l.ctx }

// Remaining is for how long the lease is surely live; 0 if it is lost or released.
func (l *Lease) Remaining() time.Duration { return l.keeper.remaining() }

// Err is nil while the lease is surely live, and then an ErrLeaseLost, which says why. Ask before each step that cannot be undone.
func (l *Lease) Err() error {
	if l.Remaining() > 0 {
		return nil
	}
	if loss := l.keeper.stop(); loss != nil {
		return loss
	}
	return lost(ErrLeaseLost, "lease-lost", "the lease of "+l.keeper.name+" is released", "released")
}

// Revocation is not nil when a renewal has shown that an operator asks for the lock: finish, and release it.
func (l *Lease) Revocation() *Revocation {
	l.keeper.renewals.mu.Lock()
	defer l.keeper.renewals.mu.Unlock()
	return l.keeper.last.revocation
}

// Release releases the lease. An ErrLeaseLost says that it had ended before, an ErrUnavailable that no node answers; then the lease ends
// by its TTL. A second release does nothing.
func (l *Lease) Release() error {
	left := l.Remaining()
	if l.released.Swap(true) {
		return nil
	}
	loss := l.keeper.stop()
	runtime.SetFinalizer(l, nil)
	if loss != nil && loss.Status != 0 && len(l.keeper.leases) == 1 {
		return loss
	}
	// Also if the loss is only presumed, or of one key of several: no lease shall stay behind.
	err := l.keeper.renewals.nodes.release(l.keeper.leases, or(left, time.Second))
	if loss != nil {
		return loss
	}
	return err
}

func (n *nodes) release(leases []leaseRef, atMost time.Duration) error {
	_, err := n.call(context.Background(), "/v1/leases/release", fields{"leases": leases}, &call{until: now() + least(atMost, n.retryFor)})
	return err
}

// WithLock runs the work while it holds the lock. The work's context ends when the lease is lost. An error of the work is more important
// than that of the release. If no node answers the release, the lease ends by its TTL.
func (c *Client) WithLock(ctx context.Context, key string, options *Options, work func(context.Context, *Lease) error) (err error) {
	lease, err := c.Lock(ctx, key, options)
	if err != nil {
		return err
	}
	defer func() {
		if failure := lease.Release(); err == nil && errors.Is(failure, ErrLeaseLost) {
			err = failure
		}
	}()
	return work(lease.Context(), lease)
}
