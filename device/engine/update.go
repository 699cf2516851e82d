package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
)

// LimitsOf returns the limits that an engine with this Info enforces for a container of s.
func LimitsOf(s Spec, info Info) Limits {
	var r container.Resources
	limit(&r, s, info)
	return numbers(r)
}

func numbers(r container.Resources) Limits {
	return Limits{Memory: r.Memory, MemorySwap: r.MemorySwap, CPUQuota: r.CPUQuota, CPUShares: r.CPUShares,
		CPUs: r.CpusetCpus}
}

func (a *api) Update(ctx context.Context, id string, s Spec) error {
	var r container.Resources
	limit(&r, Spec{MemoryBytes: s.MemoryBytes, SwapBytes: s.SwapBytes, MilliCPU: s.MilliCPU, CPUShares: s.CPUShares,
		CPUs: s.CPUs}, a.current.Load().info)
	if a.podman() {
		return explain(a.updatePodman(ctx, id, r), "update container", id)
	}
	_, err := a.client().ContainerUpdate(ctx, id, client.ContainerUpdateOptions{Resources: &r})
	return explain(err, "update container", id)
}

// updatePodman uses Podman's own API, since its Docker API lacks the call before 5.3. The request
// has the form of the OCI runtime specification.
func (a *api) updatePodman(ctx context.Context, id string, r container.Resources) error {
	words := map[string]map[string]any{"memory": {}, "cpu": {}}
	if r.Memory > 0 {
		words["memory"] = map[string]any{"limit": r.Memory, "swap": r.MemorySwap}
	}
	if r.CPUQuota > 0 {
		words["cpu"]["quota"], words["cpu"]["period"] = r.CPUQuota, r.CPUPeriod
	}
	if r.CPUShares > 0 {
		words["cpu"]["shares"] = r.CPUShares
	}
	if r.CpusetCpus != "" {
		words["cpu"]["cpus"] = r.CpusetCpus
	}
	body, _ := json.Marshal(words) // these values always encode
	status, text, err := a.libpod(ctx, http.MethodPost, "containers/"+id+"/update", body)
	switch {
	case err != nil:
		return err
	case status < 300:
		return nil
	case bytes.Contains(text, []byte("no such container")):
		return fmt.Errorf("%w: %s", errdefs.ErrNotFound, text)
	case status == http.StatusNotFound:
		return fmt.Errorf("%w: it needs Podman 4.3 or newer", errdefs.ErrNotImplemented)
	}
	return fmt.Errorf("%s: %s", http.StatusText(status), bytes.TrimSpace(text))
}

// libpod sends a request to Podman's own API and returns the status and body of the response.
func (a *api) libpod(ctx context.Context, method, path string, body []byte) (status int, text []byte, err error) {
	answer, err := a.libpodStream(ctx, method, path, body, nil)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	return answer.StatusCode, text, err
}

// libpodStream sends a request to Podman's own API; the caller closes the response's body.
func (a *api) libpodStream(
	ctx context.Context, method, path string, body []byte, header http.Header,
) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://podman/v4.0.0/libpod/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	maps.Copy(request.Header, header)
	dial := a.client().Dialer()
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dial(ctx)
		}}
	return transport.RoundTrip(request)
}
