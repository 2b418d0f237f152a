package latchgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	resultBytesMax = 64 << 10 // the most that a node keeps
	detailBytesMax = 1900     // with the line about the last heartbeat, less than the 2 KiB that a node keeps
)

// OnceOptions are those of Once. The zero value has the defaults.
type OnceOptions struct {
	// Checked is JSON that must be equal in all calls, but does not identify the operation.
	Checked any
	TTL     time.Duration // the length of the attempt's lease, kept by heartbeats: 60 s
	Wait    time.Duration // how long to wait for the end of another attempt: 60 s
	// OnExpiry: after an attempt that failed or vanished, an operator decides ("block", the default), or the next caller runs ("retry").
	OnExpiry   string
	Durability string // "fast" or "durable"
	// OnOutage: when no node answers or the gate's store is away, the call fails (""), or the work runs without a claim ("proceed"), so other
	// callers may run it too. Its success is entered afterwards, in the background, for as long as the process lives.
	OnOutage  string
	Retention time.Duration // how long a success is known, so that the work does not run again: a day
	Permanent bool          // a success is never forgotten
	Label     string        // what a person reads of the operation
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
	// Guarded is false if the gate did not answer and OnOutage is "proceed", so other callers may proceed too.
	Guarded bool
	// Reentry: an earlier attempt may have done part of the work.
	Reentry bool
	// PossiblyRepeated: the store may have lost the record of an earlier attempt.
	PossiblyRepeated bool `json:"possibly_repeated"`
	keeper           *keeper
	isUnclaimed      bool
}

// Err is nil while no other attempt can begin, and then an ErrAttemptLost. Ask before each step that cannot be undone. Of an attempt that is
// not guarded it is always nil.
func (a *Attempt) Err() error {
	if a.isUnclaimed {
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
	if err := notNegative(map[string]time.Duration{"TTL": options.TTL, "Wait": options.Wait, "Retention": options.Retention}); err != nil {
		return done, err
	}
	options.TTL, options.Wait, options.OnExpiry = or(options.TTL, time.Minute), or(options.Wait, time.Minute), or(options.OnExpiry, "block")
	request, err := options.request(operation, contents)
	if err != nil {
		return done, err
	}
	got, inDoubt, err := c.pre(ctx, request, options)
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
	ranAt, isClaimed := time.Now(), got.Stamp != ""
	attempt := &Attempt{}
	if isClaimed {
		_ = json.Unmarshal(got.raw, attempt) // that it is JSON is known
	}
	attempt.Guarded, attempt.isUnclaimed = isClaimed, !isClaimed
	ctx, cancel := context.WithCancel(ctx)
	outcome, hasReturned := "failure", true // until the work begins, surely nothing was done
	defer func() {
		var panicked any
		if !hasReturned {
			err = errors.New("latchgate: the work did not return")
			if panicked = recover(); panicked != nil {
				err = fmt.Errorf("panic: %v", panicked)
			}
		}
		cancel()
		detail := fmt.Sprintf("%T: %v", err, err)
		detail = strings.ToValidUTF8(detail[:least(len(detail), detailBytesMax)], "?")
		if attempt.keeper != nil {
			detail += attempt.keeper.stopAttempt()
		}
		switch {
		case outcome != "success" && isClaimed:
			c.post(got, outcome, detail, c.nodes.retryFor)
		case outcome != "success":
			c.unclaimed.end()
			if inDoubt {
				c.later(func() { c.giveBack(request, options, outcome, detail) })
			}
		case isClaimed:
			result := resultFields(operation, done.Result)
			done.ResultOmitted, err = c.postSuccess(got, result, runOf(request, ranAt, result), options.OnOutage == "proceed")
		default:
			result := resultFields(operation, done.Result)
			done.ResultOmitted = result["result_omitted"] != nil
			warning := "a run of operation " + operation + " without a claim is not entered"
			c.reportLater(&report{warning: warning, path: enterPath, body: runOf(request, ranAt, result)})
		}
		if panicked != nil {
			panic(panicked)
		}
	}()
	if isClaimed {
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
	hasReturned = false
	done.Result, err = work(ctx, attempt)
	if hasReturned = true; err == nil {
		outcome = "success"
	} else if errors.Is(err, ErrNotDone) {
		outcome = "failure" // only the work can know that nothing was done
	}
	return done, err
}

// request is the body of a pre.
func (o OnceOptions) request(operation string, contents any) (request fields, err error) {
	if o.OnOutage != "" && o.OnOutage != "proceed" {
		return nil, invalid(fmt.Sprintf("OnOutage is %q, and may be empty or proceed", o.OnOutage))
	}
	// The attempt_id names this attempt: a repeated pre gets the same stamp.
	request = fields{"operation": operation, "attempt_id": randomID(), "on_expiry": o.OnExpiry}
	if request["contents"], err = encodeIdentity("contents", contents); err == nil && o.Checked != nil {
		request["checked"], err = encodeIdentity("checked", o.Checked)
	}
	put(request, "ttl_ms", o.TTL)
	put(request, "durability", o.Durability)
	put(request, "label", o.Label)
	// Here, because what is refused is refused before the work.
	put(request, "retention_ms", o.Retention)
	put(request, "permanent", o.Permanent)
	return request, err
}

// pre has an answer without a stamp if the work may run without a claim; in doubt, a node may have claimed the operation for it.
func (c *Client) pre(ctx context.Context, request fields, o OnceOptions) (got answer, inDoubt bool, err error) {
	it := c.nodes.waiting("/v1/operations/pre", request, o.Wait, o.TTL)
	if got, err = c.nodes.claim(ctx, it); err == nil {
		return got, false, nil
	}
	if o.OnOutage == "proceed" && it.isOutage(err) && c.unclaimed.begin() {
		warn("operation %s runs without a claim: %v", request["operation"], err)
		return answer{}, it.doubt, nil
	}
	if it.doubt {
		c.later(func() { c.giveBack(request, o, "failure", "") })
	}
	return got, it.doubt, err
}

// claim is what a node has granted.
func (n *nodes) claim(ctx context.Context, pre *call) (got answer, err error) {
	pre.isOurs = func(got answer) bool { return got.ID != "" && got.Stamp != "" && got.TTL > 0 }
	return n.call(ctx, pre)
}

// giveBack repeats a pre until a node says whether it was claimed, at most for the length of its lease, and reports the outcome: a failure if
// the work has not begun, because a claim that stays would block the operation.
func (c *Client) giveBack(request fields, o OnceOptions, outcome, detail string) {
	pause := 2 * pauseMin
	for until := now() + o.TTL; now() < until; pause = least(2*pause, o.TTL/10) {
		it := c.nodes.callTo("/v1/operations/pre", request)
		it.doubt = true
		got, err := c.nodes.claim(context.Background(), it)
		if err == nil {
			c.post(got, outcome, detail, most(o.TTL, c.nodes.retryFor))
			return
		}
		if e := new(Error); errors.As(err, &e) && e.Code == "operation-unknown" {
			break // this claim may be what has ended
		}
		if !it.doubt {
			return
		}
		time.Sleep(pause)
	}
	warn("no node says whether an operation was claimed: it may stay blocked")
}

// resultFields are those of a result in a report. One that cannot be stored is omitted, and the success is recorded all the same.
func resultFields(operation string, result any) fields {
	text, err := encode("the result", result)
	if err == nil && len(text) > resultBytesMax {
		err = invalid("it is longer than 64 KiB")
	}
	if err != nil {
		warn("the result of operation %s is not stored: %v", operation, err)
		return fields{"result_omitted": true}
	}
	return fields{"result": text}
}

// postSuccess says whether the result was omitted. If it `proceeds`, an outage is no error: the success is reported later.
func (c *Client) postSuccess(got answer, body, run fields, proceeds bool) (isOmitted bool, err error) {
	body["stamp"], body["outcome"] = got.Stamp, "success"
	it := c.nodes.report("/v1/operations/"+got.ID+"/post", body, most(c.nodes.retryFor, ms(got.TTL)))
	posted, failure := c.nodes.call(context.Background(), it)
	later := &report{"the success of operation " + got.ID + " is not recorded", it.path, body, run, false}
	if proceeds && (later.changesToRun(failure) || errors.Is(failure, ErrUnavailable)) && c.unclaimed.begin() {
		c.reportLater(later)
		return body["result_omitted"] != nil, nil
	}
	if failure != nil {
		notRecorded := *failure.(*Error) // and not of a context
		notRecorded.Kind, notRecorded.Detail = ErrNotRecorded, "the work was done, but its outcome is not recorded: "+notRecorded.Detail
		return true, &notRecorded
	}
	return posted.ResultOmitted || body["result_omitted"] != nil, nil
}

// post reports after a failure, which is more important than that of the post.
func (c *Client) post(got answer, outcome, detail string, patience time.Duration) {
	body := fields{"stamp": got.Stamp, "outcome": outcome}
	if outcome == "unknown" { // a person must decide
		put(body, "detail", detail)
	}
	it := c.nodes.report("/v1/operations/"+got.ID+"/post", body, patience)
	if _, err := c.nodes.call(context.Background(), it); err != nil {
		warn("the outcome %s of operation %s is not recorded: %v", outcome, got.ID, err)
	}
}
