package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"runtime"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"flotilla.dev/hub/kube/resource"
)

// Kubernetes is the release whose API this is; kubectl compares it with its own version.
const (
	kubernetesMajor, kubernetesMinor = "1", "37"
	kubernetesVersion                = "v1.37.0"
)

func (s *Server) version(w http.ResponseWriter, r *http.Request) {
	c := &call{Server: s, w: w, r: r}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		http.Error(w, "/version supports only GET", http.StatusMethodNotAllowed)
		return
	}
	git := kubernetesVersion + "+flotilla"
	if s.Version != "" {
		git += "." + s.Version
	}
	b, _ := json.MarshalIndent(version.Info{ // strings only: cannot fail
		Major: kubernetesMajor, Minor: kubernetesMinor, GitVersion: git, GitTreeState: "clean",
		GoVersion: runtime.Version(), Compiler: runtime.Compiler, Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}, "", "  ")
	c.send(http.StatusOK, b, resource.MediaJSON)
}

// discover answers discovery requests: aggregated for /api and /apis if the client accepts it,
// otherwise the older documents.
func (c *call) discover() error {
	if c.r.Method != http.MethodGet && c.r.Method != http.MethodHead {
		return apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, c.r.Method, schema.GroupResource{}, "", "", 0,
			false)
	}
	gv := schema.GroupVersion{Group: c.group, Version: c.target.version}
	if c.root == "api" && gv.Version == "" || c.root == "apis" && gv.Group == "" {
		for _, a := range resource.Clauses(c.r.Header.Get("Accept")) {
			v := a.Params["v"]
			if a.Media == resource.MediaJSON && a.Params["as"] == "APIGroupDiscoveryList" &&
				a.Params["g"] == "apidiscovery.k8s.io" && (v == "v2" || v == "v2beta1") {
				return c.aggregated(v)
			}
		}
		c.w.Header().Set("Vary", "Accept")
	}
	f, err := resource.Negotiate(c.r, []string{resource.MediaJSON, resource.MediaYAML, resource.MediaProto})
	if err != nil {
		return err
	}
	if gv.Version == "" && gv.Group == "" {
		return c.legacyRoot(f)
	}
	if gv.Version == "" {
		groups := c.apiGroups(gv.Group)
		if len(groups) == 0 {
			return errNotFound
		}
		g := groups[0]
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		return c.write(http.StatusOK, &g, f.Media)
	}
	list := &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: gv.String()}
	for _, r := range c.resources {
		if r.GroupVersion() != gv {
			continue
		}
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: r.Plural, SingularName: r.Singular, Namespaced: r.Namespaced, Kind: r.Kind,
			Verbs: r.Verbs, ShortNames: r.Short, Categories: r.Categories,
		})
		for _, s := range r.Subs {
			a := metav1.APIResource{Name: r.Plural + "/" + s.Name, Namespaced: r.Namespaced, Kind: r.Kind, Verbs: s.Verbs}
			if s.Kind.Kind != "" {
				a.Kind = s.Kind.Kind
				if s.Kind.GroupVersion() != gv {
					a.Group, a.Version = s.Kind.Group, s.Kind.Version
				}
			}
			list.APIResources = append(list.APIResources, a)
		}
	}
	if list.APIResources == nil {
		return errNotFound
	}
	return c.write(http.StatusOK, list, f.Media)
}

func (c *call) legacyRoot(f resource.Form) error {
	if c.root == "api" {
		return c.write(http.StatusOK, &metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: c.r.Host}},
		}, f.Media)
	}
	return c.write(http.StatusOK, &metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: c.apiGroups(""),
	}, f.Media)
}

// apiGroups returns the named group, or all for "", each with its preferred version first.
func (c *call) apiGroups(name string) (groups []metav1.APIGroup) {
	for _, gv := range c.versions() {
		if gv.Group == "" || name != "" && gv.Group != name {
			continue
		}
		v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		i := slices.IndexFunc(groups, func(g metav1.APIGroup) bool { return g.Name == gv.Group })
		if i < 0 {
			groups = append(groups, metav1.APIGroup{Name: gv.Group, PreferredVersion: v})
			i = len(groups) - 1
		}
		groups[i].Versions = append(groups[i].Versions, v)
	}
	return groups
}

// versions returns each group and version that is served, once.
func (s *Server) versions() (list []schema.GroupVersion) {
	for _, r := range s.resources {
		if gv := r.GroupVersion(); !slices.Contains(list, gv) {
			list = append(list, gv)
		}
	}
	return list
}

func (c *call) aggregated(v string) error {
	list := &apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/" + v},
		Items:    []apidiscoveryv2.APIGroupDiscovery{},
	}
	for _, gv := range c.versions() {
		if (gv.Group == "") != (c.root == "api") {
			continue
		}
		i := slices.IndexFunc(list.Items, func(g apidiscoveryv2.APIGroupDiscovery) bool { return g.Name == gv.Group })
		if i < 0 {
			list.Items = append(list.Items, apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: gv.Group}})
			i = len(list.Items) - 1
		}
		list.Items[i].Versions = append(list.Items[i].Versions, apidiscoveryv2.APIVersionDiscovery{
			Version: gv.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent, Resources: c.described(gv),
		})
	}
	b, err := resource.Marshal(apiruntime.Object(list), resource.MediaJSON)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	tag := `"` + hex.EncodeToString(sum[:]) + `"`
	c.w.Header().Set("Vary", "Accept")
	c.w.Header().Set("ETag", tag)
	if c.r.Header.Get("If-None-Match") == tag {
		c.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	c.send(http.StatusOK, b, "application/json;g=apidiscovery.k8s.io;v="+v+";as=APIGroupDiscoveryList")
	return nil
}

func (s *Server) described(gv schema.GroupVersion) (list []apidiscoveryv2.APIResourceDiscovery) {
	kind := func(k schema.GroupVersionKind) *metav1.GroupVersionKind {
		return &metav1.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
	}
	for _, r := range s.resources {
		if r.GroupVersion() != gv {
			continue
		}
		d := apidiscoveryv2.APIResourceDiscovery{
			Resource: r.Plural, ResponseKind: kind(r.GroupVersionKind), Scope: apidiscoveryv2.ScopeCluster,
			SingularResource: r.Singular, Verbs: r.Verbs, ShortNames: r.Short, Categories: r.Categories,
		}
		if r.Namespaced {
			d.Scope = apidiscoveryv2.ScopeNamespace
		}
		for _, sub := range r.Subs {
			k := sub.Kind
			if k.Kind == "" {
				k = r.GroupVersionKind
			}
			d.Subresources = append(d.Subresources,
				apidiscoveryv2.APISubresourceDiscovery{Subresource: sub.Name, ResponseKind: kind(k), Verbs: sub.Verbs})
		}
		list = append(list, d)
	}
	return list
}
