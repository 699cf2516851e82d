package kube

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/control"
	"flotilla.dev/hub/kube/body"
	"flotilla.dev/hub/kube/resource"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
)

// A call is one request.
type call struct {
	*Server
	w http.ResponseWriter
	r *http.Request

	target
	res  *resource.Resource
	sub  *resource.Sub // subresource; nil for the resource itself
	verb string

	user access.User

	audited bool         // the decision is already in the audit
	reader  *body.Reader // nil if the body was not read
}

// errNotFound answers a path that is not served. As in Kubernetes, it is plain text.
var errNotFound = errors.New("404 page not found")

func (c *call) serve() error {
	if err := c.authenticate(); err != nil {
		return err
	}
	if err := c.noImpersonation(); err != nil {
		return err
	}
	var ok bool
	if c.target, ok = parsePath(c.r.URL.EscapedPath()); !ok {
		return errNotFound
	}
	if c.root == "openapi" {
		c.OpenAPI.ServeHTTP(c.w, c.r)
		return nil
	}
	if c.resource == "" {
		return c.discover()
	}
	if err := c.route(); err != nil {
		return err
	}
	what := c.resource
	if c.sub != nil {
		what += "/" + c.sub.Name
	}
	if !c.may(c.user.Role, c.res, c.verb, what) {
		return c.forbidden(what)
	}
	if limit := c.r.URL.Query().Get("timeout"); limit != "" && c.verb != "watch" && c.target.sub != "proxy" {
		if _, err := time.ParseDuration(limit); err != nil {
			return apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
		}
	}
	return c.answer()
}

// noImpersonation refuses impersonation. Otherwise the request would run with the sender's own
// rights.
func (c *call) noImpersonation() error {
	for name := range c.r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			e := apierrors.NewForbidden(schema.GroupResource{Resource: "users"}, c.r.Header.Get("Impersonate-User"), nil)
			e.ErrStatus.Message = "impersonation is not implemented: leave out --as, --as-group and --as-uid, and use a " +
				"kubeconfig or a token of that user or role"
			return e
		}
	}
	return nil
}

// authenticate sets the user. The control loop records changes with that name.
func (c *call) authenticate() error {
	u, err := c.Access.Authenticate(c.r)
	switch {
	case errors.Is(err, access.ErrUnauthenticated):
		c.w.Header().Set("WWW-Authenticate", "Bearer")
		return apierrors.NewUnauthorized("Unauthorized: " + err.Error())
	case errors.Is(err, access.ErrTooMany):
		return apierrors.NewTooManyRequests(err.Error(), 1)
	case errors.Is(err, store.ErrUnavailable):
		return c.unavailable()
	case err != nil && c.r.Context().Err() != nil: // the hub is stopping, and the request has not begun
		return c.stopping()
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	if err := c.Access.CheckForm(c.r, u); err != nil {
		return apierrors.NewForbidden(schema.GroupResource{}, "", err)
	}
	if u.Role == access.Device {
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(
			"device certificates are for the hub's broker: create a kubeconfig with `flotilla-hub kubeconfig`"))
	}
	c.user = u
	c.r = c.r.WithContext(control.From(c.r.Context(), "user "+u.Name))
	return nil
}

// unavailable answers while the database does not respond. Only the log has the details, because
// unauthenticated clients can read this text.
func (c *call) unavailable() error {
	c.w.Header().Set("Retry-After", "1")
	return apierrors.NewServiceUnavailable("the hub's database does not respond, and a change may not be stored: " +
		"try again in a moment, and see the hub's log")
}

// stopping tells the client to repeat a request that the stopping hub has not carried out.
func (c *call) stopping() error {
	c.w.Header().Set("Retry-After", "1")
	return apierrors.NewServiceUnavailable(control.ErrStopped.Error())
}

// groups returns the Kubernetes groups of a user.
func groups(u access.User) []string {
	return []string{groupOf(u.Role), "system:authenticated"}
}

func groupOf(r access.Role) string { return "flotilla:" + string(r) + "s" }

// route finds the resource and the verb of the request.
func (c *call) route() error {
	if c.res = c.find(c.target); c.res == nil {
		return errNotFound
	}
	if c.res.Row.Sealed {
		c.w.Header().Set("Cache-Control", "no-store") // browsers must not write secrets to their disks
	}
	if !c.res.Namespaced && c.namespace != "" || c.res.Namespaced && c.namespace == "" && c.name != "" {
		return errNotFound
	}
	if c.target.sub != "" {
		if c.sub = c.res.Sub(c.target.sub); c.sub == nil {
			return c.notServed()
		}
	}
	named := c.name != ""
	switch c.r.Method {
	case http.MethodGet, http.MethodHead:
		c.verb = "get"
		if !named {
			c.verb = "list"
			if truthy(c.r.URL.Query(), "watch") {
				c.verb = "watch"
			}
		}
	case http.MethodPost:
		if !named || c.sub != nil {
			c.verb = "create"
		}
	case http.MethodPut:
		if named {
			c.verb = "update"
		}
	case http.MethodPatch:
		if named {
			c.verb = "patch"
		}
	case http.MethodDelete:
		c.verb = "delete"
		if !named {
			c.verb = "deletecollection"
		}
	}
	verbs := c.res.Verbs
	if c.sub != nil {
		verbs = c.sub.Verbs
	}
	if !slices.Contains(verbs, c.verb) {
		return c.unsupported(c.verb, strings.ToLower(c.r.Method))
	}
	if c.res.Namespaced && c.namespace == "" && (c.verb == "create" || c.verb == "deletecollection") {
		e := apierrors.NewMethodNotSupported(c.res.GroupResource(), strings.ToLower(c.r.Method))
		e.ErrStatus.Message = "objects of this kind are created and deleted in their namespace: use the path " +
			"/namespaces/{namespace}/" + c.resource
		return e
	}
	return nil
}

// find returns the resource that a path names, or nil.
func (s *Server) find(t target) *resource.Resource {
	for _, r := range s.resources {
		if r.Plural == t.resource && r.Group == t.group && r.Version == t.version {
			return r
		}
	}
	return nil
}

// unsupported refuses a verb that the resource does not have. action is the client's word for the
// verb; verb is "" for an unknown verb.
func (c *call) unsupported(verb, action string) error {
	e := apierrors.NewMethodNotSupported(c.res.GroupResource(), action)
	switch {
	case c.res.Empty:
		e.ErrStatus.Message = c.res.Row.Absent
	case c.res.Row.Published != "":
		e.ErrStatus.Message = c.res.Row.Published
	case c.res.State == state.DeviceReports:
		e.ErrStatus.Message = "device reports are read-only: devices send them, and they are deleted with their node"
	case c.res.State == state.Incidents:
		e.ErrStatus.Message = "the hub opens and closes incidents: clients can patch only their fields " +
			"acknowledged and note"
	case c.res.State == state.Volumes && (verb == "create" || verb == ""):
		e.ErrStatus.Message = "the hub creates persistent volumes: create a PersistentVolumeClaim, and a pod that uses it"
	case c.res.State == state.JoinRequests && verb == "create":
		e.ErrStatus.Message = requestsByDevices
	}
	return e
}

// requestsByDevices explains why clients cannot create these requests: such a request would not
// belong to a device.
const requestsByDevices = "certificate signing requests come from devices that join with a token: run on the device " +
	"the command that `flotilla-hub token create --require-approval` prints; people get a certificate with " +
	"`flotilla-hub kubeconfig`"

// mayCreate refuses an update or a patch that would create an object, if a POST of it would be
// refused.
func (c *call) mayCreate() error {
	switch {
	case !slices.Contains(c.res.Verbs, "create"):
		return c.unsupported("create", "create")
	case !c.may(c.user.Role, c.res, "create", c.resource):
		like := *c
		like.verb = "create"
		return like.forbidden(c.resource)
	}
	return nil
}

// notServed refuses an unknown subresource. Its Status does not name the object, so that tools do
// not take the object for missing.
func (c *call) notServed() error {
	message := fmt.Sprintf("%s/%s is not served by this hub", c.res.Plural, c.target.sub)
	switch {
	case c.res.State == state.ServiceAccounts && c.target.sub == "token":
		message = "service accounts have no tokens: give a program that calls the API a user's token, in a secret"
	case c.sub != nil && c.sub.Name == "proxy":
		message = "nodes/proxy serves only the log of the device's agent: use /api/v1/nodes/" + c.name +
			"/proxy/logs/?query=kubelet"
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Details: &metav1.StatusDetails{Group: c.res.Group, Kind: c.res.Plural},
		Message: message,
	}}
}

func (c *call) answer() error {
	switch c.res.Kind {
	case "SelfSubjectReview", "SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview",
		"LocalSubjectAccessReview":
		return c.review()
	case "NodeMetrics", "PodMetrics":
		return c.usage()
	}
	if c.sub != nil {
		switch c.sub.Name {
		case "log":
			return c.log()
		case "proxy":
			switch c.res.State {
			case state.Pods:
				return c.podProxy()
			case state.Services:
				return c.serviceProxy()
			}
			return c.nodeLog()
		case "exec", "attach", "portforward":
			return c.stream()
		case "eviction":
			return c.evict()
		case "binding":
			return c.bind()
		case "scale":
			return c.scale()
		}
	}
	c.auditReading()
	switch c.verb {
	case "get":
		return c.get()
	case "list":
		return c.list()
	case "watch":
		return c.watch()
	case "create":
		return c.create()
	case "update":
		return c.update()
	case "patch":
		return c.patch()
	case "delete":
		return c.delete()
	default:
		return c.deleteCollection()
	}
}

func (c *call) forbidden(what string) error {
	e := apierrors.NewForbidden(c.res.GroupResource(), c.name, nil)
	scope := "at the cluster scope"
	if c.namespace != "" {
		scope = `in the namespace "` + c.namespace + `"`
	}
	group := c.res.Group
	e.ErrStatus.Message = c.plainForbidden() + `: User "` + c.user.Name + `" cannot ` + c.verb + ` resource "` + what +
		`" in API group "` + group + `" ` + scope + `: role "` + string(c.user.Role) + `" does not allow it`
	return e
}

func (c *call) plainForbidden() string {
	if c.name == "" {
		return c.res.GroupResource().String() + " is forbidden"
	}
	return c.res.GroupResource().String() + ` "` + c.name + `" is forbidden`
}

// missing returns NotFound for the request's object.
func (c *call) missing() error { return c.res.NotFound(c.name) }

// fail answers with an error.
func (c *call) fail(err error) {
	if errors.Is(err, errNotFound) {
		http.Error(c.w, err.Error(), http.StatusNotFound)
		return
	}
	c.writeStatus(statusOf(err))
}

// statusOf converts any error to a Status.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	st := known.Status()
	st.Kind, st.APIVersion = "Status", "v1"
	return &st
}
