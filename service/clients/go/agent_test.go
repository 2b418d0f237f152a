package latchgate

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"runtime"
	"sync"
	"time"
)

// agent makes the calls that ../python/tests/remote.py sends, which runs the scenarios.
type agent struct {
	mu  sync.Mutex
	out *json.Encoder
	// By their numbers.
	clients, held, works, cancels sync.Map
}

// numbered is what has the number; the zero value if nothing has.
func numbered[T any](all *sync.Map, number int) T {
	value, _ := all.Load(number)
	one, _ := value.(T)
	return one
}

// agentCall has the fields of all calls. Durations are in milliseconds.
type agentCall struct {
	Number, Client, Lease, Call int
	Do, Key, Operation          string
	Keys                        []Key
	Contents, Result            any
	Failed, NotDone             *string
	Config
	Options
	OnceOptions
	RevokeOptions
	TTLMs, MinHoldMs, RetentionMs, GraceMs, RetryForMs, TimeoutMs time.Duration
	WaitMs                                                        *time.Duration
	OwnHTTP                                                       bool
}

// holding is a lease, or an attempt without one.
type holding struct {
	lease  *Lease
	keeper *keeper
	err    func() error
}

var kindNames = map[error]string{
	ErrRefused: "Refused", ErrLockHeld: "LockHeld", ErrWaitTimeout: "WaitTimeout", ErrStaleToken: "StaleToken", ErrLeaseLost: "LeaseLost",
	ErrOperationInProgress: "OperationInProgress", ErrOperationUnknown: "OperationUnknown", ErrAttemptLost: "AttemptLost",
	ErrNotRecorded: "NotRecorded", ErrUnavailable: "Unavailable",
}

func runAgent() {
	a := &agent{out: json.NewEncoder(os.Stdout)}
	lines := bufio.NewReader(os.Stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		var c agentCall
		must(json.Unmarshal(line, &c))
		inside, cancel := context.WithCancel(ctx)
		a.cancels.Store(c.Number, cancel)
		go func() {
			value, err := a.do(inside, c)
			if err != nil {
				a.say(fields{"number": c.Number, "error": said(err, value)})
			} else if c.Number != 0 {
				a.say(fields{"number": c.Number, "value": value})
			}
		}()
	}
}

func (a *agent) say(message fields) {
	a.mu.Lock()
	defer a.mu.Unlock()
	must(a.out.Encode(message))
}

func said(err error, result any) fields {
	var e *Error
	switch {
	case errors.Is(err, context.Canceled):
		return fields{"kind": "cancelled", "detail": err.Error()}
	case !errors.As(err, &e):
		return fields{"kind": "work"}
	case e.Code == "invalid-options":
		return fields{"kind": "options", "detail": e.Detail}
	}
	all := fields{"why": e.Why}
	for name, value := range e.Fields {
		all[name] = value
	}
	return fields{"kind": kindNames[e.Kind], "code": e.Code, "detail": e.Detail, "status": e.Status, "fields": all, "result": result}
}

func (a *agent) granted(number int, lease *Lease, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	a.held.Store(number, holding{lease, lease.keeper, lease.Err})
	return fields{"lease": number, "key": lease.Key, "lease_id": lease.ID, "token": lease.Token(), "tokens": lease.Tokens, "owner": lease.Owner,
		"slots": lease.Slots}, nil
}

func (a *agent) do(inside context.Context, c agentCall) (any, error) {
	client, h := numbered[*Client](&a.clients, c.Client), numbered[holding](&a.held, c.Lease)
	const ms = time.Millisecond
	c.Options.TTL, c.MinHold = c.TTLMs*ms, c.MinHoldMs*ms
	if c.WaitMs != nil {
		c.Options.Wait = *c.WaitMs * ms
		if *c.WaitMs == 0 {
			c.Options.Wait = NoWait
		}
	}
	switch c.Do {
	case "client":
		c.RetryFor, c.Timeout = c.RetryForMs*ms, c.TimeoutMs*ms
		if c.OwnHTTP {
			c.HTTPClient = http.DefaultClient
		}
		client, err := New(c.Config)
		a.clients.Store(c.Client, client)
		return nil, err
	case "lock":
		lease, err := client.Lock(inside, c.Key, c.Options)
		return a.granted(c.Number, lease, err)
	case "multilock":
		lease, err := client.Multilock(inside, c.Keys, c.Options)
		return a.granted(c.Number, lease, err)
	case "fence":
		return nil, client.Fence(inside, c.Key, c.Token)
	case "revoke":
		c.Grace = c.GraceMs * ms
		revoking, err := client.Revoke(inside, c.Key, c.RevokeOptions)
		return fields{"leases": revoking.Leases, "deadline": revoking.Deadline}, err
	case "state":
		state := fields{"remaining_ms": h.keeper.remaining().Milliseconds()}
		if err := h.err(); err != nil {
			state["lost"] = said(err, nil)
		}
		if h.lease != nil && h.lease.Revocation() != nil {
			asked := h.lease.Revocation()
			state["revocation"] = fields{"deadline": asked.Deadline, "reason": asked.Reason, "by": asked.By}
		}
		return state, nil
	case "lost":
		<-h.lease.Context().Done()
		return said(h.err(), nil), nil
	case "release":
		return nil, h.lease.Release()
	case "forget":
		a.held.Delete(c.Lease)
		runtime.GC()
	case "once":
		ended := make(chan agentCall)
		a.works.Store(c.Number, ended)
		c.OnceOptions.TTL, c.OnceOptions.Wait, c.Retention = c.Options.TTL, c.Options.Wait, c.RetentionMs*ms
		done, err := Once(inside, client, c.Operation, c.Contents, c.OnceOptions, func(_ context.Context, attempt *Attempt) (any, error) {
			a.held.Store(c.Number, holding{nil, attempt.keeper, attempt.Err})
			about := fields{"lease": c.Number, "guarded": attempt.Guarded}
			if attempt.Guarded {
				about["id"] = attempt.ID
			}
			a.say(fields{"number": c.Number, "work": about})
			switch end := <-ended; {
			case end.NotDone != nil:
				return nil, ErrNotDone
			case end.Failed != nil:
				return nil, errors.New(*end.Failed)
			default:
				return end.Result, nil
			}
		})
		if err != nil {
			return done.Result, err
		}
		return fields{"result": done.Result, "duplicate": done.Duplicate, "result_omitted": done.ResultOmitted}, err
	case "ended":
		numbered[chan agentCall](&a.works, c.Call) <- c
	case "cancel":
		numbered[context.CancelFunc](&a.cancels, c.Call)()
	case "queued":
		client.mu.Lock()
		defer client.mu.Unlock()
		queued := 0
		for _, queue := range client.queues {
			queued += queue.callers
		}
		return queued, nil
	}
	return nil, nil
}
