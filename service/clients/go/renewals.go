package latchgate

import (
	"context"
	"encoding/json"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Longest sleep at a time: while the machine is suspended, timers stand still, and the clock of leases does not.
	slice = 250 * time.Millisecond
	// The most that a node accepts, and a proxy in front of it.
	leasesPerCallMax = 500
	bytesPerCallMax  = 500_000
	// A request without an answer for its leases is repeated in so many parts.
	parts = 16
)

// stepped moves the clock of leases. Only tests do that.
var stepped atomic.Int64

// now is the time by which leases are counted: it cannot be set, and goes on while the machine is suspended.
func now() time.Duration { return clock() + time.Duration(stepped.Load()) }

type leaseRef struct {
	Key     string `json:"key"`
	LeaseID string `json:"lease_id"`
}

// keeper is a lease (of one key or of several) or an attempt: what is known of it, and when to renew it. It knows nothing of the object
// that the caller has: when that is forgotten without a release, the renewals stop.
type keeper struct {
	renewals  *renewals
	kind      error // of its loss
	name      string
	leases    []leaseRef
	isAttempt bool // its heartbeat has the path in leases[0].Key, and the stamp in leases[0].LeaseID
	length    time.Duration
	ended     context.CancelFunc
	owner     string // for leases nested in this one
	bytes     int    // of its leases in a request

	// The mutex of the renewals guards the rest.
	isOver      bool
	loss        *Error
	sent, until time.Duration // when the last renewal that was answered was sent, and when the lease may have ended
	revocation  *asked
	due, early  time.Duration // from `early` on it goes with leases that are due, so that leases of one length soon go together
	failures    int
	asked       int32 // the index of the node that was asked last: after a failure, each is asked in turn, whatever other calls have found
	isSent      bool  // a request with it has no answer yet
	together    int   // how many may go in one request: less after a request without an answer, which may be the fault of one of them
}

// remaining is until the lease may have ended; 0 if it is lost or stopped.
func (k *keeper) remaining() time.Duration {
	if k == nil {
		return 0
	}
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	return k.remains(now())
}

// stop ends the renewals without a loss. What came first counts, and is returned.
func (k *keeper) stop() *Error {
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	k.end(nil)
	return k.loss
}

// stopAttempt says when the last heartbeat was.
func (k *keeper) stopAttempt() string {
	k.stop()
	k.renewals.mu.Lock()
	defer k.renewals.mu.Unlock()
	return fmt.Sprintf("\nThe last heartbeat that was answered was sent %d s before this report.", int((now() - k.sent).Seconds()))
}

// err is nil while the lease is surely live.
func (k *keeper) err() error {
	if k == nil {
		return &Error{Kind: ErrLeaseLost, Code: "lease-lost", Detail: "it was not granted to this process", Why: "unknown"}
	}
	if k.remaining() > 0 {
		return nil
	}
	if loss := k.stop(); loss != nil {
		return loss
	}
	return &Error{Kind: k.kind, Code: "lease-lost", Detail: k.name + " is released", Why: "released"}
}

// The methods below are called with the mutex.

func (k *keeper) remains(at time.Duration) time.Duration {
	if k.until <= at {
		loss := &Error{Kind: k.kind, Code: "lease-lost", Detail: "no renewal of " + k.name + " was answered in time", Why: "unanswered"}
		if r := k.revocation; r != nil && ms(r.Left) <= k.until-k.sent {
			loss.Why, loss.Detail = "revoked", or(r.By, "an operator")+" has revoked "+k.name
			if r.Reason != "" {
				loss.Detail += ": " + r.Reason
			}
		}
		k.end(loss)
	}
	if k.isOver {
		return 0
	}
	return k.until - at
}

func (k *keeper) end(loss *Error) {
	if !k.isOver {
		k.isOver, k.loss = true, loss
		k.ended()
	}
}

// settle reads the result of each lease, or the answer itself if it has none.
func (k *keeper) settle(got answer, results map[leaseRef]answer) {
	left := Forever
	var revocation *asked
	var worst *answer
	for _, lease := range k.leases {
		one, is := results[lease]
		if !is {
			one = got
		}
		if one.Status/100 == 2 && one.TTL > 0 {
			left = least(left, ms(one.TTL))
			if r := one.Revocation; r != nil && (revocation == nil || r.Left < revocation.Left) {
				revocation = r // that with the earliest deadline
			}
		} else if worst == nil || one.Status == 410 {
			worst = &one // a loss is more serious than what is not known of another key
		}
	}
	if worst == nil {
		k.renewed(got.sent, left, revocation)
	} else if err := worst.problem(); err.Kind == k.kind {
		k.end(err)
	} else {
		k.failed(ms(worst.RetryAfter))
	}
}

func (k *keeper) renewed(sent, left time.Duration, revocation *asked) {
	// The lower bound is for leases that a revocation or `max_hold` is ending: each renewal leaves them shorter.
	pause := jitter(most(left/3, k.length/10), 0.9, 1)
	k.sent, k.until, k.revocation = sent, sent+left, revocation
	k.due, k.early, k.failures, k.together = sent+pause, sent+pause/2, 0, leasesPerCallMax
	if k.isAttempt {
		k.together = 1
	}
}

// failed: a renewal was not answered, or refused for another reason than a loss. When the lease has ended, `remains` reports the loss.
func (k *keeper) failed(retryAfter time.Duration) {
	k.failures++
	pause := jitter(most(least(pauseMin/4<<least(k.failures, 10), pauseMax), retryAfter), 1, 1.5)
	at := now()
	k.due = at + most(least(pause, (k.until-at)/4), 0)
	k.early = k.due
}

// renewals are those of one client. Between them there is only a timer, and none when there is nothing to keep.
type renewals struct {
	nodes   *nodes
	mu      sync.Mutex
	keepers []*keeper
	timer   *time.Timer
}

func newRenewals(n *nodes) *renewals {
	r := &renewals{nodes: n}
	r.timer = time.AfterFunc(0, r.look)
	return r
}

// keep renews what was granted in this answer.
func (r *renewals) keep(k *keeper, granted answer) {
	text, _ := json.Marshal(k.leases)
	r.mu.Lock()
	defer r.mu.Unlock()
	k.bytes = len(text)
	k.settle(granted, nil)
	r.keepers = append(r.keepers, k)
	r.timer.Reset(0)
}

// look drops what has ended, sends what is due, and says when to look again.
func (r *renewals) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	at, isDue, wakes := now(), false, slice
	var kept, ready []*keeper
	for _, k := range r.keepers {
		left := k.remains(at)
		if left == 0 {
			continue
		}
		kept = append(kept, k)
		wakes = least(wakes, left)
		if !k.isSent {
			wakes = least(wakes, most(k.due-at, time.Millisecond))
			isDue = isDue || k.due <= at
			if k.early <= at {
				ready = append(ready, k)
			}
		}
	}
	if r.keepers = kept; len(kept) > 0 {
		r.timer.Reset(wakes)
	}
	if isDue {
		for _, batch := range batches(ready) {
			index := r.nodes.first.Load()
			if batch[0].failures > 0 {
				index = r.nodes.after(batch[0].asked)
			}
			for _, k := range batch {
				k.asked = index
			}
			go r.renew(batch, index, batch[0].until-at)
		}
	}
}

// batches are the requests to send, first what ends first. A heartbeat goes alone.
func batches(ready []*keeper) (all [][]*keeper) {
	sort.Slice(ready, func(i, j int) bool { return ready[i].until < ready[j].until })
	var batch []*keeper
	size, bytes := 0, 0
	for _, k := range ready {
		k.isSent = true
		isFull := size+len(k.leases) > leasesPerCallMax || bytes+k.bytes > bytesPerCallMax
		if len(batch) > 0 && (isFull || len(batch) >= least(k.together, batch[len(batch)-1].together)) {
			all, batch, size, bytes = append(all, batch), nil, 0, 0
		}
		batch, size, bytes = append(batch, k), size+len(k.leases), bytes+k.bytes
	}
	return append(all, batch)
}

// renew sends one request to one node. `left` is what the first of the batch has left.
func (r *renewals) renew(batch []*keeper, index int32, left time.Duration) {
	var leases []leaseRef
	for _, k := range batch {
		leases = append(leases, k.leases...)
	}
	path, body := "/v1/leases/renew", fields{"leases": leases}
	if batch[0].isAttempt {
		path, body = leases[0].Key, fields{"stamp": leases[0].LeaseID}
	}
	// Other nodes can be tried before the first of them ends.
	got := r.nodes.send(context.Background(), index, path, body, least(r.nodes.timeout, most(left/3, timeoutMin)))
	results := got.results()
	if !batch[0].isAttempt {
		got.TTL = 0 // each lease has a result of its own
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range batch {
		k.isSent = false
		k.settle(got, results)
		if len(results) == 0 && k.failures > 0 {
			// Also if it is refused as a whole, because of one of its keys.
			k.together = most(len(batch)/parts, 1)
		}
	}
	r.timer.Reset(0)
}
