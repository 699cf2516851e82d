package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"flotilla.dev/hub/e2e/harness"
	"flotilla.dev/shared/wire"
)

// unauthenticatedAttacks need only access to the network.
func unauthenticatedAttacks() []attack {
	return []attack{
		{name: "unfinished-bodies", slow: true, by: "stranger", files: 2500,
			does: "2,500 connections each with half a POST /join", run: unfinished("POST /join HTTP/1.1\r\nHost: "+
				"HOST\r\nContent-Type: application/json\r\nContent-Length: 20000\r\n\r\n{\"token\":\"", true)},
		{name: "unfinished-logins", slow: true, by: "stranger", files: 2500,
			does: "2,500 connections each with half a POST /login", run: unfinished("POST /login HTTP/1.1\r\nHost: "+
				"HOST\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 2000\r\n\r\nname=a", true)},
		{name: "unfinished-api-bodies", slow: true, by: "stranger", files: 2500,
			does: "2,500 connections each with half a POST of a pod",
			run: unfinished("POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: HOST\r\nContent-Type: "+
				"application/json\r\nContent-Length: 2000\r\n\r\n{", true)},
		{name: "unfinished-headers", slow: true, by: "stranger", files: 2500,
			does: "2,500 connections each with half a header", run: unfinished("GET / HTTP/1.1\r\nHost: HOST\r\nX-A", true)},
		{name: "unfinished-handshakes", slow: true, by: "stranger", files: 2500,
			does: "2,500 connections to HTTPS without a request", run: unfinished("", false)},
		{name: "idle-mqtt", slow: true, by: "stranger", files: 2500, does: "2,500 connections to MQTT without a packet",
			run: idleMQTT},
		{name: "huge-mqtt-packets", by: "stranger", does: "500 connections to MQTT whose first packet claims 256 MiB",
			run: hugeMQTT},
		{name: "join-flood", slow: true, by: "stranger", does: "malformed and wrong join tokens as fast as possible, " +
			"while ten good devices join", run: joinFlood},
		{name: "guessed-passwords", slow: true, by: "stranger", does: "300 passwords guessed at once for a user that exists",
			run: guesses},
		{name: "login-flood", slow: true, by: "stranger", does: "passwords of one user, of many and of unknown users, as " +
			"fast as possible", run: loginFlood},
		{name: "anonymous-routes", by: "stranger", does: "the API, the metrics and the page without any credential",
			run: anonymous},
		{name: "foreign-origin", by: "stranger", does: "a page on another port of the operator's own machine uses the " +
			"session's cookie for a WebSocket", run: foreignOrigin},
	}
}

// unfinished opens many connections, and sends the beginning of a request on each. During the
// attack a device must connect and the API must answer. At the end the hub must have closed all
// connections.
func unfinished(beginning string, overTLS bool) func(context.Context, *harness.Hub) (string, error) {
	return func(ctx context.Context, a *harness.Hub) (string, error) {
		const count = 2500
		d, err := a.NewDevice(ctx, "before", "00000000000000b1") // it joins before the attack, because joining needs HTTPS
		if err != nil {
			return "", err
		}
		head := strings.Replace(beginning, "HOST", a.HTTPS, 1)
		open := many(ctx, count, func() (net.Conn, error) {
			raw, err := net.DialTimeout("tcp", a.HTTPS, 5*time.Second)
			if err != nil {
				return nil, err
			}
			if !overTLS {
				return raw, nil
			}
			_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
			c := tls.Client(raw, &tls.Config{RootCAs: a.Roots, ServerName: "127.0.0.1"})
			if _, err := c.Write([]byte(head)); err != nil {
				_ = raw.Close()
				return nil, err
			}
			_ = raw.SetDeadline(time.Time{})
			return c, nil
		})
		defer closeAll(open)
		l, err := d.Online(ctx)
		if err != nil {
			return "", fmt.Errorf("with %d of %d connections stuck, a device cannot connect: %w", len(open), count, err)
		}
		defer l.Close()
		left, took := awaitClosed(ctx, open, 90*time.Second)
		seen := fmt.Sprintf("%d of %d connected, %d left after %s", len(open), count, left, took.Round(time.Second))
		if left > 0 {
			return seen, errors.New("idle connections stay open")
		}
		return seen, newcomer(ctx, a)
	}
}

// many opens connections concurrently, and returns those that were accepted.
func many(ctx context.Context, count int, dial func() (net.Conn, error)) []net.Conn {
	var mu sync.Mutex
	var open []net.Conn
	harness.Each(ctx, count, 64, func(int) {
		if c, err := dial(); err == nil {
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
		}
	})
	return open
}

func closeAll(open []net.Conn) {
	for _, c := range open {
		_ = c.Close()
	}
}

// awaitClosed waits until the hub has closed every connection.
func awaitClosed(ctx context.Context, open []net.Conn, within time.Duration) (left int, took time.Duration) {
	start := time.Now()
	var stuck atomic.Int64
	stuck.Store(int64(len(open)))
	var wg sync.WaitGroup
	for _, c := range open {
		wg.Go(func() {
			_ = c.SetReadDeadline(start.Add(within))
			buf := make([]byte, 4096)
			for {
				if _, err := c.Read(buf); err != nil {
					var timeout net.Error
					if !errors.As(err, &timeout) || !timeout.Timeout() {
						stuck.Add(-1)
					}
					return
				}
			}
		})
	}
	wg.Wait()
	return int(stuck.Load()), time.Since(start)
}

// newcomer joins a good device, connects it and waits until it is Ready.
func newcomer(ctx context.Context, a *harness.Hub) error {
	start := time.Now()
	d, err := a.NewDevice(ctx, fmt.Sprintf("new-%d", start.UnixNano()), fmt.Sprintf("%016x", start.UnixNano()))
	if err != nil {
		return fmt.Errorf("a good device cannot join: %w", err)
	}
	l, err := d.Online(ctx)
	if err != nil {
		return fmt.Errorf("a good device that has joined cannot connect: %w", err)
	}
	defer l.Close()
	if took := time.Since(start); took > 10*time.Second {
		return fmt.Errorf("a good device needs %s to become Ready", took)
	}
	return a.Answers(ctx, 5*time.Second)
}

func idleMQTT(ctx context.Context, a *harness.Hub) (string, error) {
	d, err := a.NewDevice(ctx, "before", "00000000000000b1") // joined before the attack
	if err != nil {
		return "", err
	}
	open := many(ctx, 2500, func() (net.Conn, error) { return net.DialTimeout("tcp", a.MQTT, 5*time.Second) })
	defer closeAll(open)
	var l *harness.Link
	if err := harness.Until(ctx, 15*time.Second, "a good device connects", func() (bool, error) {
		l, err = d.Online(ctx)
		return err == nil, err
	}); err != nil {
		return "", err
	}
	defer l.Close()
	left, took := awaitClosed(ctx, open, 30*time.Second)
	seen := fmt.Sprintf("%d left after %s", left, took.Round(time.Second))
	if left > 0 {
		return seen, errors.New("idle connections stay open")
	}
	return seen, nil
}

func hugeMQTT(ctx context.Context, a *harness.Hub) (string, error) {
	const count = 500
	open := many(ctx, count, func() (net.Conn, error) {
		c, err := net.DialTimeout("tcp", a.Dev, 5*time.Second)
		if err == nil {
			_, _ = c.Write([]byte{0x10, 0xff, 0xff, 0xff, 0x7f})
		}
		return c, err
	})
	defer closeAll(open)
	left, _ := awaitClosed(ctx, open, 5*time.Second)
	if left += count - len(open); left > 0 {
		return "", fmt.Errorf("%d of %d were not closed, or did not connect", left, count)
	}
	return "all closed", nil
}

// joinFlood sends bad tokens: malformed tokens, unknown ids, and wrong secrets for a valid id,
// which an attacker may have seen.
func joinFlood(ctx context.Context, a *harness.Hub) (string, error) {
	good, err := a.Token(ctx, "--site", "oslo", "--uses", "100")
	if err != nil {
		return "", err
	}
	parts := strings.Split(good, ".")
	bad := []string{
		"x", "FLT1.a.b.c", strings.Join([]string{parts[0], parts[1], "nobody", "wrong"}, "."),
		strings.Join([]string{parts[0], parts[1], parts[2], "wrong"}, "."),
	}
	stop, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	var tries, limited, in atomic.Int64
	var flood sync.WaitGroup
	for i := range 16 {
		flood.Go(func() {
			c := a.Client()
			for n := i; stop.Err() == nil && n < 16*2000; n++ {
				code, _, err := a.Call(stop, c, http.MethodPost, wire.PathJoin, "application/json",
					fmt.Sprintf(`{"token":%q,"csr":"x"}`, bad[n%len(bad)]))
				if err == nil {
					tries.Add(1)
				}
				switch {
				case code/100 == 2:
					in.Add(1)
				case code == http.StatusTooManyRequests:
					limited.Add(1)
				}
			}
		})
	}
	wrote := a.Wrote()
	let := 0
	var last error
	for i := range 10 {
		harness.Pause(stop, time.Second)
		if _, err := a.Join(ctx, good, fmt.Sprintf("good-%d", i), fmt.Sprintf("%016x", 100+i)); err == nil {
			let++
		} else {
			last = err
		}
	}
	cancel()
	flood.Wait()
	seen := fmt.Sprintf("%d tries, %d of them refused as too many; %d of 10 good devices joined; %d KiB written",
		tries.Load(),
		limited.Load(), let, (a.Wrote()-wrote)>>10)
	switch {
	case in.Load() > 0:
		return seen, fmt.Errorf("%d bad tokens were accepted", in.Load())
	case tries.Load() == 0:
		return seen, errors.New("nothing was tried")
	case let < 10:
		return seen, fmt.Errorf("good devices are refused: %w", last)
	}
	return seen, nil
}

func guesses(ctx context.Context, a *harness.Hub) (string, error) {
	if err := a.User(ctx, "kari", "admin"); err != nil {
		return "", err
	}
	var checked, in atomic.Int64
	harness.Each(ctx, 300, 300, func(i int) {
		code, cookie, err := a.Login(ctx, a.Client(), "kari", fmt.Sprintf("guess %d", i))
		switch {
		case err == nil && cookie != nil:
			in.Add(1)
		case err == nil && code != http.StatusTooManyRequests && code < 500:
			checked.Add(1)
		}
	})
	seen := fmt.Sprintf("%d of 300 checked", checked.Load())
	if checked.Load() > 10 || in.Load() > 0 {
		return seen, errors.New("more than ten guesses were checked")
	}
	return seen, nil
}

func anonymous(ctx context.Context, a *harness.Hub) (string, error) {
	c := a.Client()
	for _, path := range []string{
		"/api/v1/nodes", "/api/v1/secrets", "/apis/apps/v1/deployments", "/metrics", "/api/v1/namespaces/default/pods/x/log",
		"/apis/certificates.k8s.io/v1/certificatesigningrequests", "/nodes", "/audit", "/settings", "/account",
	} {
		code, body, err := a.Call(ctx, c, http.MethodGet, path, "", "")
		if err != nil {
			return "", err
		}
		if code == http.StatusOK {
			return "", fmt.Errorf("GET %s: %d: %.100q", path, code, body)
		}
	}
	return "all refused", nil
}

func foreignOrigin(ctx context.Context, a *harness.Hub) (string, error) {
	if err := a.User(ctx, "kari", "admin"); err != nil {
		return "", err
	}
	_, cookie, err := a.Login(ctx, a.Client(), "kari", harness.Password)
	if err != nil || cookie == nil {
		return "", fmt.Errorf("log in: %w", err)
	}
	for _, origin := range []string{"http://localhost:3000", "http://127.0.0.1:8000", "https://[::1]:1", "file://",
		"null", "https://evil.example"} {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL("/api/v1/secrets?watch=true"), nil)
		if err != nil {
			return "", err
		}
		for k, v := range map[string]string{"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
			"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Origin": origin} {
			r.Header.Set(k, v)
		}
		r.AddCookie(&http.Cookie{Name: cookie.Name, Value: cookie.Value})
		c := a.Client()
		c.Transport.(*http.Transport).ForceAttemptHTTP2 = false
		c.Transport.(*http.Transport).TLSClientConfig.NextProtos = []string{"http/1.1"}
		resp, err := c.Do(r)
		if err != nil {
			return "", err
		}
		_ = resp.Body.Close()
		if resp.StatusCode == http.StatusSwitchingProtocols || resp.StatusCode == http.StatusOK {
			return "", fmt.Errorf("origin %s with the session's cookie: %s", origin, resp.Status)
		}
	}
	return "all refused", nil
}
