package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/labstack/echo/v4"
	coordv1 "k8s.io/api/coordination/v1"

	firmwareconfigs "flotilla.dev/firmware-configs"
	"flotilla.dev/hub/access"
	"flotilla.dev/hub/admin/frame"
	"flotilla.dev/hub/cluster"
	"flotilla.dev/hub/config"
	"flotilla.dev/hub/install"
	"flotilla.dev/hub/kube"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/metrics"
	"flotilla.dev/hub/node"
	"flotilla.dev/hub/panics"
	"flotilla.dev/hub/peer"
	"flotilla.dev/hub/store"
)

// web is the hub's HTTPS side: the API, the page, joining, and the endpoints for monitoring.
type web struct {
	api    *kube.Server
	page   *frame.Server
	routes *echo.Echo // all routes
	server *http.Server
}

// serveSchema serves the schema to editors, without authentication: it contains no secret.
func serveSchema(c echo.Context) error {
	return c.Blob(http.StatusOK, "application/schema+json", firmwareconfigs.Schema())
}

func (h *Hub) newWeb() *web {
	others := []other{
		{kube.Other{Path: exportPath, Verb: "list", Resource: "audit"}, http.HandlerFunc(h.exportAudit)},
		{kube.Other{Path: "/metrics", Verb: "get", Resource: "metrics"}, h.metrics()},
		{kube.Other{Path: metrics.NodesPath, Verb: "get", Resource: "metrics"}, metrics.Nodes(h.Loop)},
	}
	others = append(others, profiles()...)
	api := kube.New(kube.Config{
		Others: pathsOf(others),
		Fleet:  h.Loop, Leases: leases{h.Loop}, Access: h.Guard, RoleOf: h.Guard.RoleOf, Audit: h.Guard, Logs: h.Ask,
		Metrics: h.Ask,
		Streams: h.Ask, Online: h.Broker.Online,
		Settings: AdmissionSettings(h.cfg), Version: h.o.Version, Log: h.log, Now: h.Loop.Now,
	})
	page := h.newPage(api)
	e := echo.New()
	e.HideBanner, e.HidePort = true, true
	e.IPExtractor = echo.ExtractIPDirect()
	e.Logger.SetOutput(io.Discard)
	e.Use(h.hosts)
	api.Register(e)
	page.Register(e)
	join := echo.WrapHandler(h.Guard.Handler())
	e.Any("/join", join)
	e.Any("/join/*", join)
	e.Any("/v2", echo.WrapHandler(http.HandlerFunc(h.serveImages)))
	e.Any("/v2/*", echo.WrapHandler(http.HandlerFunc(h.serveImages)))
	e.GET(firmwareconfigs.SchemaPath, serveSchema)
	depot := echo.WrapHandler(h.depot.Handler())
	e.GET(install.Path, depot)
	e.GET(install.Path+"/*", depot)
	for _, o := range others {
		e.GET(o.Path, echo.WrapHandler(h.authorized(o.Verb, o.Resource, o.handler)))
	}
	return &web{api, page, e, &http.Server{
		Handler: recoverPanics(e, cluster.WatchSessions(h.Guard, e)), TLSConfig: h.authority.HTTPS(h.server),
		ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug),
	}}
}

// metrics serves the hub's metrics.
func (h *Hub) metrics() http.Handler {
	return metrics.Handler(metrics.Sources{
		Version: h.o.Version, Loop: h.Loop, Broker: h.Broker, Store: h.Store, Authority: h.authority, Server: h.server,
		Inventory: h.inventory,
	})
}

// An other is a path of the hub outside of the API and the page, with its handler.
type other struct {
	kube.Other
	handler http.Handler
}

func pathsOf(list []other) (all []kube.Other) {
	for _, o := range list {
		all = append(all, o.Other)
	}
	return all
}

// Handler serves HTTPS requests.
func (h *Hub) Handler() http.Handler { return h.web().server.Handler }

// recoverPanics responds for a handler that panics. If the response has begun, it closes the
// connection, or with HTTP/2 the stream.
func recoverPanics(e *echo.Echo, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := echo.NewResponse(w, e)
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p != http.ErrAbortHandler {
				panics.Note("request", p, "method", r.Method, "path", r.URL.Path)
			}
			if p == http.ErrAbortHandler || answer.Committed {
				panic(http.ErrAbortHandler)
			}
			http.Error(answer, "internal error; see the hub's log", http.StatusInternalServerError)
		}()
		next.ServeHTTP(answer, r)
	})
}

// hosts refuses requests for names that are not the hub's. Otherwise another site could reach the
// hub by resolving its own name to the hub's address.
func (h *Hub) hosts(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		if peer.ForwardedBy(c.Request().Context()) != "" { // the hub that forwarded the request has checked the name
			return next(c)
		}
		if code, why := listen.CheckHost(c.Response().Header(), c.Request(), h.server.Names()); why != "" {
			return c.String(code, why)
		}
		return next(c)
	}
}

// authorized serves users whose role allows it.
func (h *Hub) authorized(verb, resource string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, err := h.Guard.Authenticate(r)
		refused := store.Audit{Who: u.Name, Via: u.Via, Source: access.Source(r), Verb: verb, Resource: resource}
		switch {
		case errors.Is(err, access.ErrUnauthenticated):
			refused.Code, refused.Message = http.StatusUnauthorized, err.Error()
			h.Guard.Note(refused)
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, err.Error(), http.StatusUnauthorized)
		case errors.Is(err, access.ErrTooMany):
			listen.Busy(w, err.Error())
		case err != nil:
			http.Error(w, "the hub cannot check your access now; see its log", http.StatusServiceUnavailable)
		case !access.Allow(u.Role, verb, resource):
			refused.Code, refused.Message = http.StatusForbidden, fmt.Sprintf("role %q does not allow it", u.Role)
			h.Guard.Note(refused)
			http.Error(w, fmt.Sprintf("%s may not %s %s", u.Name, verb, resource), http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// url returns the page's address that storeURL found last.
func (h *Hub) url() string {
	if at := h.reached.Load(); at != nil {
		return *at
	}
	return reachedAt(h.cfg, addr(h.o.HTTPS), cluster.Names(h.cfg))
}

// reachedAt returns the page's address for users, given the HTTPS listener and the machine's names.
func reachedAt(cfg config.Config, at string, machine []string) string {
	_, port, _ := net.SplitHostPort(at)
	host, _, _ := net.SplitHostPort(cfg.HTTPSListen)
	ip, err := netip.ParseAddr(host)
	switch {
	case cfg.AdvertiseAddress != "":
		host = cfg.AdvertiseAddress
	case host == "" || err == nil && ip.IsUnspecified():
		host = "localhost"
		if own := listen.OwnAddress(machine); own.IsValid() {
			host = own.String()
		}
	}
	return "https://" + net.JoinHostPort(host, port)
}

// urls returns the addresses of all hubs of the database, this hub's first.
func (h *Hub) urls() []string {
	all := []string{h.url()}
	for _, a := range h.cfg.HTTPSAddresses {
		if u := "https://" + a; u != all[0] {
			all = append(all, u)
		}
	}
	return all
}

// storeURL stores the page's address for the tokens and kubeconfigs that commands and this hub
// create. It is called periodically, because a machine's address may appear or change long after
// the hub has started.
func (h *Hub) storeURL(ctx context.Context) error {
	url := reachedAt(h.cfg, addr(h.o.HTTPS), cluster.Names(h.cfg))
	former := h.reached.Swap(&url)
	if former != nil && *former != url {
		h.log.Info("the hub is reached at another address", "url", url, "former", *former)
	}
	if h.storedURL == url {
		return nil
	}
	if err := errors.Join(h.Store.SetMeta(ctx, store.MetaURL, url),
		h.Store.SetMeta(ctx, store.MetaURLs, strings.Join(h.urls(), ","))); err != nil {
		return err
	}
	h.storedURL = url
	return nil
}

// printURL prints the page's address, and the first administrator's setup link.
func (h *Hub) printURL(ctx context.Context) error {
	if err := h.storeURL(ctx); err != nil {
		return err
	}
	if h.o.Out == nil {
		return nil
	}
	url := h.url()
	secret, err := h.Guard.SetupSecret(ctx)
	if err != nil || secret == "" {
		return err
	}
	_, err = fmt.Fprintf(h.o.Out, "The page is %s\nIt has no user yet. Create the first one with this link, which is "+
		"valid once, for 30 minutes:\n    %s/setup?token=%s\n", url, url, secret)
	return err
}

type leases struct{ loop *node.Devices }

func (l leases) Seen(node string) time.Time       { return l.loop.Liveness(node).Seen }
func (l leases) Lease(node string) *coordv1.Lease { return l.loop.NodeLease(node) }
func (l leases) Leases() []*coordv1.Lease         { return l.loop.NodeLeases() }
