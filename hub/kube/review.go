package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	authnv1 "k8s.io/api/authentication/v1"
	authnv1beta1 "k8s.io/api/authentication/v1beta1"
	authzv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/kube/resource"
)

// review answers questions about users and rights. Users may ask about themselves; administrators
// may ask about others.
func (c *call) review() error {
	o, f, err := c.readPosted(c.res.GroupVersionKind)
	if err != nil {
		return err
	}
	who := authnv1.UserInfo{Username: c.user.Name, Groups: groups(c.user)}
	switch o := o.(type) {
	case *authnv1.SelfSubjectReview:
		o.Status.UserInfo = who
	case *authnv1beta1.SelfSubjectReview:
		o.Status.UserInfo = who
	case *authzv1.SelfSubjectAccessReview:
		if (o.Spec.ResourceAttributes == nil) == (o.Spec.NonResourceAttributes == nil) {
			return apierrors.NewInvalid(c.res.GroupVersionKind.GroupKind(), "", field.ErrorList{field.Invalid(
				field.NewPath("spec"), o.Spec.NonResourceAttributes,
				"exactly one of nonResourceAttributes or resourceAttributes must be specified")})
		}
		o.Status = c.judge([]access.Role{c.user.Role}, o.Spec.ResourceAttributes, o.Spec.NonResourceAttributes)
	case *authzv1.SubjectAccessReview:
		if o.Status, err = c.reviewOthers(o.Spec); err != nil {
			return err
		}
	case *authzv1.LocalSubjectAccessReview:
		if o.Namespace == "" {
			o.Namespace = c.namespace
		}
		at := field.NewPath("spec", "resourceAttributes", "namespace")
		switch a := o.Spec.ResourceAttributes; {
		case o.Spec.NonResourceAttributes != nil:
			return c.invalidReview(field.Invalid(field.NewPath("spec", "nonResourceAttributes"), o.Spec.NonResourceAttributes,
				"disallowed on this kind of request"))
		case o.Namespace != c.namespace:
			return apierrors.NewBadRequest(fmt.Sprintf("namespace mismatch: the request is for %s, the review says %s",
				c.namespace, o.Namespace))
		case a != nil && a.Namespace != c.namespace:
			return c.invalidReview(field.Invalid(at, a.Namespace, "must match metadata.namespace"))
		}
		if o.Status, err = c.reviewOthers(o.Spec); err != nil {
			return err
		}
	case *authzv1.SelfSubjectRulesReview:
		if o.Spec.Namespace == "" {
			return apierrors.NewBadRequest("no namespace on request: say which in spec.namespace")
		}
		o.Status = c.myRules()
	}
	o.GetObjectKind().SetGroupVersionKind(c.res.GroupVersionKind)
	return c.write(http.StatusCreated, o, f.Media)
}

// invalidReview refuses an invalid review.
func (c *call) invalidReview(why *field.Error) error {
	return apierrors.NewInvalid(c.res.GroupVersionKind.GroupKind(), "", field.ErrorList{why})
}

// reviewOthers answers what another user, or a member of one of these groups, may do. A group
// stands for a role.
func (c *call) reviewOthers(spec authzv1.SubjectAccessReviewSpec) (authzv1.SubjectAccessReviewStatus, error) {
	p := field.NewPath("spec")
	switch {
	case (spec.ResourceAttributes == nil) == (spec.NonResourceAttributes == nil):
		return authzv1.SubjectAccessReviewStatus{},
			c.invalidReview(field.Invalid(p.Child("resourceAttributes"), spec.NonResourceAttributes,
				"exactly one of nonResourceAttributes or resourceAttributes must be specified"))
	case spec.User == "" && len(spec.Groups) == 0:
		return authzv1.SubjectAccessReviewStatus{},
			c.invalidReview(field.Invalid(p.Child("user"), spec.User, "at least one of user or group must be specified"))
	}
	var roles []access.Role
	for _, r := range []access.Role{access.Admin, access.Operator, access.Viewer, access.Device} {
		if slices.Contains(spec.Groups, groupOf(r)) {
			roles = append(roles, r)
		}
	}
	if spec.User != "" && c.RoleOf != nil {
		role, err := c.RoleOf(c.r.Context(), spec.User)
		if err != nil {
			return authzv1.SubjectAccessReviewStatus{}, apierrors.NewInternalError(err)
		}
		if role != "" {
			roles = append(roles, role)
		}
	}
	return c.judge(roles, spec.ResourceAttributes, spec.NonResourceAttributes), nil
}

// judge reports whether one of the roles allows the request.
func (c *call) judge(roles []access.Role, a *authzv1.ResourceAttributes,
	other *authzv1.NonResourceAttributes) authzv1.SubjectAccessReviewStatus {
	if len(roles) == 0 {
		return authzv1.SubjectAccessReviewStatus{Reason: "no role is known for this user or these groups"}
	}
	why := make([]string, 0, len(roles))
	for _, role := range roles {
		if a != nil && c.allows(role, a.Verb, a.Group, a.Resource, a.Subresource) ||
			other != nil && other.Verb == "get" && isOpen(other.Path) {
			return authzv1.SubjectAccessReviewStatus{Allowed: true, Reason: "role " + string(role) + " allows it"}
		}
		why = append(why, "role "+string(role)+" does not allow it")
	}
	return authzv1.SubjectAccessReviewStatus{Reason: strings.Join(why, ", ")}
}

// openPaths are paths that every authenticated user may read.
var openPaths = []string{
	"/", "/api", "/api/*", "/apis", "/apis/*", "/healthz", "/healthz/*", "/livez", "/livez/*", "/openapi", "/openapi/*",
	"/readyz", "/readyz/*", "/version", "/version/",
}

func isOpen(path string) bool {
	return slices.ContainsFunc(openPaths, func(p string) bool {
		dir, any := strings.CutSuffix(p, "*")
		return p == path || any && strings.HasPrefix(path, dir)
	})
}

// allows reports whether a role may use a verb on a resource. "*" asks for all verbs or all
// resources.
func (c *call) allows(role access.Role, verb, group, resource, sub string) bool {
	asked, all := false, true
	for _, r := range c.resources {
		if group != "*" && r.Group != group || resource != "*" && r.Plural != resource {
			continue
		}
		verbs, what := r.Verbs, r.Plural
		if sub != "" {
			s := r.Sub(sub)
			if s == nil {
				continue
			}
			verbs, what = s.Verbs, what+"/"+sub
		}
		for _, v := range verbs {
			if verb == "*" || verb == v {
				asked = true
				all = all && c.may(role, r, v, what)
			}
		}
	}
	if !asked {
		// If the resource is not served, only the role decides.
		return c.Allow(role, verb, resource)
	}
	return all
}

// may reports whether a role may use a verb on a resource or subresource. Every user may review
// their own identity and rights.
func (s *Server) may(role access.Role, r *resource.Resource, verb, what string) bool {
	return strings.HasPrefix(r.Plural, "selfsubject") || s.Allow(role, verb, what)
}

func (c *call) myRules() authzv1.SubjectRulesReviewStatus {
	st := authzv1.SubjectRulesReviewStatus{
		ResourceRules:    []authzv1.ResourceRule{},
		NonResourceRules: []authzv1.NonResourceRule{{Verbs: []string{"get"}, NonResourceURLs: openPaths}},
	}
	add := func(r *resource.Resource, verbs []string, what string) {
		var mine []string
		for _, v := range verbs {
			if c.may(c.user.Role, r, v, what) {
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
		st.ResourceRules = append(st.ResourceRules,
			authzv1.ResourceRule{Verbs: mine, APIGroups: []string{r.Group}, Resources: []string{what}})
	}
	for _, r := range c.resources {
		add(r, r.Verbs, r.Plural)
		for _, s := range r.Subs {
			add(r, s.Verbs, r.Plural+"/"+s.Name)
		}
	}
	return st
}
