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
	"reflect"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	answerBytesMax     = 4 << 20
	pauseMin, pauseMax = 100 * time.Millisecond, time.Second
	timeoutMin         = 20 * time.Millisecond
	// The last request of a call has this time, too: with less, an answer of an outage would be cut.
	requestMin = 100 * time.Millisecond
	// The first request of a wait is short: its answer has a ticket, with which the position in the queue survives the node.
	firstWait = 500 * time.Millisecond
	// How long one request waits at most. Longer waits go on with tickets.
	waitPerCall = 20 * time.Second
)

// The codes of what is no answer of a node. A foreign answer is that of a gateway.
const noAnswer, foreignAnswer = "no-answer", "foreign-answer"

type fields = map[string]any

// nodes are those of one cluster. Nearly every request can be repeated, so a call goes on until a node has answered it.
type nodes struct {
	urls              []string
	apiKey            string
	timeout, retryFor time.Duration
	http              *http.Client
	// The node that a call asks first. Another one takes its place when it does not answer.
	first atomic.Int32
}

// answer is what this package reads of an answer, and of one of several results in it.
type answer struct {
	sent     time.Duration // when its request was sent: what a lease has left counts from there
	isUnsent bool          // the node cannot have carried out the request
	raw      json.RawMessage
	leaseRef
	Code, Detail, Why, Ticket string
	Type                      string
	Status                    int   // 0 if the node was not reached, or did not answer in time or in full
	RetryAfter                int64 `json:"retry_after_ms"`
	TTL                       int64 `json:"ttl_ms"`
	Revocation                *asked
	Results                   []json.RawMessage
	Owner                     string
	Token                     int64
	Outcome                   string
	Slots                     []int
	Locks                     []answer
	ID, Stamp                 string
	Result                    json.RawMessage
	ResultOmitted             bool `json:"result_omitted"`
	DoubleRun                 bool `json:"double_run"`
}

// results are those of the leases that a request has named.
func (a answer) results() map[leaseRef]answer {
	all := map[leaseRef]answer{}
	for _, raw := range a.Results {
		one := answer{sent: a.sent, raw: raw}
		_ = json.Unmarshal(raw, &one) // what is absent stays empty
		all[one.leaseRef] = one
	}
	return all
}

func ms(count int64) time.Duration { return time.Duration(count) * time.Millisecond }

// send is one request to one node. If that node cannot serve, the next call begins at another one.
func (n *nodes) send(ctx context.Context, index int32, path string, body fields, timeout time.Duration) answer {
	got := answer{sent: now()}
	inTime, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := n.post(inTime, n.urls[index]+path, body, &got); err != nil {
		var dial *net.OpError
		isUnsent := errors.As(err, &dial) && dial.Op == "dial"
		code := noAnswer
		if other, is := err.(foreign); is {
			// A gateway that refuses has not passed the request on; 408 may come after it has.
			isUnsent = other.status >= 300 && other.status < 500 && other.status != 408
			if !other.isOutage() {
				code = foreignAnswer
			}
		}
		got = answer{sent: got.sent, isUnsent: isUnsent, RetryAfter: got.RetryAfter, Code: code, Detail: err.Error()}
	}
	if ctx.Err() == nil && isTransient(got.Status) {
		n.avoid(index)
	}
	return got
}

func (n *nodes) post(ctx context.Context, url string, body fields, got *answer) error {
	text, _ := json.Marshal(body) // what callers have put in is JSON already
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "latchgate-go")
	if n.apiKey != "" {
		request.Header.Set("Authorization", "Bearer "+n.apiKey)
	}
	response, err := n.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got.raw, err = io.ReadAll(io.LimitReader(response.Body, answerBytesMax))
	isWhole, status := err == nil && len(got.raw) < answerBytesMax, response.StatusCode
	// A refusal is one of a node if its type names its code, whatever its other members are.
	if err = json.Unmarshal(got.raw, got); isWhole && (status < 300 && err == nil || status >= 300 && got.Code != "" && got.Type == "/errors/"+got.Code) {
		got.Status = status
		return nil
	}
	seconds, _ := strconv.ParseInt(response.Header.Get("Retry-After"), 10, 32)
	got.RetryAfter = seconds * 1000
	return foreign{url, status, isWhole, isWhole && json.Valid(got.raw)}
}

// foreign is an answer that is none of a node, or is not whole.
type foreign struct {
	url             string
	status          int
	isWhole, isJSON bool
}

func (f foreign) Error() string {
	what := "none of Latchgate's"
	if !f.isWhole {
		what = "not whole"
	}
	return fmt.Sprintf("%s: the answer with status %d is %s", f.url, f.status, what)
}

// isOutage: the gateway says that it reaches no node, or the answer does not say what was granted: it is a 2xx that is no JSON.
func (f foreign) isOutage() bool {
	if f.status/100 == 2 {
		return !f.isJSON
	}
	return f.isWhole && f.status >= 502 && f.status <= 504
}

func (n *nodes) avoid(index int32) {
	// Other goroutines may have moved on already.
	n.first.CompareAndSwap(index, n.after(index))
}

func (n *nodes) after(index int32) int32 { return (index + 1) % int32(len(n.urls)) }

// call is a call with what is known of it and its repeats.
type call struct {
	path string
	body fields
	keys []string // that an answer must be about; none if the path has an id
	// When no node answers, the call ends then.
	until time.Duration
	// Each request waits at the node, and the call goes on with tickets until waitUntil, and for retryFor after that while no node
	// answers. A wait does not begin in an outage: until a node has answered, `until` counts.
	waitUntil time.Duration
	answered  bool
	// What is granted after a wait lasts from then on, but is counted from when the request was sent: so one request waits only for a part
	// of that.
	length time.Duration
	// A node may have carried out the call, though no answer says so.
	doubt bool
	// It is not repeated in doubt.
	isOnce bool
	// Whether a 2xx is one of this service.
	isOurs func(answer) bool
}

func (n *nodes) callTo(path string, body fields) *call {
	return &call{path: path, body: body, until: now() + n.retryFor}
}

// report is a call whose answer has the outcome that it has recorded.
func (n *nodes) report(path string, body fields, patience time.Duration) *call {
	return &call{path: path, body: body, until: now() + patience, isOurs: func(got answer) bool { return got.Outcome != "" }}
}

// callAbout is a call whose path has the key: something in between may change that, a//b into a/b for example.
func (n *nodes) callAbout(key, verb string, body fields) *call {
	c := n.callTo(lockPath(key, verb), body)
	c.keys = []string{key}
	return c
}

func (n *nodes) waiting(path string, body fields, wait, length time.Duration) *call {
	c := n.callTo(path, body)
	c.waitUntil, c.length = now()+most(least(wait, Forever), 0), length
	return c
}

// call posts the request, and repeats it until a node has answered it or its time is over. Each node gets a part of that time.
func (n *nodes) call(ctx context.Context, c *call) (answer, error) {
	if err := checkJSON("request", reflect.ValueOf(c.body), 0); err != nil {
		return answer{}, err
	}
	waits, body := c.waitUntil > now(), c.body
	pause := pauseMin
	var retryAfter time.Duration // the longest that a node has asked for since the last pause
	var err *Error               // the last answer; if there was none, why
	index := n.first.Load()      // other calls change it: this one asks each node in turn
	for tried := 0; ; {
		timeout, wait := n.times(c)
		delete(body, "wait_ms")
		if waits {
			// A call that waits gets the answer of a wait, also if only an outage has taken all of its time.
			body["wait_ms"] = most((wait+time.Millisecond-1)/time.Millisecond, 1)
		}
		got := n.send(ctx, index, c.path, body, timeout+wait)
		if other := c.isAnswered(got); other != nil {
			c.doubt = true
			return got, other
		}
		c.decided(got)
		if ctx.Err() != nil && got.Status == 0 {
			return got, ctx.Err()
		}
		if got.Status/100 == 2 {
			if c.isOurs == nil || c.isOurs(got) {
				return got, nil
			}
			n.avoid(index)
			got = answer{sent: got.sent, Code: foreignAnswer, Detail: fmt.Sprintf("the answer to %s with status %d is none of Latchgate's", c.path, got.Status)}
		}
		said := got.problem()
		if got.Ticket != "" {
			body["ticket"] = got.Ticket // with it, the next request returns to its position
		}
		if said.Code == "invalid-ticket" && body["ticket"] != nil {
			delete(body, "ticket")
			continue
		}
		// Silence is no outage once a node has answered. And the last of the time is too short for an answer: why there was none before
		// says more.
		isLate := now()-got.sent >= timeout+wait
		if err == nil || said.Code != noAnswer || err.Code == noAnswer && !isLate {
			err = said
		}
		isOfWait := got.Status == 423 || said.Kind == ErrOperationInProgress
		if isOfWait && now() < c.waitUntil {
			c.answered, c.until = true, c.waitUntil+n.retryFor
			if now()-got.sent >= wait/2 {
				tried, pause, retryAfter = 0, pauseMin, 0
				continue
			}
			n.avoid(index) // a node that is about to stop ends waits early
		} else if !isTransient(got.Status) {
			return got, err
		} else {
			retryAfter = most(retryAfter, ms(got.RetryAfter))
			if said.Code == "quota-reached" && now() < c.waitUntil {
				c.until = c.waitUntil + n.retryFor
			}
		}
		left := c.until - now()
		tried, index = tried+1, n.after(index)
		// As many requests as nodes are made in any case, so that each of them is asked.
		isOver := tried >= len(n.urls) && retryAfter > left-requestMin
		if isOver || c.doubt && c.isOnce {
			return got, err
		}
		if tried%len(n.urls) == 0 {
			select {
			case <-time.After(least(jitter(most(retryAfter, pause), 1, 1.5), left-requestMin)):
			case <-ctx.Done():
				return got, ctx.Err()
			}
			pause, retryAfter = least(pause*2, pauseMax), 0
		}
	}
}

// times are how long the next request waits at its node, and how long the node may take beyond that.
func (n *nodes) times(c *call) (timeout, wait time.Duration) {
	left := c.until - now()
	wait = least(waitPerCall, c.length/3)
	if !c.answered {
		wait = least(wait, firstWait, left/4)
	}
	wait = most(least(wait, c.waitUntil-now()), 0)
	return least(n.timeout, most(least(left/3, left-wait), requestMin)), wait
}

// nothingDone has the codes of 500 and above with which a node says that it has done nothing.
var nothingDone = map[string]bool{"overloaded": true, "store-unavailable": true, "shutting-down": true, "state-unreadable": true}

// decided: only a decision about this very call ends a doubt. A refusal for another reason says nothing about earlier requests.
func (c *call) decided(got answer) {
	switch got.Status {
	case 409, 410, 422, 423:
		c.doubt = false
	case 0:
		c.doubt = c.doubt || !got.isUnsent
	default:
		// Of the answers of 500 and above, those of a gateway and those about a defect say nothing.
		c.doubt = c.doubt || got.Status < 300 || got.Status >= 500 && !nothingDone[got.Code]
	}
}

// isAnswered is an error if the answer is about another key. A refusal need not name one.
func (c *call) isAnswered(got answer) error {
	about := []leaseRef{got.leaseRef}
	for i, lock := range got.Locks {
		about = append(about[:i], lock.leaseRef)
	}
	isGranted := got.Status/100 == 2
	for i, key := range c.keys {
		if said := about[least(i, len(about)-1)].Key; said != key && (isGranted || len(c.keys) == 1 && said != "") {
			detail := fmt.Sprintf("the answer is about the key %q, not %q: a proxy in front of the nodes may change the paths of requests", said, key)
			return &Error{Kind: ErrRefused, Code: "other-key", Detail: detail, Status: got.Status}
		}
	}
	return nil
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
