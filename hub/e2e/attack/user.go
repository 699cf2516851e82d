package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"flotilla.dev/hub/e2e/harness"
)

// userAttacks use the login of a viewer, an operator or a deleted user.
func userAttacks() []attack {
	return []attack{
		{name: "endless-pod", by: "operator", does: "pods, budgets and workloads with invalid quantities, names and " +
			"texts", run: endlessPod},
		{name: "huge-patch", by: "operator", does: "patches of 3 MB, JSON patches that copy, YAML that refers to itself",
			run: hugePatch, heavy: true},
		{name: "million-elements", by: "operator", does: "60 requests at once with 900,000 or 16,000 empty elements, " +
			"in each encoding", run: millionElements},
		{name: "deleted-operator", by: "former operator", does: "reads further secrets through an open watch",
			run: deletedOperator},
		{name: "unread-streams", slow: true, by: "operator", does: "128 shells and ports over SPDY, with megabytes that " +
			"the pod does not read and responses that are not read", run: unreadStreams},
		{name: "unread-sockets", slow: true, by: "operator", does: "128 shells and ports over WebSockets, and pings whose responses " +
			"nobody reads", run: unreadSockets},
		{name: "log-pattern", slow: true, by: "viewer", does: "node log queries with patterns that repeat patterns",
			run: logPattern},
		{name: "unread-lists", slow: true, by: "viewer", does: "60 lists of about 20 MB each, requested and not read",
			run: unreadLists},
		{name: "unread-watches", slow: true, by: "viewer", does: "400 watches that begin with about 7 MB each, requested " +
			"and not read", run: unreadWatches},
		{name: "refused-writes", slow: true, by: "viewer", does: "20,000 writes that are refused, each of them an audit row",
			run: refusedWrites},
	}
}

func pod(name string, spec map[string]any) string {
	container := map[string]any{"name": "c", "image": "x"}
	for k, v := range spec {
		container[k] = v
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": name},
		"spec": map[string]any{"containers": []any{container}}})
	if err != nil {
		panic(err) // a mistake in the attack's code
	}
	return string(body)
}

func endlessPod(ctx context.Context, a *harness.Hub) (string, error) {
	operator, err := a.As(ctx, "operator", "ola")
	if err != nil {
		return "", err
	}
	const pods, kind = "/api/v1/namespaces/default/pods", "application/json"
	bad := map[string]string{}
	for i, q := range []string{"1e999999999", "1e-999999999", "-1e999999999", "9e2147483647", strings.Repeat("9", 5000)} {
		bad[pod(fmt.Sprintf("q%d", i),
			map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": q},
				"limits": map[string]any{"cpu": q}}})] = q
	}
	bad[pod("nul", map[string]any{"env": []any{map[string]any{"name": "A", "value": "a\x00b"}}})] = "a NUL"
	bad[pod("nulcommand", map[string]any{"command": []any{"a\x00b"}})] = "a NUL in a command"
	bad[pod("nulimage", map[string]any{"image": "a\x00b"})] = "a NUL in an image"
	bad[pod("deep", map[string]any{"args": nested(10_000)})] = "nesting of 10,000"
	bad[pod("bidi\u202e", nil)] = "a bidi name"
	for body, what := range bad {
		code, answer, err := a.Call(ctx, operator, http.MethodPost, pods, kind, body)
		if err != nil {
			return "", fmt.Errorf("%.30s: %w", what, err)
		}
		if code/100 != 4 {
			return "", fmt.Errorf("%.30s: %d %.100s", what, code, answer)
		}
	}
	if err := a.Answers(ctx, time.Second); err != nil {
		return "", err
	}
	a.Kill()
	return fmt.Sprintf("all %d refused, and back after kill -9", len(bad)), a.Start(ctx)
}

func nested(depth int) any {
	var v any = "x"
	for range depth {
		v = []any{v}
	}
	return v
}

func hugePatch(ctx context.Context, a *harness.Hub) (string, error) {
	operator, err := a.As(ctx, "operator", "ola")
	if err != nil {
		return "", err
	}
	const maps = "/api/v1/namespaces/default/configmaps"
	if err := a.Create(ctx, maps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":{"a":"`+
		strings.Repeat("x", 1000)+`"}}`); err != nil {
		return "", err
	}
	if err := a.Create(ctx, "/api/v1/namespaces/default/pods", pod("p", nil)); err != nil {
		return "", err
	}
	start := a.CPU()
	ask := func(what, path, kind, body string) error {
		before := a.CPU()
		code, answer, err := a.Call(ctx, operator, http.MethodPatch, path, kind, body)
		if spent := a.CPU() - before; spent > 5*time.Second {
			return fmt.Errorf("%s: %s of CPU", what, spent)
		}
		if err != nil || code >= 500 {
			return fmt.Errorf("%s: %d %.100s %w", what, code, answer, err)
		}
		return nil
	}
	var ops, copies, env, finalizers []string
	for i := range 40_000 {
		ops = append(ops, fmt.Sprintf(`{"op":"add","path":"/data/k%d","value":"v"}`, i))
		env = append(env, fmt.Sprintf(`{"name":"A%d","value":"v"}`, i))
		finalizers = append(finalizers, fmt.Sprintf(`"example.com/f%d"`, i))
	}
	for i := range 200 {
		copies = append(copies, fmt.Sprintf(`{"op":"copy","from":"/data","path":"/data/c%d"}`, i))
	}
	all := func(s []string) string { return strings.Join(s, ",") }
	var tower strings.Builder // nine levels, each with nine references to the level before
	tower.WriteString("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\na0: &a0 [x,x,x,x,x,x,x,x,x]\n")
	for i := range 9 {
		fmt.Fprintf(&tower, "a%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 9), ","))
	}
	const podPath = "/api/v1/namespaces/default/pods/p"
	err = errors.Join(
		ask("a JSON patch of 40,000 operations", maps+"/m", "application/json-patch+json", "["+all(ops)+"]"),
		ask("a JSON patch that doubles 200 times", maps+"/m", "application/json-patch+json", "["+all(copies)+"]"),
		ask("a strategic merge patch of 40,000 variables", podPath, "application/strategic-merge-patch+json",
			`{"spec":{"containers":[{"name":"c","env":[`+all(env)+`]}]}}`),
		ask("a strategic merge patch of 40,000 finalizers", podPath, "application/strategic-merge-patch+json",
			`{"metadata":{"finalizers":[`+all(finalizers)+`]}}`),
		ask("a merge patch of 3 MB", maps+"/m", "application/merge-patch+json",
			`{"data":{"a":"`+strings.Repeat("y", 3_000_000)+`"}}`),
		ask("an apply of 40,000 variables", podPath+"?fieldManager=x&force=true", "application/apply-patch+yaml",
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"x","env":[`+
				all(env)+`]}]}}`),
		ask("an apply of YAML that refers to itself", maps+"/m?fieldManager=x", "application/apply-patch+yaml",
			tower.String()),
		ask("a merge patch nested 100,000 deep", maps+"/m", "application/merge-patch+json",
			strings.Repeat(`{"a":`, 100_000)+"1"+strings.Repeat("}", 100_000)),
	)
	return fmt.Sprintf("%s of CPU for all eight", a.CPU()-start), err
}

// millionElements sends small bodies that become large if the hub decodes them before counting.
func millionElements(ctx context.Context, a *harness.Hub) (string, error) {
	operator, err := a.As(ctx, "operator", "ola")
	if err != nil {
		return "", err
	}
	const maps, named = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/configmaps/m"
	if err := a.Create(ctx, maps, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"}}`); err != nil {
		return "", err
	}
	var codes [600]atomic.Int32
	all, ctx := errgroup.WithContext(ctx)
	for range 5 {
		for _, n := range []int{900_000, 16_000} {
			owners := `"ownerReferences":[` + strings.Repeat("{},", n) + "{}]"
			whole := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m",` + owners + `}}`
			for _, r := range [][4]string{
				{http.MethodPost, maps, "application/json", whole},
				{http.MethodPost, maps, "application/yaml", whole + "\n"},
				{http.MethodPost, maps, "application/yaml",
					"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: m\n  ownerReferences:\n" +
						strings.Repeat("  - {}\n", min(n, 400_000))},
				{http.MethodPatch, named, "application/merge-patch+json", `{"metadata":{` + owners + `}}`},
				{http.MethodPatch, named, "application/strategic-merge-patch+json", `{"metadata":{` + owners + `}}`},
				{http.MethodPatch, named + "?fieldManager=x", "application/apply-patch+yaml", whole},
			} {
				all.Go(func() error {
					code, answer, err := a.Call(ctx, operator, r[0], r[1], r[2], r[3])
					if err == nil && (code < 400 || code >= 500) {
						err = fmt.Errorf("%s as %s: %d %.100s", r[0], r[2], code, answer)
					}
					if err == nil {
						codes[code].Add(1)
					}
					return err
				})
			}
		}
	}
	err = all.Wait()
	figures := ""
	for code := range codes {
		if n := codes[code].Load(); n > 0 {
			figures += fmt.Sprintf("%d answered %d, ", n, code)
		}
	}
	return strings.TrimSuffix(figures, ", "), err
}

// deletedOperator watches secrets with each kind of credential. After the user is deleted, no
// stream may receive the next secret.
func deletedOperator(ctx context.Context, a *harness.Hub) (string, error) {
	if err := a.User(ctx, "ola", "operator"); err != nil {
		return "", err
	}
	certificate, err := a.As(ctx, "operator", "ola")
	if err != nil {
		return "", err
	}
	_, cookie, err := a.Login(ctx, a.Client(), "ola", harness.Password)
	if err != nil || cookie == nil {
		return "", fmt.Errorf("log in: %w", err)
	}
	certificate.Timeout = 0
	session := a.Client()
	session.Timeout = 0
	streams := map[string]*http.Response{}
	open := func(name string, c *http.Client, path string, cookies ...*http.Cookie) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL(path), nil)
		if err != nil {
			return err
		}
		r.Header.Set("Accept", "application/json")
		for _, k := range cookies {
			r.AddCookie(&http.Cookie{Name: k.Name, Value: k.Value})
			r.Header.Set("Accept", "text/event-stream")
		}
		resp, err := c.Do(r)
		if err == nil && resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s: %s", name, resp.Status)
		}
		if err == nil {
			streams[name] = resp
		}
		return err
	}
	if err := errors.Join(
		open("a watch by certificate", certificate, "/api/v1/secrets?watch=true"),
		open("the page's stream", session, "/nodes", cookie),
	); err != nil {
		return "", err
	}
	ended := make(chan string, len(streams))
	var received atomic.Bool
	for name, resp := range streams {
		go func() {
			defer resp.Body.Close()
			in := bufio.NewReader(resp.Body)
			for {
				line, err := in.ReadString('\n')
				if strings.Contains(line, "after-the-deletion") {
					received.Store(true)
				}
				if err != nil {
					ended <- name
					return
				}
			}
		}()
	}
	if _, err := a.Command(ctx, "", "user", "delete", "ola"); err != nil {
		return "", err
	}
	start := time.Now()
	after := time.After(5 * time.Second)
	for range len(streams) {
		select {
		case <-ended:
		case <-after:
			return "", errors.New("a stream of a deleted user is still open after 5 s")
		}
	}
	took := time.Since(start)
	if err := a.Create(ctx, "/api/v1/namespaces/default/secrets",
		`{"apiVersion":"v1","kind":"Secret","metadata":{"name":"after-the-deletion"}}`); err != nil {
		return "", err
	}
	if received.Load() {
		return "", errors.New("a deleted user received a secret")
	}
	return "ended after " + took.Round(time.Millisecond).String(), nil
}

// logPattern requests a log with an expensive pattern, while a device sends as many matching lines
// as it may. A site's viewer may also own a device there.
func logPattern(ctx context.Context, a *harness.Hub) (string, error) {
	viewer, err := a.As(ctx, "viewer", "vera")
	if err != nil {
		return "", err
	}
	d, err := a.NewDevice(ctx, "evil", "00000000000000ee")
	if err != nil {
		return "", err
	}
	l, err := d.Online(ctx)
	if err != nil {
		return "", err
	}
	defer l.Close()
	go l.Chatter(strings.Repeat(strings.Repeat("a", 4000)+"\n", 16), 400)
	start := a.CPU()
	patterns := []string{"(a?){70}b", "(a|aa){45}b", "(a?){1000}", "(a?){1000}b", "((a{1,30}){1,30})b",
		"(x*)*(a*)*z{1000}", strings.Repeat("(a|b)*", 150), strings.Repeat("a{0,100}", 9), "a{500}b|a{500}c"}
	answers := map[int]int{}
	for _, follow := range []string{"", "&follow=true"} {
		for _, pattern := range patterns {
			ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
			code, _, _ := a.Call(ctx, viewer, http.MethodGet,
				"/api/v1/nodes/evil/proxy/logs/?query=kubelet&pattern="+url.QueryEscape(pattern)+follow, "", "")
			answers[code]++
			cancel()
		}
	}
	harness.Pause(ctx, 2*time.Second) // the hub must stop working for clients that have gone
	before := a.CPU()
	harness.Pause(ctx, 5*time.Second)
	spent, after := a.CPU()-start, a.CPU()-before
	seen := fmt.Sprintf("answers by code %v, %s of CPU for %d", answers, spent, 2*len(patterns))
	switch {
	case after > 2*time.Second:
		return seen, fmt.Errorf("%s of CPU in the 5 s after the last client left", after)
	case spent > 20*time.Second:
		return seen, errors.New("patterns cost the hub too much")
	}
	return seen, nil
}

func unreadLists(ctx context.Context, a *harness.Hub) (string, error) {
	for i := range 25 {
		body := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m%d"},"data":{"a":%q}}`, i,
			noise(i, 900_000))
		if err := a.Create(ctx, "/api/v1/namespaces/default/configmaps", body); err != nil {
			return "", err
		}
	}
	viewer, err := a.As(ctx, "viewer", "vera")
	if err != nil {
		return "", err
	}
	viewer.Timeout = 0
	var in, refused atomic.Int64
	harness.Each(ctx, 60, 60, func(i int) {
		c := *viewer
		c.Transport = viewer.Transport.(*http.Transport).Clone() // each list has its own connection
		path := "/api/v1/configmaps"
		if i%3 == 1 {
			path += "?resourceVersion=0"
		}
		if i%3 == 2 {
			path += "?labelSelector=!x"
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL(path), nil)
		if err != nil {
			return
		}
		r.Header.Set("Accept-Encoding", "identity")
		resp, err := c.Do(r)
		if err != nil {
			return
		}
		switch resp.StatusCode {
		case http.StatusOK:
			in.Add(1)
		case http.StatusTooManyRequests:
			refused.Add(1)
		}
		_, _ = io.CopyN(io.Discard, resp.Body, 1000) // read no more than this
	})
	seen := fmt.Sprintf("%d answered, %d refused as too many", in.Load(), refused.Load())
	if in.Load() == 0 {
		return seen, errors.New("the attack's own lists are not answered")
	}
	harness.Pause(ctx, 10*time.Second)
	code, _, err := a.Call(ctx, a.Admin, http.MethodGet, "/api/v1/nodes", "", "")
	if err != nil || code != http.StatusOK {
		return seen, fmt.Errorf("another user's list: %d %w", code, err)
	}
	return seen, nil
}

func refusedWrites(ctx context.Context, a *harness.Hub) (string, error) {
	viewer, err := a.As(ctx, "viewer", "vera")
	if err != nil {
		return "", err
	}
	wrote := a.Wrote()
	var refused, taken atomic.Int64
	stop, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	harness.Each(stop, 20_000, 16, func(i int) {
		code, _, err := a.Call(stop, viewer, http.MethodPost, "/api/v1/namespaces/default/pods", "application/json",
			pod(fmt.Sprintf("p%d", i), nil))
		switch {
		case err == nil && (code == http.StatusForbidden || code == http.StatusTooManyRequests):
			refused.Add(1)
		case err == nil && code/100 == 2:
			taken.Add(1)
			cancel()
		}
	})
	cancel()
	seen := fmt.Sprintf("%d refused, %d KiB written", refused.Load(), (a.Wrote()-wrote)>>10)
	switch {
	case taken.Load() > 0:
		return seen, errors.New("a viewer's write is accepted")
	case refused.Load() == 0:
		return seen, errors.New("no write was refused")
	case a.Wrote()-wrote > 16<<20:
		return seen, errors.New("refusals write too much to the disk")
	}
	return seen, nil
}

// renewal2 returns a certificate request, and a client that may send it.
func renewal2(d *harness.Device, a *harness.Hub) (string, *http.Client, error) {
	cfg, err := d.ID.TLS(time.Now())
	if err != nil {
		return "", nil, err
	}
	block, _ := pem.Decode([]byte(d.ID.Key))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return "", nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key.(*ecdsa.PrivateKey))
	if err != nil {
		return "", nil, err
	}
	body, err := json.Marshal(
		map[string]string{"csr": string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))})
	return string(body), a.Client(cfg.Certificates...), err
}
