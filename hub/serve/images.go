package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/access"
	"flotilla.dev/hub/cli/socket"
	"flotilla.dev/hub/listen"
	"flotilla.dev/hub/registry"
	"flotilla.dev/hub/state"
	"flotilla.dev/hub/store"
	"flotilla.dev/shared/policy"
	"flotilla.dev/shared/wire"
)

// openImages opens the image registry, unless the quota is 0.
func (h *Hub) openImages() (err error) {
	if h.cfg.ImageQuota > 0 {
		h.images, err = registry.Open(filepath.Join(h.cfg.DataDir, "images"), h.cfg.ImageQuota)
	}
	return err
}

// serveImages checks the right of each request to the image registry. Docker and similar clients
// send an API token as the password of a basic login, with any user name. Devices have their
// certificates.
func (h *Hub) serveImages(w http.ResponseWriter, q *http.Request) {
	if h.images == nil {
		registry.Refuse(w, http.StatusNotFound, "UNSUPPORTED", "this hub keeps no images: its --image-quota is 0")
		return
	}
	if _, token, ok := q.BasicAuth(); ok {
		q = q.Clone(q.Context())
		q.Header.Set("Authorization", "Bearer "+token)
	}
	verb := "get"
	if registry.Writes(q) {
		verb = "update"
	}
	u, err := h.Guard.Authenticate(q)
	a := store.Audit{Who: u.Name, Via: u.Via, Source: access.Source(q), Verb: verb, Resource: "images",
		Name: strings.TrimPrefix(q.URL.Path, "/v2/")}
	refuse := func(status int, code, message string) {
		a.Code, a.Message = status, message
		h.Guard.Note(a)
		registry.Refuse(w, status, code, message)
	}
	if err == nil {
		err = h.Guard.CheckForm(q, u)
	}
	switch {
	case errors.Is(err, access.ErrUnauthenticated):
		w.Header().Set("WWW-Authenticate", `Basic realm="Flotilla"`)
		if q.Header.Get("Authorization") == "" { // every client first sends a request without a login
			registry.Refuse(w, http.StatusUnauthorized, "UNAUTHORIZED",
				"log in with an API token as the password: docker login "+q.Host)
			return
		}
		refuse(http.StatusUnauthorized, "UNAUTHORIZED", err.Error())
	case errors.Is(err, access.ErrTooMany):
		listen.Busy(w, err.Error())
	case errors.Is(err, access.ErrForbidden):
		refuse(http.StatusForbidden, "DENIED", err.Error())
	case err != nil:
		registry.Refuse(w, http.StatusServiceUnavailable, "UNKNOWN", "the hub cannot answer now; see its log")
	case !access.Allow(u.Role, verb, "images"):
		refuse(http.StatusForbidden, "DENIED", fmt.Sprintf("%s has the role %s, which may not push images", u.Name, u.Role))
	default:
		if u.Role == access.Device && h.sendToPeers(w, q, u.Name) {
			return
		}
		h.changeImages(w, q, a)
	}
}

// sendToPeers names devices of the same site from which a device may pull a blob, if its site
// shares images and one of them has asked before. Then it has answered.
func (h *Hub) sendToPeers(w http.ResponseWriter, q *http.Request, node string) bool {
	_, digest, blob := strings.Cut(q.URL.Path, "/blobs/")
	port, err := strconv.ParseUint(q.Header.Get(wire.HeaderPeerPort), 10, 16)
	if !blob || q.Method != http.MethodGet || err != nil || !h.images.Has(digest) {
		return false
	}
	s := h.Loop.Snapshot()
	address := func(node string) string {
		if n := s.Node(node); n != nil {
			for _, a := range n.Status.Addresses {
				if a.Type == corev1.NodeInternalIP {
					return net.JoinHostPort(a.Address, strconv.FormatUint(port, 10))
				}
			}
		}
		return ""
	}
	n, mine := s.Node(node), address(node)
	if n == nil || mine == "" || len(q.Header.Get(wire.HeaderNotFrom)) > 4096 {
		return false
	}
	site := state.SiteOf(n)
	if of := s.Site(site); of == nil || !of.Spec.ShareImages {
		return false
	}
	failed := strings.Split(q.Header.Get(wire.HeaderNotFrom), ",")
	peers := h.peers.Ask(site, registry.Device{Node: node, Address: mine}, digest, h.Loop.Now(),
		func(d registry.Device) bool {
			of := s.Node(d.Node)
			return of != nil && state.SiteOf(of) == site && state.ReadyOf(of) == corev1.ConditionTrue &&
				!slices.Contains(failed, d.Address)
		})
	if len(peers) == 0 {
		return false
	}
	w.Header().Set(wire.HeaderPeers, strings.Join(peers, ","))
	w.WriteHeader(http.StatusNoContent)
	return true
}

// serveImageSocket serves the registry to commands on this machine. Write permission on the data
// directory is the authorization.
func (h *Hub) serveImageSocket(ctx context.Context) error {
	l, done, err := socket.Listen(filepath.Join(filepath.Dir(h.o.Socket), registry.Socket))
	if err != nil {
		return err
	}
	defer done()
	type peer struct{}
	s := &http.Server{
		ReadHeaderTimeout: time.Minute, IdleTimeout: time.Minute,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peer{}, socket.Peer(c))
		},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			who, _ := q.Context().Value(peer{}).(string)
			h.changeImages(w, q, store.Audit{Who: who, Via: "command line", Verb: "update", Resource: "images",
				Name: strings.TrimPrefix(q.URL.Path, "/v2/")})
		}),
	}
	defer context.AfterFunc(ctx, func() { _ = s.Close() })()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// changeImages answers a request that is allowed. The audit has each manifest that it changes.
func (h *Hub) changeImages(w http.ResponseWriter, q *http.Request, a store.Audit) {
	h.images.ServeHTTP(w, q)
	if q.Method == http.MethodPut && strings.Contains(q.URL.Path, "/manifests/") || q.Method == http.MethodDelete {
		a.Code = http.StatusOK
		h.Guard.Note(a)
	}
}

// imagesUsed returns the digests of images that pods run or workloads name, without duplicates. A
// pod's status has the digest of the image's configuration, which is the engine's id of the image.
func imagesUsed(s state.Snapshot) (digests []string) {
	add := func(image string) {
		if i := strings.LastIndex(image, "sha256:"); i >= 0 {
			digests = append(digests, image[i:])
		}
	}
	for _, k := range state.Kinds() {
		for o := range s.All(k, "") {
			if spec := state.PodSpecOf(o); spec != nil {
				for _, image := range state.ImagesOf(spec) {
					add(image)
				}
			}
			if p, ok := o.(*corev1.Pod); ok {
				for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
					add(c.ImageID)
				}
			}
		}
	}
	slices.Sort(digests)
	return slices.Compact(digests)
}

func (h *Hub) runImages(ctx context.Context) error {
	return h.images.Run(ctx, func() []string { return imagesUsed(h.Loop.Snapshot()) })
}

// imageOrder executes an order of `flotilla-hub image`: "list", "gc" or "rm NAME".
func (h *Hub) imageOrder(order string) (string, error) {
	if h.images == nil {
		return "", errors.New("this hub keeps no images: its --image-quota is 0")
	}
	verb, name, _ := strings.Cut(order, " ")
	switch verb {
	case "list":
		return h.listImages()
	case "gc":
		c, err := h.images.Collect(imagesUsed(h.Loop.Snapshot()))
		return fmt.Sprintf("removed %d manifests and %d blobs: %.1f MiB\n", c.Manifests, c.Blobs, float64(c.Bytes)/(1<<20)),
			err
	case "rm":
		return h.removeImage(name)
	}
	return "", fmt.Errorf("unknown order %q", order)
}

// listImages writes a line for each tag. Tabs separate the columns.
func (h *Hub) listImages() (string, error) {
	all, err := h.images.Images()
	if err != nil {
		return "", err
	}
	var lines strings.Builder
	for _, im := range all {
		fmt.Fprintf(&lines, "hub/%s:%s\t%s\t%.1f MiB\t%s\t%s\n", im.Name, im.Tag,
			cmp.Or(strings.Join(im.Platforms, ","), "one"),
			float64(im.Size)/(1<<20), im.Pushed.UTC().Format(time.RFC3339), im.Digest)
	}
	used, quota := h.images.Usage()
	fmt.Fprintf(&lines, "%.1f of %.1f GiB are used\n", float64(used)/(1<<30), float64(quota)/(1<<30))
	return lines.String(), nil
}

// removeImage removes a tag that no pod and no workload names.
func (h *Hub) removeImage(image string) (string, error) {
	repository, tag, ok := strings.Cut(strings.TrimPrefix(image, "hub/"), ":")
	if !ok {
		return "", fmt.Errorf("%q has no tag; write for example hub/app:1.2", image)
	}
	if by := imageUser(h.Loop.Snapshot(), "hub/"+repository+":"+tag); by != "" {
		return "", fmt.Errorf("%s is used by %s; change or delete that first", image, by)
	}
	if err := h.images.Remove(repository, tag); err != nil {
		return "", err
	}
	return "removed " + image + "; `flotilla-hub image gc` frees its space after a day\n", nil
}

// imageUser returns a pod or workload that names an image, "" for none.
func imageUser(s state.Snapshot, image string) string {
	for _, k := range state.Kinds() {
		for o := range s.All(k, "") {
			if spec := state.PodSpecOf(o); spec != nil && slices.ContainsFunc(state.ImagesOf(spec), func(named string) bool {
				if name, other := policy.HubName(named); other && "hub/"+name == image {
					return true
				}
				named = strings.TrimPrefix(named, "docker.io/")
				return named == image || named+":latest" == image
			}) {
				return state.KeyOf(o).String()
			}
		}
	}
	return ""
}
