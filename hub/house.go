package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin"
	"flotilla.dev/hub/store"
)

// house is the hub itself, as the page's settings and audit show it.
type house struct {
	*front
	https net.Addr
}

// endingDevices is how many of the devices whose certificates end first are shown.
const endingDevices = 3

func (h house) State(ctx context.Context) (st admin.HouseState, err error) {
	people, err := h.guard.Users(ctx)
	if err != nil {
		return st, err
	}
	for _, p := range people {
		st.People = append(st.People, admin.Person{Name: p.Name, Role: p.Role, Created: p.Created})
	}
	joins, err := h.guard.JoinTokens(ctx)
	if err != nil {
		return st, err
	}
	for _, t := range slices.Backward(joins) {
		st.JoinTokens = append(st.JoinTokens, admin.JoinToken{ID: t.ID, Site: t.Site, Node: t.Node, By: t.CreatedBy, Uses: t.Uses, Used: t.Used, Created: t.Created, Expires: t.Expires, Revoked: t.Revoked})
	}
	tokens, err := h.guard.APITokens(ctx)
	if err != nil {
		return st, err
	}
	for _, t := range slices.Backward(tokens) {
		st.APITokens = append(st.APITokens, apiToken(t))
	}
	if st.Certificates, err = h.certificates(ctx); err != nil {
		return st, err
	}
	copies, next, err := h.store.Copies()
	if err != nil {
		return st, err
	}
	for _, c := range copies {
		st.Backups = append(st.Backups, admin.Backup{File: filepath.Base(c.File), At: c.At, Bytes: c.Bytes})
	}
	st.NextBackup = next
	st.Facts = []admin.Fact{
		{Name: "Version", Value: version}, {Name: "Platform", Value: runtime.GOOS + "/" + runtime.GOARCH + ", " + runtime.Version()},
		{Name: "Page and API", Value: h.url(h.https)}, {Name: "Answers to", Value: strings.Join(h.server.Names(), ", ")},
		{Name: "Listens for HTTPS", Value: h.cfg.HTTPSListen}, {Name: "Listens for devices", Value: h.cfg.MQTTListen},
		{Name: "Data directory", Value: h.cfg.DataDir}, {Name: "CA's fingerprint", Value: h.authority.Pin()},
	}
	st.Kept = []admin.Fact{
		{Name: "Audit", Value: "90 days"}, {Name: "Backups", Value: "the last 7, one a day"}, {Name: "Ended join tokens", Value: "a month"},
		{Name: "Ended pods", Value: fmt.Sprintf("the newest %d", h.cfg.TerminatedPodGCThreshold)},
	}
	for _, s := range h.cfg.All() {
		st.Settings = append(st.Settings, admin.Setting(s))
	}
	return st, nil
}

// certificates are the hub's own, and the devices' that end first.
func (h house) certificates(ctx context.Context) (all []admin.Certificate, err error) {
	block, _ := pem.Decode(h.authority.RootPEM())
	if block == nil {
		return nil, errors.New("the CA's certificate cannot be read: see pki/ in the data directory")
	}
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the CA's certificate: %w", err)
	}
	all = append(all, admin.Certificate{Of: "Root of the hub's CA", Renewal: "never by itself: devices know the hub by it", Until: root.NotAfter})
	own, err := h.server.GetCertificate(nil)
	if err != nil {
		return nil, err
	}
	if len(own.Certificate) > 1 {
		if by, err := x509.ParseCertificate(own.Certificate[1]); err == nil {
			all = append(all, admin.Certificate{Of: "Intermediate that signs", Renewal: "by itself, while it outlives what it signs", Until: by.NotAfter})
		}
	}
	all = append(all, admin.Certificate{Of: "This hub's HTTPS and MQTT", Renewal: "by itself, in time and when its addresses change", Until: own.Leaf.NotAfter})
	devices, err := h.store.Enrolments(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(devices, func(a, b store.Enrolment) int { return a.Expires.Compare(b.Expires) })
	for _, d := range devices[:min(len(devices), endingDevices)] {
		all = append(all, admin.Certificate{Of: "Node " + d.Node, Renewal: "by the device, at half of its life", Until: d.Expires})
	}
	return all, nil
}

func (h house) BackUp(ctx context.Context) (string, error) { return h.store.BackUpNow(ctx) }

func (h house) Audits(ctx context.Context, q admin.AuditQuery) (out []admin.AuditRecord, err error) {
	records, err := h.store.FindAudits(ctx, store.AuditQuery{Before: q.Before, Words: q.Words, Refused: q.Refused, Via: q.Via, Limit: q.Limit})
	for _, r := range records {
		what := r.Resource
		switch {
		case r.Namespace != "":
			what += " " + r.Namespace + "/" + r.Name
		case r.Name != "":
			what += " " + r.Name
		}
		out = append(out, admin.AuditRecord{ID: r.ID, At: r.At, Who: r.Who, Via: r.Via, Source: r.Source, Verb: r.Verb, What: what, Code: r.Code, Message: r.Message})
	}
	return out, err
}

// pagePeople are the guard's people, in the page's words.
type pagePeople struct{ *access.Guard }

func (p pagePeople) CreateUser(ctx context.Context, n admin.NewPerson) error {
	return p.Guard.CreateUser(ctx, access.NewUser{Name: n.Name, Password: n.Password, Role: access.Role(n.Role)})
}

func (p pagePeople) ChangeUser(ctx context.Context, n admin.NewPerson) error {
	if n.Role != "" {
		if err := p.SetRole(ctx, n.Name, access.Role(n.Role)); err != nil {
			return err
		}
	}
	if n.Password != "" {
		return p.SetPassword(ctx, n.Name, n.Password)
	}
	return nil
}

// pageTokens are the guard's tokens, in the page's words.
type pageTokens struct{ *access.Guard }

func (t pageTokens) CreateAPIToken(ctx context.Context, n admin.NewAPIToken) (string, error) {
	return t.Guard.CreateAPIToken(ctx, access.NewAPIToken{User: n.User, Note: n.Note, Life: n.Life})
}

func (t pageTokens) ChangePassword(ctx context.Context, p admin.PasswordChange) (*http.Cookie, error) {
	return t.Guard.ChangePassword(ctx, access.PasswordChange{Name: p.Name, Old: p.Old, New: p.New, Source: p.Source})
}

func (t pageTokens) APITokensOf(ctx context.Context, user string) (own []admin.APIToken, err error) {
	tokens, err := t.Guard.APITokensOf(ctx, user)
	for _, k := range tokens {
		own = append(own, apiToken(k))
	}
	return own, err
}

func apiToken(t store.APIToken) admin.APIToken {
	return admin.APIToken{ID: t.ID, User: t.User, Note: t.Note, Created: t.Created, Expires: t.Expires}
}

// notThere is the code of a store's error about something that is not, or is already, there.
func notThere(err error) (int, bool) {
	switch {
	case errors.Is(err, store.ErrNotFound):
		return http.StatusNotFound, true
	case errors.Is(err, store.ErrExists):
		return http.StatusConflict, true
	}
	return 0, false
}
