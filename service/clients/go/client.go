// Package latchgate is a client of Latchgate: distributed locks, and work that is done once.
//
//	client, err := latchgate.New(latchgate.Config{})
//	lease, err := client.Lock(ctx, "orders/42", latchgate.Options{})
//	if err != nil {
//		return err
//	}
//	defer lease.Release()
//	return save(lease.Context(), order, lease.Token())
package latchgate

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"math"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"
)

// For giving back a lease that may have been granted to a caller that has gone, and how long Close waits for that.
const (
	giveBack    = 2 * time.Second
	giveBackMax = 5 * time.Second
)

var (
	apiKeyForm = regexp.MustCompile(`^(lgk_[0-9A-Za-z_]+)?$`)
	// Without white space, control and format characters. Its third group is the port.
	urlForm = regexp.MustCompile(`^https?://(\[[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(?:%25[\w.~-]+)?\]|[^\pC\pZ/?#@%＠﹫％:\[\]\\]+)(:([0-9]{0,5}))?(/[^\pC\pZ?#@\\]*)?$`)
)

// Config is how to reach the nodes. The zero value has the defaults.
type Config struct {
	// URLs of the nodes, each of which may be several with commas in between; if absent, those in LATCHGATE_URL, or
	// http://127.0.0.1:7070. If a node does not answer, the next one is called.
	URLs []string
	// APIKey is, if absent, that in LATCHGATE_API_KEY, or none.
	APIKey string
	// RetryFor: when no node answers, a call ends after this time in all (2 s): beyond its wait, if a node has answered it before.
	// A renewal is repeated until the lease ends, and the report that work was done for as long as the attempt lasts.
	RetryFor time.Duration
	// Timeout: how long one node may take to answer, beyond the time that a call waits there (5 s); a third of the time that the call
	// has left if that is less.
	Timeout time.Duration
	// HTTPClient is for TLS settings and proxies of your own. Without one, the authorities in the file that LATCHGATE_CA names are
	// trusted, or those of the system.
	HTTPClient *http.Client
}

// Client is for the nodes of one cluster. Goroutines share it, and should: the leases of one client are renewed together.
type Client struct {
	nodes      *nodes
	renewals   *renewals
	background sync.WaitGroup
	mu         sync.Mutex
	queues     map[string]*queue // of callers in this process
	unclaimed  unclaimed
}

// New makes a client. It calls no node.
func New(config Config) (*Client, error) {
	if err := notNegative(map[string]time.Duration{"RetryFor": config.RetryFor, "Timeout": config.Timeout}); err != nil {
		return nil, err
	}
	n := &nodes{
		apiKey:   or(strings.TrimSpace(config.APIKey), strings.TrimSpace(os.Getenv("LATCHGATE_API_KEY"))),
		timeout:  or(config.Timeout, 5*time.Second),
		retryFor: or(config.RetryFor, 2*time.Second),
		http:     config.HTTPClient,
	}
	if !apiKeyForm.MatchString(n.apiKey) {
		// The message shows nothing of it.
		return nil, invalid("the API key has the wrong form: it is one line of letters, digits and _, and begins with lgk_")
	}
	urls := config.URLs
	if len(urls) == 0 {
		url, err := variable("LATCHGATE_URL")
		if err != nil {
			return nil, err
		}
		urls = []string{or(url, "http://127.0.0.1:7070")}
	}
	given := strings.Join(urls, ",")
	if strings.Contains(given, "@") {
		return nil, invalid("a URL has a login, which no node takes: give an API key")
	}
	for _, text := range strings.Split(given, ",") {
		if text = strings.TrimRight(strings.TrimSpace(text), "/"); text == "" {
			continue
		}
		form := urlForm.FindStringSubmatch(text)
		parsed, err := url.Parse(text)
		if err == nil && strings.HasPrefix(parsed.Host, "[") {
			_, err = netip.ParseAddr(parsed.Hostname())
		}
		if err != nil || form == nil || len(form[3]) == 5 && form[3] > "65535" {
			// It is not shown: it may have a login or an API key.
			return nil, invalid("one of the URLs is not that of a node (example: http://127.0.0.1:7070)")
		}
		n.urls = append(n.urls, text)
	}
	if len(n.urls) == 0 {
		return nil, invalid("no URL of a node (example: http://127.0.0.1:7070)")
	}
	if n.http == nil {
		authorities, err := readAuthorities()
		if err != nil {
			return nil, err
		}
		n.http = &http.Client{Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: authorities},
			Proxy:               http.ProxyFromEnvironment,
			MaxIdleConnsPerHost: 16,
			IdleConnTimeout:     10 * time.Second, // nodes close idle connections after 15 s
			// No HTTP/2: a request without an answer would leave the next ones on the same dead connection.
			TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		}}
	}
	client := *n.http
	if client.Transport == nil {
		client.Transport = http.DefaultTransport
	}
	client.Transport = direct{client.Transport}
	n.http = &client
	return &Client{nodes: n, renewals: newRenewals(n), queues: map[string]*queue{}}, nil
}

// direct: a redirection is an answer of a gateway, also to what is no URL, of which the package net/http says only that it cannot be parsed.
type direct struct{ http.RoundTripper }

func (d direct) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.RoundTripper.RoundTrip(request)
	if response != nil {
		response.Header.Del("Location")
	}
	return response, err
}

// variable refuses an empty value: the default would be another service, or other authorities.
func variable(name string) (string, error) {
	value, isSet := os.LookupEnv(name)
	value = strings.TrimSpace(value)
	if isSet && value == "" {
		return "", invalid(name + " is set and empty")
	}
	return value, nil
}

func readAuthorities() (*x509.CertPool, error) {
	path, err := variable("LATCHGATE_CA")
	if err != nil || path == "" {
		return nil, err // without a path, those of the system
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, invalid("LATCHGATE_CA: " + err.Error())
	}
	authorities := x509.NewCertPool()
	if !authorities.AppendCertsFromPEM(text) {
		return nil, invalid(path + " (LATCHGATE_CA) has no certificate in PEM")
	}
	return authorities, nil
}

// Close waits until what calls without an answer may have been granted is given back, and until runs without a claim are entered, for 5 s at
// most. Runs that are not entered then are reported in the log. Leases go on until they are released.
func (c *Client) Close() {
	done := make(chan struct{})
	go func() { c.background.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(giveBackMax):
		c.unclaimed.warn()
	}
}

// Fence is for a resource that cannot store tokens: an ErrStaleToken says that a higher token has been granted or presented for the key.
func (c *Client) Fence(ctx context.Context, key string, token int64) error {
	_, err := c.nodes.call(ctx, c.nodes.callAbout(key, "fence", fields{"token": token}))
	return err
}

// RevokeOptions are those of Revoke. The zero value revokes all leases of the key.
type RevokeOptions struct {
	Reason, By string
	Grace      time.Duration // until the leases end: 10 s
	Token      int64         // only the leases with this token
}

// Revoking is how many leases are revoked, and when the last of them ends: RFC 3339, by the store's clock.
type Revoking struct {
	Leases   int
	Deadline string
}

// Revoke asks the holders to release. If the answer is lost, that is an ErrUnavailable, and not repeated without a token: it could ask
// the next holder.
func (c *Client) Revoke(ctx context.Context, key string, options RevokeOptions) (revoking Revoking, err error) {
	if err := notNegative(map[string]time.Duration{"Grace": options.Grace}); err != nil {
		return revoking, err
	}
	body := fields{}
	put(body, "reason", options.Reason)
	put(body, "by", options.By)
	put(body, "grace_ms", options.Grace)
	put(body, "token", options.Token)
	it := c.nodes.callAbout(key, "revoke", body)
	it.isOnce = options.Token == 0
	got, err := c.nodes.call(ctx, it)
	_ = json.Unmarshal(got.raw, &revoking) // a problem has none of its fields
	return revoking, err
}

// later gives back what may never have been granted. A failure does not matter, because it ends by its TTL.
func (c *Client) later(work func()) {
	c.background.Add(1)
	go func() { defer c.background.Done(); work() }()
}

func lockPath(key, verb string) string { return "/v1/locks/" + url.PathEscape(key) + "/" + verb }

// notNegative refuses a negative duration by the name of its option. NoWait is one.
func notNegative(durations map[string]time.Duration) error {
	for name, value := range durations {
		if value < 0 && !(name == "Wait" && value == NoWait) {
			return invalid(fmt.Sprintf("%s is %v, and must not be negative", name, value))
		}
	}
	return nil
}

// put leaves out what has not been set. Durations become milliseconds, and never none.
func put[T comparable](body fields, name string, value T) {
	var none T
	if value == none {
		return
	}
	body[name] = value
	if duration, is := any(value).(time.Duration); is {
		body[name] = int64(math.Copysign(math.Ceil(math.Abs(float64(duration)/1e6)), float64(duration)))
	}
}

func or[T comparable](value, otherwise T) T {
	var none T
	if value == none {
		return otherwise
	}
	return value
}

func randomID() string {
	var random [16]byte
	if _, err := rand.Read(random[:]); err != nil {
		panic("latchgate: no random numbers: " + err.Error())
	}
	return fmt.Sprintf("%x", random)
}

// ownerName is another one for each lease: only nested leases have the owner of another one.
func ownerName() string {
	host, _ := os.Hostname()
	return fmt.Sprintf("%.60s:%d %.40s/%.12s", or(host, "client"), os.Getpid(), filepath.Base(os.Args[0]), randomID())
}

func warn(format string, arguments ...any) { log.Printf("latchgate: "+format, arguments...) }
