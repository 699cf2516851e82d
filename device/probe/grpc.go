package probe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// The part of gRPC that a probe needs: one call over HTTP/2 without TLS. A message is five bytes
// (compression flag and length) and its fields; the status is in the trailer.
// https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
const (
	healthCheck   = "/grpc.health.v1.Health/Check"
	unimplemented = "12"
	notFound      = "5"
	serving       = 1 // value of HealthCheckResponse.ServingStatus
	maxHealth     = 1 << 10
)

// probeGRPC calls a container's health service. As in the kubelet, every status except SERVING is a
// failure.
func (a *Prober) probeGRPC(ctx context.Context, s Target, g *corev1.GRPCAction) error {
	host, dial, err := a.addressOf(s, "")
	if err != nil {
		return err
	}
	service := ""
	if g.Service != nil {
		service = *g.Service
	}
	body := binary.AppendUvarint([]byte{0x0a}, uint64(len(service))) // field 1, a string
	body = append(body, service...)
	if service == "" {
		body = nil
	}
	frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	at := url.URL{Scheme: "http", Host: net.JoinHostPort(host, strconv.Itoa(int(g.Port))), Path: healthCheck}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, at.String(), bytes.NewReader(frame))
	if err != nil {
		return &Error{err}
	}
	req.Header.Set("Content-Type", "application/grpc")
	req.Header.Set("Te", "trailers")
	req.Header.Set("User-Agent", "kube-probe/flotilla")
	transport := &http.Transport{DialContext: dial, DisableCompression: true, Protocols: new(http.Protocols),
		MaxResponseHeaderBytes: maxHeader,
		HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: maxHeader,
			MaxReceiveBufferPerStream: maxHeader}}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxHealth))
	if err != nil {
		return err
	}
	code, message := resp.Trailer.Get("Grpc-Status"), resp.Trailer.Get("Grpc-Message")
	if code == "" { // the response has no trailer
		code, message = resp.Header.Get("Grpc-Status"), resp.Header.Get("Grpc-Message")
	}
	switch {
	case resp.StatusCode != http.StatusOK || code == "":
		return fmt.Errorf("port %d is not a gRPC server: it returned HTTP status %d", g.Port, resp.StatusCode)
	case code == unimplemented:
		return errors.New("this server does not implement the grpc health protocol (grpc.health.v1.Health)")
	case code == notFound:
		return fmt.Errorf("service %q not found on the server", service)
	case code != "0":
		return fmt.Errorf("the health check ended with code %.10s: %.200q", code, message)
	}
	status, err := healthStatus(answer)
	if err == nil && status != serving {
		err = fmt.Errorf("service unhealthy (responded with %s)",
			[...]string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN"}[min(status, 3)])
	}
	return err
}

// healthStatus parses the status in a framed HealthCheckResponse. The status is field 1, and the
// value 0 is not encoded.
func healthStatus(b []byte) (uint64, error) {
	if len(b) < 5 || b[0] != 0 || uint64(binary.BigEndian.Uint32(b[1:])) != uint64(len(b)-5) {
		return 0, errors.New("the response is not a gRPC message")
	}
	if b = b[5:]; len(b) == 0 {
		return 0, nil
	}
	status, n := binary.Uvarint(b[1:])
	if b[0] != 0x08 || n <= 0 {
		return 0, errors.New("the response is not a HealthCheckResponse")
	}
	return status, nil
}
