package latchgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// OnceOptions are those of Once. The zero value has the defaults.
type OnceOptions struct {
	// Checked is JSON that must be equal in all calls, but does not identify the operation.
	Checked any
	TTL     time.Duration // the length of the attempt's lease, kept by heartbeats: 60 s
	Wait    time.Duration // how long to wait for the end of another attempt: 60 s
	// OnExpiry: after an attempt that failed or vanished, an operator decides ("block", the default), or the next caller runs ("retry").
	OnExpiry   string
	Durability string        // "fast" or "durable"
	OnOutage   string        // "closed", "fallback" or "open"
	Retention  time.Duration // how long a success is known: a day
	Permanent  bool
	Label      string // what a person reads of the operation
}

// Done: the operation has been done, now or earlier.
type Done[T any] struct {
	// Result is what the work returned, or what the earlier attempt stored.
	Result T
	// Duplicate: an earlier attempt has done it.
	Duplicate bool
	// ResultOmitted: the result is not stored, because it is too long or no JSON. A duplicate's Result is then the zero value.
	ResultOmitted bool
}

// Attempt is the permission to do the operation, kept by heartbeats while the work runs.
type Attempt struct {
	ID string
	// Number of the attempt, from 1; 0 if it is not guarded.
	Number int `json:"attempt"`
	// Guarded is false if the store does not answer and OnOutage is "open", so other callers may proceed too.
	Guarded bool
	// Reentry: an earlier attempt may have done part of the work.
	Reentry bool
	// PossiblyRepeated: the store may have lost the record of an earlier attempt.
	PossiblyRepeated bool `json:"possibly_repeated"`
	keeper           *keeper
	isUnguarded      bool
}

// Err is nil while no other attempt can begin, and then an ErrAttemptLost. Ask before each step that cannot be undone.
func (a *Attempt) Err() error {
	if a.isUnguarded {
		return nil
	}
	if a.keeper == nil {
		return &Error{Kind: ErrAttemptLost, Code: "lease-lost", Detail: "it is no attempt of this process", Why: "unknown"}
	}
	return a.keeper.err()
}

// Once runs the work if the operation with these contents (JSON) has not succeeded yet, and stores its result (JSON). If it has succeeded,
// the stored result is returned. If another attempt runs, it waits for its end; then the error is an ErrOperationInProgress.
//
// If the work returns an error or panics or its process dies, the outcome is unknown: callers get ErrOperationUnknown until an operator
// decides. If the error is an ErrNotDone, or with OnExpiry "retry", the next caller runs the work.
//
// The work's context ends when the attempt is lost. With an ErrNotRecorded, Done has the result: the work was done, but the gate does not
// know it.
func Once[T any](ctx context.Context, c *Client, operation string, contents any, options OnceOptions, work func(context.Context, *Attempt) (T, error)) (done Done[T], err error) {
	if work == nil {
		return done, invalid("the work is nil")
	}
	options.TTL, options.Wait, options.OnExpiry = or(options.TTL, time.Minute), or(options.Wait, time.Minute), or(options.OnExpiry, "block")
	got, err := c.pre(ctx, operation, contents, options)
	if got.Code == "operation-duplicate" {
		done.Duplicate, done.ResultOmitted = true, got.ResultOmitted
		if len(got.Result) > 0 {
			if err := json.Unmarshal(got.Result, &done.Result); err != nil {
				return done, fmt.Errorf("latchgate: the operation was done, but its result is no %T: %w", done.Result, err)
			}
		}
		return done, nil
	}
	if err != nil {
		return done, err
	}
	attempt := &Attempt{}
	_ = json.Unmarshal(got.raw, attempt) // that it is JSON is known
	attempt.isUnguarded = !attempt.Guarded
	ctx, cancel := context.WithCancel(ctx)
	outcome := "failure" // until the work begins, surely nothing was done
	defer func() {
		cancel()
		if attempt.keeper != nil {
			attempt.keeper.stop()
		}
		if outcome == "success" {
			done.ResultOmitted, err = c.postSuccess(got, done.Result, options)
		} else {
			c.post(got, outcome, c.nodes.retryFor)
		}
	}()
	if attempt.Guarded {
		beat := leaseRef{"/v1/operations/" + attempt.ID + "/heartbeat", got.Stamp}
		attempt.keeper = &keeper{renewals: c.renewals, kind: ErrAttemptLost, name: "operation " + attempt.ID, leases: []leaseRef{beat},
			isAttempt: true, length: options.TTL, ended: cancel}
		c.renewals.keep(attempt.keeper, got)
	}
	if err := attempt.Err(); err != nil {
		return done, err // the answer took too long
	}
	if options.OnExpiry == "block" {
		outcome = "unknown" // a second run is worse than none
	}
	if done.Result, err = work(ctx, attempt); err == nil {
		outcome = "success"
	} else if errors.Is(err, ErrNotDone) {
		outcome = "failure" // only the work can know that nothing was done
	}
	return done, err
}

func (c *Client) pre(ctx context.Context, operation string, contents any, o OnceOptions) (answer, error) {
	// The attempt_id names this attempt: a repeated pre gets the same stamp.
	request := fields{"operation": operation, "attempt_id": randomID(), "on_expiry": o.OnExpiry}
	for name, value := range (fields{"contents": contents, "checked": o.Checked}) {
		if name == "checked" && value == nil {
			continue
		}
		text, err := encodeIdentity(name, value)
		if err != nil {
			return answer{}, err
		}
		request[name] = text
	}
	put(request, "ttl_ms", o.TTL)
	put(request, "durability", o.Durability)
	put(request, "on_outage", o.OnOutage)
	put(request, "label", o.Label)
	it := c.nodes.waiting("/v1/operations/pre", request, o.Wait, o.TTL)
	got, err := c.nodes.call(ctx, it)
	if err == nil && (got.ID == "" || got.Stamp == "") {
		err = &Error{Kind: ErrUnavailable, Code: "no-answer", Detail: "the answer is none of a gate"}
	}
	if err != nil && it.doubt {
		c.later(func() { c.giveBack(request, o) })
	}
	return got, err
}

// giveBack repeats a pre until a node says whether it was claimed, at most for the length of its lease. Its work has not begun, so the
// attempt is reported as a failure: a claim that stays would block the operation.
func (c *Client) giveBack(request fields, o OnceOptions) {
	if request["on_outage"] == "open" {
		request["on_outage"] = "closed" // an unguarded permission says nothing about the claim
	}
	for until := now() + o.TTL; now() < until; time.Sleep(2 * pauseMin) {
		it := c.nodes.callTo("/v1/operations/pre", request)
		it.doubt = true
		got, err := c.nodes.call(context.Background(), it)
		if err == nil {
			c.post(got, "failure", most(o.TTL, c.nodes.retryFor))
			return
		}
		if !it.doubt {
			return
		}
	}
	warn("no node says whether an operation was claimed: it may stay blocked")
}

// postSuccess says whether the result was omitted.
func (c *Client) postSuccess(got answer, result any, o OnceOptions) (isOmitted bool, err error) {
	body := fields{"stamp": got.Stamp, "outcome": "success"}
	put(body, "retention_ms", o.Retention)
	put(body, "permanent", o.Permanent)
	it := &call{path: "/v1/operations/" + got.ID + "/post", body: body, until: now() + most(c.nodes.retryFor, ms(got.TTL))}
	if text, err := encode("the result", result); err == nil {
		body["result"] = text
	} else {
		warn("a result is not stored: %v", err)
	}
	posted, failure := c.nodes.call(context.Background(), it)
	if body["result"] != nil && (posted.Status == 400 || posted.Status == 413) {
		delete(body, "result")
		posted, failure = c.nodes.call(context.Background(), it)
	}
	if failure != nil {
		notRecorded := *failure.(*Error) // and not of a context
		notRecorded.Kind, notRecorded.Detail = ErrNotRecorded, "the work was done, but its outcome is not recorded: "+notRecorded.Detail
		return true, &notRecorded
	}
	return body["result"] == nil || posted.ResultOmitted, nil
}

// post reports after a failure, which is more important than that of the post.
func (c *Client) post(got answer, outcome string, patience time.Duration) {
	body := fields{"stamp": got.Stamp, "outcome": outcome}
	it := &call{path: "/v1/operations/" + got.ID + "/post", body: body, until: now() + patience}
	if _, err := c.nodes.call(context.Background(), it); err != nil {
		warn("the outcome %s of operation %s is not recorded: %v", outcome, got.ID, err)
	}
}
