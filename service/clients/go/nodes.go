package latchgate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	answerBytesMax     = 4 << 20
	pauseMin, pauseMax = 100 * time.Millisecond, time.Second
	timeoutMin         = 20 * time.Millisecond
	// The first request of a wait is short: its answer has a ticket, with which the position in the queue survives the node.
	firstWait = 500 * time.Millisecond
)

type fields = map[string]any

// nodes are those of one cluster. Nearly every request can be repeated, so a call goes on until a node has answered it.
type nodes struct {
	urls                           []string
	apiKey                         string
	timeout, retryFor, waitPerCall time.Duration
	http                           *http.Client
	// The node that is tried first. Another one takes its place when it does not answer.
	first atomic.Int32
}

// answer has the time at which its request was sent: what a lease has left counts from there.
type answer struct {
	sent   time.Duration
	status int
	raw    []byte
	known
}

// results are those of the leases that a request has named.
func (a answer) results() []answer {
	all := make([]answer, len(a.Results))
	for i, raw := range a.Results {
		all[i] = answer{sent: a.sent, raw: raw}
		_ = json.Unmarshal(raw, &all[i].known) // what is absent stays empty
		all[i].status = all[i].Status
	}
	return all
}

// noAnswer: the node was not reached, or did not answer in time or in full.
type noAnswer struct {
	detail     string
	retryAfter time.Duration
	sent       bool // the node may have carried out the request
}

func checkURL(text string) (string, error) {
	parts, err := url.Parse(text)
	if err != nil || parts.Scheme != "http" && parts.Scheme != "https" || parts.Host == "" || parts.RawQuery != "" || parts.Fragment != "" {
		return "", invalid(fmt.Sprintf("not the URL of a node: %q (example: http://127.0.0.1:7070)", text))
	}
	return strings.TrimRight(text, "/"), nil
}

// send is one request to one node. If that node cannot serve, the next request goes to another one.
func (n *nodes) send(ctx context.Context, path string, body []byte, timeout time.Duration) (answer, *noAnswer) {
	index := n.first.Load()
	got := answer{sent: now()}
	inTime, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	failed := n.post(inTime, n.urls[index]+path, body, &got)
	if failed != nil && ctx.Err() == nil || isTransient(got.status) {
		n.avoid(index)
	}
	return got, failed
}

func (n *nodes) avoid(index int32) {
	// Other goroutines may have moved on already.
	n.first.CompareAndSwap(index, (index+1)%int32(len(n.urls)))
}

func (n *nodes) post(ctx context.Context, url string, body []byte, got *answer) *noAnswer {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return &noAnswer{detail: err.Error()}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "latchgate-go")
	if n.apiKey != "" {
		request.Header.Set("Authorization", "Bearer "+n.apiKey)
	}
	response, err := n.http.Do(request)
	if err != nil {
		var dial *net.OpError
		return &noAnswer{detail: err.Error(), sent: !errors.As(err, &dial) || dial.Op != "dial"}
	}
	defer response.Body.Close()
	got.status = response.StatusCode
	got.raw, err = io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	if err != nil {
		return &noAnswer{detail: url + ": " + err.Error(), sent: true}
	}
	if json.Unmarshal(got.raw, &got.known) != nil || got.status >= 300 && got.Code == "" {
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After"))
		detail := fmt.Sprintf("%s: the answer with status %d is none of Latchgate's", url, got.status)
		return &noAnswer{detail, time.Duration(seconds) * time.Second, true}
	}
	return nil
}

// call is what is to be known of a call and its repeats.
type call struct {
	// When no node answers, the call ends then.
	until time.Duration
	// With hasWait, each request waits at the node, and the call goes on with tickets until waitUntil, and for retryFor after that while
	// no node answers. A wait does not begin in an outage: until a node has answered, `until` counts.
	hasWait   bool
	waitUntil time.Duration
	answered  bool
	// A node may have carried out the call, though no answer says so.
	doubt bool
	// It is not repeated in doubt.
	isOnce bool
}

// call posts the request, and repeats it until a node has answered it or its time is over. Each node gets a part of that time.
func (n *nodes) call(ctx context.Context, path string, body fields, c *call) (answer, error) {
	waits := c.hasWait && c.waitUntil > now()
	pause := pauseMin
	for tried := 0; ; {
		timeout, wait := n.times(c)
		if c.hasWait {
			body["wait_ms"] = 0
			if waits {
				// A call that waits gets the answer of a wait, also if only an outage has taken all of its time.
				body["wait_ms"] = most((wait+time.Millisecond-1)/time.Millisecond, 1)
			}
		}
		text, _ := json.Marshal(body) // what callers have put in is JSON already
		before, index, sent := c.doubt, n.first.Load(), now()
		c.doubt = true
		got, failed := n.send(ctx, path, text, timeout+wait)
		var err *Error
		var retryAfter time.Duration
		if failed != nil {
			c.doubt = before || failed.sent
			if ctx.Err() != nil {
				return answer{}, ctx.Err()
			}
			err, retryAfter = &Error{Kind: ErrUnavailable, Code: "no-answer", Detail: failed.detail}, failed.retryAfter
		} else if got.status < 300 {
			return got, nil
		} else {
			err = got.problem()
			c.decided(err, before)
			if got.Ticket != "" {
				body["ticket"] = got.Ticket // with it, the next request returns to its position
			}
			if err.Code == "invalid-ticket" && body["ticket"] != nil {
				delete(body, "ticket")
				continue
			}
			isOfWait := got.status == 423 || err.Kind == ErrOperationInProgress
			if isOfWait && c.hasWait && now() < c.waitUntil {
				c.answered, c.until = true, c.waitUntil+n.retryFor
				if now()-sent >= wait/2 {
					tried, pause = 0, pauseMin
					continue
				}
				n.avoid(index) // a node that is about to stop ends waits early
			} else if !isTransient(got.status) {
				return answer{}, err
			} else {
				retryAfter = got.retryAfter()
			}
		}
		left := c.until - now()
		if left <= 0 || retryAfter > left || c.doubt && c.isOnce {
			return answer{}, err
		}
		if tried++; tried%len(n.urls) == 0 {
			select {
			case <-time.After(least(jitter(most(retryAfter, pause), 1, 1.5), left)):
			case <-ctx.Done():
				return answer{}, ctx.Err()
			}
			pause = least(pause*2, pauseMax)
		}
	}
}

// times are how long the next request waits at its node, and how long the node may take beyond that.
func (n *nodes) times(c *call) (timeout, wait time.Duration) {
	left := c.until - now()
	if c.hasWait {
		wait = n.waitPerCall
		if !c.answered {
			wait = least(wait, firstWait, left/4)
		}
		wait = most(least(wait, c.waitUntil-now()), 0)
	}
	return most(least(n.timeout, left/3, left-wait), timeoutMin), wait
}

// decided: only a decision about this very call ends a doubt. A refusal for another reason says nothing about earlier requests.
func (c *call) decided(err *Error, before bool) {
	switch {
	case err.Status == 409 || err.Status == 410 || err.Status == 422 || err.Status == 423:
		c.doubt = false
	case err.Status != 500 && err.Code != "outcome-unknown":
		c.doubt = before
	}
}

func jitter(pause time.Duration, low, high float64) time.Duration {
	return time.Duration(float64(pause) * (low + rand.Float64()*(high-low)))
}

func least[T ~int | ~int64](first T, others ...T) T {
	for _, other := range others {
		if other < first {
			first = other
		}
	}
	return first
}

func most[T ~int | ~int64](first, second T) T { return -least(-first, -second) }
