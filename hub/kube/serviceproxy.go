package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"flotilla.dev/hub/state"
)

type proxiedKey struct{}

// serviceProxy answers what is asked through the only service that there is: kubernetes, which is
// this API. The request goes no further than here, and is answered as if its sender had asked
// directly: who he is, and what he may do, is looked at again. A proxy through the proxy is refused.
func (c *call) serviceProxy() error {
	t, err := parseProxyTarget(c.name)
	if err != nil {
		return err
	}
	service, _ := c.Fleet.Snapshot().Get(state.Key{Kind: state.Services, Namespace: c.namespace, Name: t.name}).(*corev1.Service)
	if service == nil {
		c.name = t.name
		return c.missing()
	}
	if t.scheme != "https" {
		return apierrors.NewBadRequest(fmt.Sprintf("service %s speaks https: write https:%s:443", t.name, t.name))
	}
	// Tools know that it is 443; the hub's own port is what the service says.
	if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
		return t.port == "" || t.port == p.Name || t.port == strconv.Itoa(int(p.Port)) || t.port == "443"
	}) {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", t.port, t.name))
	}
	if c.r.Context().Value(proxiedKey{}) != nil {
		return apierrors.NewBadRequest("a proxy to the API through a proxy to the API: ask it directly")
	}
	to, err := belowProxy(c.r.URL)
	if err != nil {
		return err
	}
	r := c.r.Clone(context.WithValue(c.r.Context(), proxiedKey{}, true))
	r.URL.Path, r.URL.RawPath, r.RequestURI = to.Path, to.RawPath, to.RequestURI()
	var h http.Handler = c.Server
	if at, _, _ := strings.Cut(strings.TrimPrefix(to.Path, "/"), "/"); slices.Contains(healthPaths, "/"+at) {
		h = c.health
	}
	h.ServeHTTP(c.w, r)
	return nil
}

// belowProxy is what a request asks of whom it is passed on to, as it was written:
// /api/v1/namespaces/NAMESPACE/KIND/NAME/proxy/PATH
func belowProxy(u *url.URL) (*url.URL, error) {
	to := &url.URL{RawQuery: u.RawQuery, RawPath: "/"}
	if parts := strings.SplitN(u.EscapedPath(), "/", 9); len(parts) == 9 {
		to.RawPath += parts[8]
	}
	var err error
	if to.Path, err = url.PathUnescape(to.RawPath); err != nil {
		return nil, apierrors.NewBadRequest("the path below proxy cannot be read: " + err.Error())
	}
	return to, nil
}

// aboveProxy is the other part of that path, up to proxy, without a slash at its end.
func aboveProxy(u *url.URL) string {
	parts := strings.SplitN(u.EscapedPath(), "/", 9)
	return strings.Join(parts[:min(len(parts), 8)], "/")
}
