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
	Label      string // what a person reads of the operation; Metadata is a JSON object
	Metadata   any
	// KeepContents stores the contents with the record.
	KeepContents bool
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
	Number int
	// Guarded is false if the store does not answer and OnOutage is "open", so other callers may proceed too.
	Guarded bool
	// Reentry: an earlier attempt may have done part of the work.
	Reentry bool
	// PossiblyRepeated: the store may have lost the record of an earlier attempt.
	PossiblyRepeated bool
	keeper           *keeper
}

// Err is nil while no other attempt can begin, and then an ErrAttemptLost. Ask before each step that cannot be undone.
func (a *Attempt) Err() error {
	if a.keeper == nil || a.keeper.remaining() > 0 {
		return nil
	}
	loss := a.keeper.end(nil)
	if loss == nil {
		return lost(ErrAttemptLost, "attempt-lost", "the attempt has ended", "")
	}
	asAttempt := *loss
	asAttempt.Kind = ErrAttemptLost
	return &asAttempt
}

// Remaining is for how long no other attempt can begin; 0 if it is lost, or not guarded.
func (a *Attempt) Remaining() time.Duration {
	if a.keeper == nil {
		return 0
	}
	return a.keeper.remaining()
}

// Once runs the work if the operation with these contents (JSON) has not succeeded yet, and stores its result (JSON). If it has succeeded,
// the stored result is returned. If another attempt runs, it waits for its end; then the error is an ErrOperationInProgress.
//
// If the work returns an error or panics or its process dies, the outcome is unknown: callers get ErrOperationUnknown until an operator
// decides. If the error is an ErrNotDone, or with OnExpiry "retry", the next caller runs the work.
//
// The work's context ends when the attempt is lost. With an ErrNotRecorded, Done has the result: the work was done, but the gate does not
// know it.
func Once[T any](ctx context.Context, c *Client, operation string, contents any, options *OnceOptions, work func(context.Context, *Attempt) (T, error)) (done Done[T], err error) {
	o := orZero(options)
	o.TTL, o.Wait, o.OnExpiry = or(o.TTL, time.Minute), or(o.Wait, time.Minute), or(o.OnExpiry, "block")
	request, err := o.request(operation, contents)
	if err != nil {
		return done, err
	}
	got, err := c.pre(ctx, request, o)
	var refused *Error
	if errors.As(err, &refused) && refused.Code == "operation-duplicate" {
		known := refused.known()
		done.Duplicate, done.ResultOmitted = true, known.ResultOmitted
		if len(known.Result) > 0 {
			if err := json.Unmarshal(known.Result, &done.Result); err != nil {
				return done, fmt.Errorf("latchgate: the operation was done, but its result is no %T: %w", done.Result, err)
			}
		}
		return done, nil
	}
	if err != nil {
		return done, err
	}
	attempt, ctx, stop, err := c.attempt(ctx, got, o)
	if err != nil {
		if !errors.Is(err, ErrAttemptLost) {
			c.post(got, "failure") // the work has not begun
		}
		return done, err
	}
	isFinished := false
	defer func() {
		stop()
		if isFinished && err == nil {
			done.ResultOmitted, err = c.postSuccess(got, done.Result, o)
		} else if o.OnExpiry == "block" && !errors.Is(err, ErrNotDone) {
			c.post(got, "unknown") // a second run is worse than none, and only the work can know that nothing was done
		} else {
			c.post(got, "failure")
		}
	}()
	done.Result, err = work(ctx, attempt)
	isFinished = true
	return done, err
}

func (o OnceOptions) request(operation string, contents any) (fields, error) {
	// The attempt_id names this attempt: a repeated pre gets the same stamp.
	body := fields{"operation": operation, "attempt_id": randomID(), "ttl_ms": o.TTL.Milliseconds(), "on_expiry": o.OnExpiry}
	for name, value := range (fields{"contents": contents, "checked": o.Checked, "metadata": o.Metadata}) {
		if value == nil {
			continue
		}
		text, err := json.Marshal(value)
		if err != nil {
			return nil, invalid(name + " is no JSON: " + err.Error())
		}
		body[name] = json.RawMessage(text)
	}
	put(body, "durability", o.Durability)
	put(body, "on_outage", o.OnOutage)
	put(body, "label", o.Label)
	put(body, "keep_contents", o.KeepContents)
	return body, nil
}

func (c *Client) pre(ctx context.Context, request fields, o OnceOptions) (answer, error) {
	it := &call{until: now() + c.nodes.retryFor, hasWait: true, waitUntil: now() + most(least(o.Wait, Forever), 0)}
	got, err := c.nodes.call(ctx, "/v1/operations/pre", request, it)
	if err == nil && (got.ID == "" || got.Stamp == "") {
		err = &Error{Kind: ErrUnavailable, Code: "no-answer", Detail: "the answer is none of a gate", Status: got.status}
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
		it := &call{until: now() + c.nodes.retryFor, hasWait: true, doubt: true}
		got, err := c.nodes.call(context.Background(), "/v1/operations/pre", request, it)
		if err == nil {
			c.post(got, "failure")
			return
		}
		if !it.doubt {
			return
		}
	}
	warn("no node says whether an operation was claimed: it may stay blocked")
}

// attempt begins the heartbeats.
func (c *Client) attempt(ctx context.Context, got answer, o OnceOptions) (a *Attempt, work context.Context, stop func(), err error) {
	a = &Attempt{ID: got.ID, Number: got.Attempt, Guarded: got.Guarded, Reentry: got.Reentry, PossiblyRepeated: got.PossiblyRepeated}
	work, cancel := context.WithCancel(ctx)
	if !a.Guarded {
		return a, work, cancel, nil
	}
	beat, first := "/v1/operations/"+a.ID+"/heartbeat", renewed{got.sent, ms(got.TTL), nil}
	if first.until()-now() < o.TTL*2/3 {
		// After a wait, the lease began long after the pre was sent: a heartbeat tells until when it lasts.
		it := &call{until: now() + least(o.TTL, c.nodes.retryFor)}
		renewal, err := c.nodes.call(ctx, beat, fields{"stamp": got.Stamp}, it)
		if err != nil {
			cancel()
			return nil, nil, nil, err
		}
		first = renewed{renewal.sent, ms(renewal.TTL), nil}
	}
	a.keeper = &keeper{name: "operation " + a.ID, beat: beat, stamp: got.Stamp, length: o.TTL, ended: cancel}
	a.keeper.renewed(first)
	c.renewals.keep(a.keeper)
	return a, work, func() { a.keeper.end(nil) }, nil
}

// postSuccess says whether the result was omitted.
func (c *Client) postSuccess(got answer, result any, o OnceOptions) (isOmitted bool, err error) {
	body := fields{"stamp": got.Stamp, "outcome": "success"}
	put(body, "retention_ms", o.Retention)
	put(body, "permanent", o.Permanent)
	path, until := "/v1/operations/"+got.ID+"/post", now()+most(c.nodes.retryFor, ms(got.TTL))
	text, failed := json.Marshal(result)
	if failed == nil {
		body["result"] = json.RawMessage(text)
		var posted answer
		if posted, err = c.nodes.call(context.Background(), path, body, &call{until: until}); err == nil {
			return posted.ResultOmitted, nil
		}
		failed = err
	}
	var refused *Error
	if err == nil || errors.As(err, &refused) && (refused.Status == 400 || refused.Status == 413) {
		warn("the result of operation %s is not stored: %v", got.ID, failed)
		delete(body, "result")
		_, err = c.nodes.call(context.Background(), path, body, &call{until: until})
	}
	if errors.As(err, &refused) {
		notRecorded := *refused
		notRecorded.Kind, notRecorded.Detail = ErrNotRecorded, "the work was done, but its outcome is not recorded: "+refused.Detail
		return true, &notRecorded
	}
	return true, err
}

// post reports after a failure, which is more important than that of the post.
func (c *Client) post(got answer, outcome string) {
	body := fields{"stamp": got.Stamp, "outcome": outcome}
	it := &call{until: now() + c.nodes.retryFor}
	if _, err := c.nodes.call(context.Background(), "/v1/operations/"+got.ID+"/post", body, it); err != nil {
		warn("the outcome %s of operation %s is not recorded: %v", outcome, got.ID, err)
	}
}
