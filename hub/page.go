package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin"
	"flotilla.dev/hub/store"
)

// page makes the admin page from the loop and the guard.
func (f *front) page(a net.Addr) *admin.Server {
	p := pageAccess{f.guard}
	var pauses []admin.Pause
	for _, x := range f.pauses {
		pauses = append(pauses, admin.Pause(x))
	}
	return admin.New(admin.Config{
		Fleet: f.loop, Sessions: p, Entrance: p, Explain: explain,
		Allow: func(role, verb, resource string) bool { return access.Allow(access.Role(role), verb, resource) },
		Liveness: func(node string) admin.Liveness {
			v := f.loop.Liveness(node)
			return admin.Liveness{Seen: v.Seen, Connected: v.Connected, Lease: v.Lease, Skew: v.Skew, Wanted: v.Wanted, Stored: v.Stored, Hardware: v.Hardware}
		},
		Usage: func(ctx context.Context, node string) (admin.Usage, error) {
			m, err := f.desk.Usage(ctx, node)
			u := admin.Usage{Node: m.Node, Containers: map[admin.ContainerOf]corev1.ResourceList{}}
			for _, p := range m.Pods {
				for _, c := range p.Containers {
					u.Containers[admin.ContainerOf{Pod: p.UID, Name: c.Name}] = c.Usage
				}
			}
			return u, err
		},
		Token: func(ctx context.Context, t admin.NewToken) (string, error) {
			made, err := f.guard.CreateJoinToken(ctx, access.NewJoinToken{Site: t.Site, Node: t.Node, Uses: t.Uses, Life: t.Life, By: t.By})
			if err != nil {
				return "", err
			}
			return made.Text(), nil
		},
		Audit: func(ctx context.Context, a admin.Act) {
			f.guard.Record(ctx, store.Audit{Who: a.User.Name, Via: viaPage, Source: a.User.Source, Verb: a.Verb, Resource: a.Resource, Name: a.Name, Code: a.Code, Message: a.Message})
		},
		API: f.kubernetes(), Logs: f.desk, Shells: f.desk, House: house{f, a}, People: pagePeople{f.guard}, Tokens: pageTokens{f.guard}, Accounts: pageTokens{f.guard},
		Kubeconfig: func(k admin.Kubeconfig) ([]byte, error) {
			return kubeconfig(kubeconfigFor{server: k.Server, user: k.User, ca: f.authority.RootPEM(), token: k.Token})
		},
		HubURL: f.url(a), Version: version, Pauses: pauses, Log: f.log,
	})
}

// viaPage stands in the audit for what people do in the page.
const viaPage = "page"

// pageAccess is the guard in the page's words.
type pageAccess struct{ *access.Guard }

func (p pageAccess) Authenticate(r *http.Request) (admin.User, error) {
	u, err := p.Guard.Authenticate(r)
	return admin.User{Name: u.Name, Role: string(u.Role), Via: u.Via, Source: u.Source, CSRF: u.CSRF}, err
}

func (p pageAccess) CheckForm(r *http.Request, u admin.User) error {
	return p.Guard.CheckForm(r, access.User{Name: u.Name, Role: access.Role(u.Role), Via: u.Via, Source: u.Source, CSRF: u.CSRF})
}

func (p pageAccess) Login(ctx context.Context, c admin.Credential) (*http.Cookie, error) {
	return p.Guard.Login(ctx, c.Name, c.Password, c.Source)
}

func (p pageAccess) Setup(ctx context.Context, secret string, c admin.Credential) error {
	return p.Guard.Setup(ctx, secret, access.NewUser{Name: c.Name, Password: c.Password, Role: access.Admin}, c.Source)
}

func (p pageAccess) Empty(ctx context.Context) (bool, error) {
	users, err := p.Users(ctx)
	return len(users) == 0, err
}

// explain turns an error of the guard into an HTTP code and a sentence.
func explain(err error) (int, string) {
	for _, c := range []struct {
		sentinel error
		code     int
	}{
		{access.ErrTooMany, http.StatusTooManyRequests}, {access.ErrInvalid, http.StatusBadRequest}, {access.ErrUnauthenticated, http.StatusUnauthorized},
		{access.ErrForbidden, http.StatusForbidden}, {access.ErrConflict, http.StatusConflict},
	} {
		if errors.Is(err, c.sentinel) {
			return c.code, strings.ReplaceAll(err.Error(), c.sentinel.Error()+": ", "")
		}
	}
	if code, known := notThere(err); known {
		return code, err.Error()
	}
	if errors.Is(err, store.ErrFull) {
		return http.StatusInsufficientStorage, "the hub's disk is full: make room on it, and try again"
	}
	return http.StatusInternalServerError, "the hub cannot answer now; see its log"
}
