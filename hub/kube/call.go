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

// A call is one request on its way to its answer.
type call struct {
	*Server
	w http.ResponseWriter
	r *http.Request

	target
	res  *resource.Resource
	sub  *resource.Sub // nil: the resource itself
	verb string

	who access.User

	audited bool         // what was decided is in the audit already
	reader  *body.Reader // of the body; nil: it was not read
}

// errNotFound is a path that nothing is served under; it is answered in plain
// text, as by Kubernetes.
var errNotFound = errors.New("404 page not found")

func (c *call) serve() error {
	if err := c.authenticate(); err != nil {
		return err
	}
	if err := c.himself(); err != nil {
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
	if !c.may(c.who.Role, c.res, c.verb, what) {
		return c.forbidden(what)
	}
	if limit := c.r.URL.Query().Get("timeout"); limit != "" && c.verb != "watch" && c.target.sub != "proxy" {
		if _, err := time.ParseDuration(limit); err != nil {
			return apierrors.NewBadRequest("invalid timeout specified in the request URL - " + err.Error())
		}
	}
	return c.answer()
}

// himself refuses a request that is to be taken for somebody else's: it must not be answered as
// that of its sender.
func (c *call) himself() error {
	for name := range c.r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			e := apierrors.NewForbidden(schema.GroupResource{Resource: "users"}, c.r.Header.Get("Impersonate-User"), nil)
			e.ErrStatus.Message = "impersonation is not implemented: leave out --as, --as-group and --as-uid, and use a " +
				"kubeconfig or a token of the role that is meant"
			return e
		}
	}
	return nil
}

// authenticate finds out who asks. What he wants changed is brought to the loop in his name.
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
	case err != nil && c.r.Context().Err() != nil: // it ended with the hub, before anything began
		return c.stopping()
	case err != nil:
		return apierrors.NewInternalError(err)
	}
	if err := c.Access.CheckForm(c.r, u); err != nil {
		return apierrors.NewForbidden(schema.GroupResource{}, "", err)
	}
	if u.Role == access.Device {
		return apierrors.NewForbidden(schema.GroupResource{}, "", errors.New(
			"the certificate of a device is for the hub's broker: get one for kubectl with `flotilla-hub kubeconfig`"))
	}
	c.who = u
	c.r = c.r.WithContext(control.From(c.r.Context(), "user "+u.Name))
	return nil
}

// unavailable answers while the hub's database does not. Where it is, and why, is for the
// log: a stranger may ask.
func (c *call) unavailable() error {
	c.w.Header().Set("Retry-After", "1")
	return apierrors.NewServiceUnavailable("the hub's database does not answer: nothing was changed as far as is " +
		"known; try again in a moment, and see the hub's log")
}

// stopping answers what was surely not done while the hub stops: it is to be sent again.
func (c *call) stopping() error {
	c.w.Header().Set("Retry-After", "1")
	return apierrors.NewServiceUnavailable(control.ErrStopped.Error())
}

// groups are those of a person in Kubernetes' words.
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
		c.w.Header().Set("Cache-Control", "no-store") // not on the disk of a browser either
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

// find returns the resource that a path names, nil if there is none.
func (s *Server) find(t target) *resource.Resource {
	for _, r := range s.resources {
		if r.Plural == t.resource && r.Group == t.group && r.Version == t.version {
			return r
		}
	}
	return nil
}

// unsupported is the answer to a verb ("": none) that the resource does not have, in the word
// of the client.
func (c *call) unsupported(verb, action string) error {
	e := apierrors.NewMethodNotSupported(c.res.GroupResource(), action)
	switch {
	case c.res.Empty:
		e.ErrStatus.Message = c.res.Row.Absent
	case c.res.Row.Published != "":
		e.ErrStatus.Message = c.res.Row.Published
	case c.res.State == state.DeviceReports:
		e.ErrStatus.Message = "device reports are what devices say of their hardware, and go with their node: they can " +
			"only be read"
	case c.res.State == state.Incidents:
		e.ErrStatus.Message = "incidents are what the hub finds wrong, and close when it is over: only their fields " +
			"acknowledged and note can be written, with patch"
	case c.res.State == state.Volumes && (verb == "create" || verb == ""):
		e.ErrStatus.Message = "persistent volumes are made for claims: create a PersistentVolumeClaim, and a pod that uses it"
	case c.res.State == state.JoinRequests && verb == "create":
		e.ErrStatus.Message = onlyAsked
	}
	return e
}

// onlyAsked is why nobody creates a request by hand: it would belong to no device.
const onlyAsked = "certificate signing requests are made by devices that join with a token: type what " +
	"`flotilla-hub token create --require-approval` prints on the device; people get a certificate with " +
	"`flotilla-hub kubeconfig`"

// mayCreate refuses what would create an object in another way than by a POST where that one
// would be refused.
func (c *call) mayCreate() error {
	switch {
	case !slices.Contains(c.res.Verbs, "create"):
		return c.unsupported("create", "create")
	case !c.may(c.who.Role, c.res, "create", c.resource):
		like := *c
		like.verb = "create"
		return like.forbidden(c.resource)
	}
	return nil
}

// notServed is the answer to a subresource that this hub does not have. Tools
// tell by the missing name in its details that the subresource is meant.
func (c *call) notServed() error {
	message := fmt.Sprintf("%s/%s is not served by this hub", c.res.Plural, c.target.sub)
	switch {
	case c.res.State == state.ServiceAccounts && c.target.sub == "token":
		message = "service accounts have no tokens: give a program that calls the API a token of a person, as a secret"
	case c.sub != nil && c.sub.Name == "proxy":
		message = "devices serve nothing below nodes/proxy but the log of their agent: ask for /api/v1/nodes/" + c.name +
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
	e.ErrStatus.Message = c.plainForbidden() + `: User "` + c.who.Name + `" cannot ` + c.verb + ` resource "` + what +
		`" in API group "` + group + `" ` + scope + `: role "` + string(c.who.Role) + `" does not allow it`
	return e
}

func (c *call) plainForbidden() string {
	if c.name == "" {
		return c.res.GroupResource().String() + " is forbidden"
	}
	return c.res.GroupResource().String() + ` "` + c.name + `" is forbidden`
}

// missing is the answer to a request about an object that is not there.
func (c *call) missing() error { return c.res.NotFound(c.name) }

// fail answers with an error.
func (c *call) fail(err error) {
	if errors.Is(err, errNotFound) {
		http.Error(c.w, err.Error(), http.StatusNotFound)
		return
	}
	c.writeStatus(statusOf(err))
}

// statusOf turns any error into the Status that tells it.
func statusOf(err error) *metav1.Status {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	st := known.Status()
	st.Kind, st.APIVersion = "Status", "v1"
	return &st
}
