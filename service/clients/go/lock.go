package latchgate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// NoWait is a Wait of no time: a lock that is held is an ErrLockHeld at once.
	NoWait time.Duration = -1
	// Forever is a Wait without a limit.
	Forever time.Duration = 1 << 60
)

// Mode is which share of a lock a caller wants: all of it (the zero value); or shared; or permits out of a limit.
type Mode struct {
	Shared         bool
	Permits, Limit int
	// Group: free permits go to the waiting group that has fewest, for example a tenant. With GroupLimit, the lock is not granted if the
	// group would have more permits than that.
	Group      string
	GroupLimit int
}

// Key is a key of a multilock, with its mode.
type Key struct {
	Key string
	Mode
}

// Options are those of Lock. The zero value has the defaults.
type Options struct {
	Mode
	TTL  time.Duration // the length of the lease, which renews itself: 30 s
	Wait time.Duration // how long to wait in the queue: 60 s
	// Owner is shown to callers that are refused. If absent, each lease has one of its own: host:pid program/…
	Owner string
	// Reentrant: within the Context of a lease of the same key, a nested lease with the same token is granted at once. With a named
	// Owner, so it is for every caller that names it.
	Reentrant bool
	Priority  int // 1 to 10, higher first
	// Delay: if the lease expires, no caller gets the lock for this long. MinHold: the lock stays taken until so long after the grant,
	// also after an earlier release. MaxHold: it is not renewed for longer.
	Delay, MinHold, MaxHold time.Duration
}

// Lock takes the lock, and returns a lease that renews itself until it is released. It waits in the queue for Options.Wait; then the
// error is an ErrWaitTimeout, or with NoWait an ErrLockHeld. The lease's Context is derived from ctx.
func (c *Client) Lock(ctx context.Context, key string, options Options) (*Lease, error) {
	return c.acquire(ctx, lockPath(key, "acquire"), options.Mode.fields(), []Key{{key, options.Mode}}, options)
}

// Multilock takes all locks or none, up to 64. Each Key says its mode. Otherwise it is like Lock.
func (c *Client) Multilock(ctx context.Context, keys []Key, options Options) (*Lease, error) {
	if options.Mode != (Mode{}) {
		return nil, invalid("each Key of a multilock says its mode")
	}
	var locks []fields
	for _, key := range keys {
		lock := key.fields()
		lock["key"] = key.Key
		locks = append(locks, lock)
	}
	return c.acquire(ctx, "/v1/multilocks/acquire", fields{"locks": locks}, keys, options)
}

func (m Mode) fields() fields {
	body := fields{}
	if m.Shared {
		body["mode"] = "shared"
	} else if m != (Mode{}) {
		body["mode"] = "permits"
	}
	put(body, "permits", m.Permits)
	put(body, "limit", m.Limit)
	put(body, "group", m.Group)
	put(body, "group_limit", m.GroupLimit)
	return body
}

func (c *Client) acquire(ctx context.Context, path string, body fields, keys []Key, o Options) (*Lease, error) {
	if err := notNegative(map[string]time.Duration{"TTL": o.TTL, "Wait": o.Wait, "Delay": o.Delay, "MinHold": o.MinHold, "MaxHold": o.MaxHold}); err != nil {
		return nil, err
	}
	o.TTL, o.Wait = or(o.TTL, 30*time.Second), or(o.Wait, time.Minute)
	outer := o.Owner
	if o.Reentrant {
		outer = or(outer, c.renewals.outerOwner(ctx, keys))
	}
	isNested := o.Reentrant && outer != ""
	put(body, "owner", or(outer, ownerName()))
	put(body, "reentrant", isNested)
	put(body, "ttl_ms", o.TTL)
	put(body, "priority", o.Priority)
	put(body, "delay_ms", o.Delay)
	put(body, "min_hold_ms", o.MinHold)
	put(body, "max_hold_ms", o.MaxHold)
	it := c.nodes.waiting(path, body, o.Wait, o.TTL)
	for _, key := range keys {
		it.keys = append(it.keys, key.Key)
	}
	if o.Wait < 0 || isNested {
		return c.take(ctx, it, keys, o)
	}
	return c.takeInTurn(ctx, it, keys, o)
}

// take asks the service.
func (c *Client) take(ctx context.Context, it *call, keys []Key, o Options) (*Lease, error) {
	for {
		k := &keeper{renewals: c.renewals, kind: ErrLeaseLost, name: "the lease of", length: o.TTL}
		id := randomID() // a repeated acquire gets the same grant
		for _, key := range keys {
			k.leases = append(k.leases, leaseRef{key.Key, id})
			k.name += " " + key.Key
		}
		it.body["lease_id"] = id
		delete(it.body, "ticket")
		it.doubt = false
		got, err := c.nodes.call(ctx, it)
		if err == nil && got.LeaseID != id {
			err = &Error{Kind: ErrUnavailable, Code: foreignAnswer, Detail: "the answer is none to this call"}
		}
		if err == nil {
			if o.Owner == "" {
				k.owner = got.Owner
			}
			lease := newLease(ctx, k, got)
			if err = lease.Err(); err == nil { // unless the answer took too long
				return lease, nil
			}
		}
		if it.doubt {
			leases := k.leases
			if got.LeaseID == id && got.Key != "" && got.Key != leases[0].Key {
				leases = append(leases, got.leaseRef) // it is another lock that was granted
			}
			c.later(func() { _ = c.nodes.release(leases, now()+most(giveBack, c.nodes.retryFor)) })
		}
		if !errors.Is(err, ErrLeaseLost) || now() >= most(it.until, it.waitUntil) {
			return nil, err
		}
		// It was granted in an answer that was lost, and has ended since.
		it.until = now() + c.nodes.retryFor
	}
}

// queue is one of callers in this process that want the same locks in the same way. Only one of them stands in the service's queue, until
// it is granted the lock with a lease of its own; then the next one does.
type queue struct {
	turn    chan struct{} // it has room for one value, of the caller whose turn it is; the others wait to send, in the order of their arrival
	callers int
}

func (c *Client) enter(name string) (turn chan struct{}, leave func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.queues[name]
	if q == nil {
		q = &queue{turn: make(chan struct{}, 1)}
		c.queues[name] = q
	}
	q.callers++
	return q.turn, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if q.callers--; q.callers == 0 {
			delete(c.queues, name)
		}
	}
}

// takeInTurn waits for the turn of this caller among those of this process. Before that it asks once without a wait: so it knows that a
// node answers, and what the service refuses is refused at once.
func (c *Client) takeInTurn(ctx context.Context, it *call, keys []Key, o Options) (*Lease, error) {
	turn, leave := c.enter(fmt.Sprintf("%#v %d", keys, o.Priority))
	defer leave()
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
		return c.take(ctx, it, keys, o)
	default:
	}
	waitUntil := it.waitUntil
	it.waitUntil = 0
	lease, err := c.take(ctx, it, keys, o)
	if !errors.Is(err, ErrLockHeld) {
		return lease, err
	}
	inTime, cancel := context.WithTimeout(ctx, waitUntil-now())
	defer cancel()
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-inTime.Done():
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	// When the wait is over, the service says who holds it.
	waitUntil = most(waitUntil, now()+50*time.Millisecond)
	it.waitUntil, it.until = waitUntil, waitUntil+c.nodes.retryFor
	return c.take(ctx, it, keys, o)
}

// Mutex is a lock for code that knows sync.Mutex: one goroutine at a time, in all processes together.
type Mutex struct {
	client  *Client
	key     string
	options Options
	lease   atomic.Pointer[Lease]
}

// Mutex names a lock. Its mode is exclusive.
func (c *Client) Mutex(key string, options Options) *Mutex {
	m := &Mutex{client: c, key: key, options: options}
	m.options.Mode = Mode{}
	return m
}

// Lock takes the lock. The context that it returns ends when the lease is lost or released. A goroutine that has lost its lease keeps
// those of this process out until it has called Unlock, which could not tell their leases from its own: that is an ErrLockHeld.
func (m *Mutex) Lock(ctx context.Context) (context.Context, error) {
	lease, err := m.client.Lock(ctx, m.key, m.options)
	if err != nil {
		return nil, err
	}
	if !m.lease.CompareAndSwap(nil, lease) {
		_ = lease.Release()
		return nil, &Error{Kind: ErrLockHeld, Code: "lock-held", Detail: "a goroutine that has lost its lease of " + m.key + " has not unlocked it yet"}
	}
	return lease.Context(), nil
}

func (m *Mutex) String() string {
	if lease := m.Lease(); lease != nil {
		return fmt.Sprintf("lock %s, held: %v", m.key, lease)
	}
	return "lock " + m.key
}

// Lease is what the holder has: nil if no goroutine holds the lock through this Mutex.
func (m *Mutex) Lease() *Lease { return m.lease.Load() }

// Unlock releases the lock. An ErrLeaseLost says that the lease had ended before.
func (m *Mutex) Unlock() error {
	lease := m.lease.Swap(nil)
	if lease == nil {
		return fmt.Errorf("latchgate: %s is not locked through this Mutex", m.key)
	}
	return lease.Release()
}
