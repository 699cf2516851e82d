package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/labstack/echo/v4"
	coordv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin"
	"flotilla.dev/hub/ask"
	"flotilla.dev/hub/broker"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/inventory"
	"flotilla.dev/hub/kube"
	"flotilla.dev/hub/pki"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// A front is the hub's HTTPS side: the API, the page, joining, and what machines
// ask a server about itself.
type front struct {
	cfg       config.Config
	loop      *control.Loop
	desk      *ask.Desk
	guard     *access.Guard
	broker    *broker.Broker
	store     *store.Store
	authority *pki.Authority
	server    *pki.Server
	inventory *inventory.Reader // nil: there is none
	pauses    []store.Pause
	log       *slog.Logger
	api       *kube.Server // made by kubernetes
}

// metaURL is where a command beside the hub finds its address.
const metaURL = "https-url"

func (f *front) handlers(page *admin.Server) *http.Server {
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.IPExtractor = echo.ExtractIPDirect()
	e.Logger.SetOutput(io.Discard)
	e.Use(f.hosts)
	f.kubernetes().Register(e)
	page.Register(e)
	join := echo.WrapHandler(f.guard.Handler())
	e.Any("/join", join)
	e.Any("/join/*", join)
	e.GET("/metrics", echo.WrapHandler(f.only("get", "metrics", metricsHandler(metrics{f.loop, f.broker, f.inventory}))))
	return &http.Server{
		Handler: e, TLSConfig: f.authority.HTTPS(f.server),
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 3 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(f.log.Handler(), slog.LevelDebug),
	}
}

// kubernetes is the API. The page asks it too, for what people write as YAML.
func (f *front) kubernetes() *kube.Server {
	if f.api == nil {
		f.api = kube.New(kube.Config{
			Fleet: kubeFleet{f.loop}, Leases: leases{f.loop}, Access: kubeAccess{f.guard}, Logs: f.desk, Metrics: usages{f.desk}, Audit: auditor{f.guard},
			Streams: f.desk, Online: f.broker.Online,
			Settings: admissionSettings(f.cfg), Version: version, Log: f.log,
		})
	}
	return f.api
}

// hosts refuses requests for names that are not this hub's: a page of another
// site must not reach it by pointing its own name here.
func (f *front) hosts(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		host := c.Request().Host
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		host = strings.ToLower(strings.Trim(host, "[]"))
		if _, err := netip.ParseAddr(host); err != nil && !slices.Contains(f.server.Names(), host) {
			return c.String(http.StatusMisdirectedRequest, fmt.Sprintf("this hub is not %.100q: open it under one of its own names, or start it with --advertise-address\n", host))
		}
		return next(c)
	}
}

// only lets through who may.
func (f *front) only(verb, resource string, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, err := f.guard.Authenticate(r)
		switch {
		case errors.Is(err, access.ErrUnauthenticated):
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
		case err != nil:
			http.Error(w, "the hub cannot answer now; see its log", http.StatusServiceUnavailable)
		case !access.Allow(u.Role, verb, resource):
			http.Error(w, fmt.Sprintf("%s may not %s %s", u.Name, verb, resource), http.StatusForbidden)
		default:
			h.ServeHTTP(w, r)
		}
	})
}

// runWeb serves until ctx ends, and then gives open requests five seconds.
func runWeb(ctx context.Context, s *http.Server, l net.Listener) error {
	s.BaseContext = func(net.Listener) context.Context { return ctx }
	stop := context.AfterFunc(ctx, func() {
		short, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if s.Shutdown(short) != nil {
			_ = s.Close()
		}
	})
	defer stop()
	err := s.Serve(tls.NewListener(l, s.TLSConfig))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve HTTPS: %w", err)
}

// url is the address to give to people.
func (f *front) url(a net.Addr) string {
	_, port, _ := net.SplitHostPort(a.String())
	host, _, _ := net.SplitHostPort(f.cfg.HTTPSListen)
	ip, err := netip.ParseAddr(host)
	switch {
	case f.cfg.AdvertiseAddress != "":
		host = f.cfg.AdvertiseAddress
	case host == "" || err == nil && ip.IsUnspecified():
		host = "localhost"
		for _, name := range f.server.Names() {
			if ip, err := netip.ParseAddr(name); err == nil && ip.Is4() && !ip.IsLoopback() {
				host = name
				break
			}
		}
	}
	return "https://" + net.JoinHostPort(host, port)
}

// greet tells where the page is, and how the first administrator comes in.
func (f *front) greet(ctx context.Context, out io.Writer, a net.Addr) error {
	url := f.url(a)
	if err := f.store.SetMeta(ctx, metaURL, url); err != nil {
		return err
	}
	secret, err := f.guard.SetupSecret(ctx)
	if err != nil || secret == "" {
		return err
	}
	_, err = fmt.Fprintf(out, "The page is %s\nIt has no user yet. Make the first one within 30 minutes here, once:\n    %s/setup?token=%s\n", url, url, secret)
	return err
}

// tellSystemd says that the hub is up, and goes on saying so while its loop works.
func tellSystemd(ctx context.Context, loop *control.Loop, log *slog.Logger) error {
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Debug("notify systemd", "err", err)
	}
	defer func() { _, _ = daemon.SdNotify(false, daemon.SdNotifyStopping) }()
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return nil
	}
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		short, cancel := context.WithTimeout(ctx, every/3)
		if _, err := loop.Do(short, nothing); err == nil { // the loop answers: it lives
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		}
		cancel()
	}
}

type leases struct{ loop *control.Loop }

func (l leases) Seen(node string) time.Time       { return l.loop.Liveness(node).Seen }
func (l leases) Lease(node string) *coordv1.Lease { return l.loop.NodeLease(node) }
func (l leases) Leases() []*coordv1.Lease         { return l.loop.NodeLeases() }

// kubeAccess is the guard in the API's words.
type kubeAccess struct{ *access.Guard }

func (a kubeAccess) Authenticate(r *http.Request) (user string, groups []string, role string, err error) {
	u, err := a.Guard.Authenticate(r)
	switch {
	case errors.Is(err, access.ErrUnauthenticated):
		return "", nil, "", err
	case err != nil:
		return "", nil, "", apierrors.NewInternalError(err)
	}
	if err := a.Guard.CheckForm(r, u); err != nil {
		return "", nil, "", apierrors.NewForbidden(schema.GroupResource{}, "", err)
	}
	return u.Name, []string{"flotilla:" + string(u.Role) + "s", "system:authenticated"}, string(u.Role), nil
}

func (kubeAccess) Allow(role, verb, resource string) bool {
	return access.Allow(access.Role(role), verb, resource)
}

// auditor keeps who changed what through the API.
type auditor struct{ *access.Guard }

func (a auditor) Audit(r *http.Request, user, verb, object string, err error) {
	row := store.Audit{Who: user, Via: "API", Source: access.Source(r), Verb: verb, Resource: object, Code: http.StatusOK}
	if admin.FromPage(r.Context()) {
		row.Via = viaPage
	} else if u, err := a.Authenticate(r); err == nil && u.Via != "session" { // a page's session in other hands is no page
		row.Via = u.Via
	}
	if err != nil {
		row.Code, row.Message = http.StatusInternalServerError, err.Error()
		var known apierrors.APIStatus
		if errors.As(err, &known) {
			row.Code = int(known.Status().Code)
		}
	}
	a.Record(r.Context(), row)
}

// nothing is the news that asks whether the loop still answers.
func nothing(state.Snapshot, time.Time) ([]state.Change, error) { return nil, nil }
