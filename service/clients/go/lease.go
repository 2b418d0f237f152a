package latchgate

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"time"
)

// Revocation: an operator asks the holder to release. The lease ends at Deadline (RFC 3339, by the store's clock).
type Revocation struct {
	Deadline string `json:"deadline"`
	Reason   string `json:"reason"`
	By       string `json:"by"`
}

// target is where the calls about a lease go, and what they carry.
type target struct {
	nodes *nodes
	keys  []string
	id    string
	many  bool
}

func (t target) path(verb string) string {
	switch {
	case !t.many:
		return lockPath(t.keys[0], verb)
	case verb == "acquire":
		return "/v1/multilocks/acquire"
	}
	return "/v1/leases/" + verb
}

func (t target) leases() (all []leaseRef) {
	for _, key := range t.keys {
		all = append(all, leaseRef{key, t.id})
	}
	return all
}

// body is that of a renewal or a release.
func (t target) body() fields {
	if t.many {
		return fields{"leases": t.leases()}
	}
	return fields{"lease_id": t.id}
}

func (t target) renew(ctx context.Context, until time.Duration) (renewed, error) {
	got, err := t.nodes.call(ctx, t.path("renew"), t.body(), &call{until: until})
	if err != nil {
		return renewed{}, err
	}
	next := renewed{got.sent, ms(got.TTL), got.Revoked}
	for i, one := range got.Results {
		if left := ms(one.TTL); i == 0 || left < next.left {
			next.left = left
		}
	}
	return next, nil
}

func ms(count *int64) time.Duration {
	if count == nil {
		return 0
	}
	return time.Duration(*count) * time.Millisecond
}

// scope is what a lease's context carries, for leases nested in it.
type scope struct {
	client  *Client
	keys    []string
	owner   string
	isNamed bool
	keeper  *keeper
	outer   *scope
}

type scopeKey struct{}

// ownerOf is the owner for a lease of these keys, and whether it is to be nested in one whose context this is.
func ownerOf(ctx context.Context, c *Client, keys []string, o Options) (owner string, isNested bool, err error) {
	if o.Owner != "" {
		return o.Owner, o.Reentrant, nil
	}
	if !o.Reentrant {
		return ownerName(), false, nil
	}
	outer, _ := ctx.Value(scopeKey{}).(*scope)
	for ; outer != nil; outer = outer.outer {
		if outer.client != c || outer.keeper.remaining() == 0 || !overlap(outer.keys, keys) {
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
	if owner != "" {
		return owner, true, nil
	}
	return ownerName(), false, nil
}

func overlap(some, others []string) bool {
	for _, one := range some {
		for _, other := range others {
			if one == other {
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

	target   target
	keeper   *keeper
	ctx      context.Context
	released atomic.Bool
}

func newLease(ctx context.Context, a *acquiring, got answer, first renewed) *Lease {
	l := &Lease{Key: a.keys[0], ID: a.target.id, Owner: got.Owner, Tokens: map[string]int64{}, Slots: got.Slots, target: a.target}
	if !a.many {
		got.Locks = []grantedLock{{Key: a.keys[0], Token: got.Token}}
	}
	for _, lock := range got.Locks {
		l.Tokens[lock.Key] = lock.Token
	}
	l.keeper = &keeper{name: strings.Join(a.keys, ", "), leases: a.target.leases(), length: a.ttl}
	outer, _ := ctx.Value(scopeKey{}).(*scope)
	ctx = context.WithValue(ctx, scopeKey{}, &scope{a.client, a.keys, got.Owner, a.isNamed, l.keeper, outer})
	l.ctx, l.keeper.ended = context.WithCancel(ctx)
	l.keeper.renewed(first)
	a.client.renewals.keep(l.keeper)
	// A lease that is forgotten is not renewed any more, and expires.
	keeper := l.keeper
	runtime.SetFinalizer(l, func(*Lease) { keeper.end(nil) })
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
	if loss := l.keeper.end(nil); loss != nil {
		return loss
	}
	return lost(ErrLeaseLost, "lease-lost", "the lease of "+l.keeper.name+" is released", "released")
}

// Revocation is not nil when a renewal has shown that an operator asks for the lock: finish, and release it.
func (l *Lease) Revocation() *Revocation {
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	return l.keeper.last.revocation
}

// Release releases the lease. An ErrLeaseLost says that it had ended before, an ErrUnavailable that no node answers; then the lease ends
// by its TTL. A second release does nothing.
func (l *Lease) Release() error {
	left := l.Remaining()
	if l.released.Swap(true) {
		return nil
	}
	loss := l.keeper.end(nil)
	runtime.SetFinalizer(l, nil)
	if loss != nil && loss.Status != 0 && !l.target.many {
		return loss
	}
	// Also if the loss is only presumed, or of one key of several: no lease shall stay behind.
	until := now() + least(or(left, time.Second), l.target.nodes.retryFor)
	_, err := l.target.nodes.call(context.Background(), l.target.path("release"), l.target.body(), &call{until: until})
	if loss != nil {
		return loss
	}
	return err
}

// WithLock runs the work while it holds the lock. The work's context ends when the lease is lost. An error of the work is more important
// than that of the release.
func (c *Client) WithLock(ctx context.Context, key string, options *Options, work func(context.Context, *Lease) error) (err error) {
	lease, err := c.Lock(ctx, key, options)
	if err != nil {
		return err
	}
	defer func() {
		failure := lease.Release()
		if err == nil && errors.Is(failure, ErrLeaseLost) {
			err = failure
		} else if failure != nil {
			warn("the lease of %s is not released: %v", lease.keeper.name, failure)
		}
	}()
	return work(lease.Context(), lease)
}
