package kube

import (
	"net/http"
	"slices"
	"strings"

	authnv1 "k8s.io/api/authentication/v1"
	authnv1beta1 "k8s.io/api/authentication/v1beta1"
	authzv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// review answers a client who asks who he is, and what he may do.
func (c *call) review() error {
	o, f, err := c.posted(c.res.GroupVersionKind)
	if err != nil {
		return err
	}
	who := authnv1.UserInfo{Username: c.who.Name, Groups: groups(c.who)}
	switch o := o.(type) {
	case *authnv1.SelfSubjectReview:
		o.Status.UserInfo = who
	case *authnv1beta1.SelfSubjectReview:
		o.Status.UserInfo = who
	case *authzv1.SelfSubjectAccessReview:
		if (o.Spec.ResourceAttributes == nil) == (o.Spec.NonResourceAttributes == nil) {
			return apierrors.NewInvalid(c.res.GroupVersionKind.GroupKind(), "", field.ErrorList{field.Invalid(
				field.NewPath("spec"), o.Spec.NonResourceAttributes, "exactly one of nonResourceAttributes or resourceAttributes must be specified")})
		}
		o.Status = c.mayI(o.Spec)
	case *authzv1.SelfSubjectRulesReview:
		if o.Spec.Namespace == "" {
			return apierrors.NewBadRequest("no namespace on request: say which in spec.namespace")
		}
		o.Status = c.myRules()
	}
	o.GetObjectKind().SetGroupVersionKind(c.res.GroupVersionKind)
	return c.write(http.StatusCreated, o, f.media)
}

func (c *call) mayI(spec authzv1.SelfSubjectAccessReviewSpec) authzv1.SubjectAccessReviewStatus {
	ok := false
	switch {
	case spec.ResourceAttributes != nil:
		a := spec.ResourceAttributes
		ok = c.allows(a.Verb, a.Group, a.Resource, a.Subresource)
	case spec.NonResourceAttributes != nil:
		ok = spec.NonResourceAttributes.Verb == "get" && open(spec.NonResourceAttributes.Path)
	}
	if ok {
		return authzv1.SubjectAccessReviewStatus{Allowed: true, Reason: "role " + string(c.who.Role) + " allows it"}
	}
	return authzv1.SubjectAccessReviewStatus{Reason: "role " + string(c.who.Role) + " does not allow it"}
}

// openPaths are read by anyone who is somebody.
var openPaths = []string{
	"/api", "/api/*", "/apis", "/apis/*", "/healthz", "/healthz/*", "/livez", "/livez/*", "/openapi", "/openapi/*",
	"/readyz", "/readyz/*", "/version", "/version/",
}

func open(path string) bool {
	return slices.ContainsFunc(openPaths, func(p string) bool {
		dir, any := strings.CutSuffix(p, "*")
		return p == path || any && strings.HasPrefix(path, dir)
	})
}

// allows tells whether the client may do a verb to what is served under a name;
// "*" asks for every one of them.
func (c *call) allows(verb, group, resource, sub string) bool {
	asked, all := false, true
	for _, r := range c.resources {
		if group != "*" && r.Group != group || resource != "*" && r.plural != resource {
			continue
		}
		verbs, what := r.verbs, r.plural
		if sub != "" {
			s := r.sub(sub)
			if s == nil {
				continue
			}
			verbs, what = s.verbs, what+"/"+sub
		}
		for _, v := range verbs {
			if verb == "*" || verb == v {
				asked = true
				all = all && c.may(r, v, what)
			}
		}
	}
	if !asked {
		// Of what is not served, only the role can speak.
		return c.Allow(c.who.Role, verb, resource)
	}
	return all
}

func (c *call) may(r *resource, verb, what string) bool {
	if r.Group == authnv1.GroupName || r.Group == authzv1.GroupName {
		return true
	}
	return c.Allow(c.who.Role, verb, what)
}

func (c *call) myRules() authzv1.SubjectRulesReviewStatus {
	st := authzv1.SubjectRulesReviewStatus{
		ResourceRules:    []authzv1.ResourceRule{},
		NonResourceRules: []authzv1.NonResourceRule{{Verbs: []string{"get"}, NonResourceURLs: openPaths}},
	}
	add := func(r *resource, verbs []string, what string) {
		var mine []string
		for _, v := range verbs {
			if c.may(r, v, what) {
				mine = append(mine, v)
			}
		}
		if len(mine) == 0 {
			return
		}
		for i := range st.ResourceRules {
			rule := &st.ResourceRules[i]
			if rule.APIGroups[0] == r.Group && slices.Equal(rule.Verbs, mine) {
				if !slices.Contains(rule.Resources, what) {
					rule.Resources = append(rule.Resources, what)
				}
				return
			}
		}
		st.ResourceRules = append(st.ResourceRules, authzv1.ResourceRule{Verbs: mine, APIGroups: []string{r.Group}, Resources: []string{what}})
	}
	for _, r := range c.resources {
		add(r, r.verbs, r.plural)
		for _, s := range r.subs {
			add(r, s.verbs, r.plural+"/"+s.name)
		}
	}
	return st
}
