package harness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// As returns a client with a certificate of this role and user.
func (a *Hub) As(ctx context.Context, role, user string) (*http.Client, error) {
	text, err := a.Command(ctx, "", "kubeconfig", "--role", role, "--user", user)
	if err != nil {
		return nil, err
	}
	var k struct {
		Clusters []struct {
			Cluster struct {
				CA []byte `json:"certificate-authority-data"`
			} `json:"cluster"`
		} `json:"clusters"`
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			} `json:"user"`
		} `json:"users"`
	}
	if err := yaml.Unmarshal([]byte(text), &k); err != nil {
		return nil, err
	}
	if len(k.Clusters) == 0 || len(k.Users) == 0 {
		return nil, errors.New("the kubeconfig is empty")
	}
	pair, err := tls.X509KeyPair(k.Users[0].User.Cert, k.Users[0].User.Key)
	if err != nil {
		return nil, err
	}
	a.Roots = x509.NewCertPool()
	a.Roots.AppendCertsFromPEM(k.Clusters[0].Cluster.CA)
	return a.Client(pair), nil
}

// Client returns an HTTPS client that trusts the hub and uses these certificates.
func (a *Hub) Client(pairs ...tls.Certificate) *http.Client {
	return &http.Client{
		Timeout:       30 * time.Second,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: a.Roots, Certificates: pairs},
			ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 512},
	}
}

func (a *Hub) URL(path string) string { return "https://" + a.HTTPS + path }

// Answers waits until the hub is ready. It returns an error after the time limit.
func (a *Hub) Answers(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	code, body, err := a.Call(ctx, a.Admin, http.MethodGet, "/readyz", "", "")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/readyz answers %d: %s", code, body)
	}
	return err
}

// Call sends a request and reads the response.
func (a *Hub) Call(ctx context.Context, c *http.Client, method, path, kind,
	body string) (code int, answer string, err error) {
	r, err := http.NewRequestWithContext(ctx, method, a.URL(path), strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	resp, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	return resp.StatusCode, string(text), err
}

// Get is Call as the administrator. The request must succeed.
func (a *Hub) Get(ctx context.Context, path string) (string, error) {
	code, body, err := a.Call(ctx, a.Admin, http.MethodGet, path, "", "")
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("GET %s: %d: %.200s", path, code, body)
	}
	return body, err
}

// Create creates an object as the administrator. The request must succeed.
func (a *Hub) Create(ctx context.Context, path, body string) error {
	code, answer, err := a.Call(ctx, a.Admin, http.MethodPost, path, "application/json", body)
	if err == nil && code/100 != 2 {
		err = fmt.Errorf("POST %s: %d: %.200s", path, code, answer)
	}
	return err
}

func (a *Hub) Node(ctx context.Context, name string) (n corev1.Node, err error) {
	body, err := a.Get(ctx, "/api/v1/nodes/"+name)
	if err == nil {
		err = json.Unmarshal([]byte(body), &n)
	}
	return n, err
}

// Nodes returns all nodes of the hub.
func (a *Hub) Nodes(ctx context.Context) (list corev1.NodeList, err error) {
	text, err := a.Get(ctx, "/api/v1/nodes")
	if err == nil {
		err = json.Unmarshal([]byte(text), &list)
	}
	return list, err
}

const Password = "correct horse battery staple"

// User creates a user with a password.
func (a *Hub) User(ctx context.Context, name, role string) error {
	_, err := a.Command(ctx, Password+"\n", "user", "create", name, "--role", role)
	return err
}

// Login logs in, and returns the response's status and the session cookie.
func (a *Hub) Login(ctx context.Context, c *http.Client, name, password string) (int, *http.Cookie, error) {
	form := url.Values{"name": {name}, "password": {password}}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.URL("/login"), strings.NewReader(form.Encode()))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Origin", "https://"+a.HTTPS)
	resp, err := c.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	for _, cookie := range resp.Cookies() {
		if cookie.Value != "" {
			return resp.StatusCode, cookie, nil
		}
	}
	return resp.StatusCode, nil, nil
}
