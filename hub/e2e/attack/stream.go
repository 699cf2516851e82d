package main

import (
	"bytes"
	"compress/zlib"
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/e2e/harness"
	"flotilla.dev/shared/wire"
)

// playing starts a device that reports an operator's pod as running and answers no requests.
func playing(ctx context.Context, a *harness.Hub, operator *http.Client) (*harness.Link, error) {
	d, err := a.NewDevice(ctx, "deaf", "00000000000000de")
	if err != nil {
		return nil, err
	}
	l, err := d.Online(ctx)
	if err != nil {
		return nil, err
	}
	body := strings.Replace(pod("quiet", nil), `"spec":{`, `"spec":{"nodeName":"deaf",`, 1)
	code, answer, err := a.Call(ctx, operator, http.MethodPost, "/api/v1/namespaces/default/pods", "application/json",
		body)
	var p corev1.Pod
	if err == nil && code/100 == 2 {
		err = json.Unmarshal([]byte(answer), &p)
	}
	if err != nil || code/100 != 2 {
		return nil, fmt.Errorf("create a pod: %d %.200s %w", code, answer, err)
	}
	running := corev1.PodStatus{Phase: corev1.PodRunning,
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
	says, err := json.Marshal(wire.Pods{Boot: d.Boot, Seq: 1, Generation: 1 << 40,
		Pods: []wire.PodStatus{{UID: p.UID, Namespace: p.Namespace, Name: p.Name, Status: running}}})
	if err != nil {
		return nil, err
	}
	if err := l.PublishAcked(ctx, "pods", says); err != nil {
		return nil, err
	}
	return l, harness.Until(ctx, 10*time.Second, "the pod runs", func() (bool, error) {
		body, err := a.Get(ctx, "/api/v1/namespaces/default/pods/quiet")
		return strings.Contains(body, `"phase":"Running"`), err
	})
}

// spdy opens a stream to a pod.
func spdy(ctx context.Context, a *harness.Hub, who *http.Client, path, protocol string) (net.Conn, error) {
	return upgrade(ctx, a, who, fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: "+
		"SPDY/3.1\r\nX-Stream-Protocol-Version: %s\r\nContent-Length: 0\r\n\r\n", path, a.HTTPS, protocol))
}

// upgrade opens a connection and requests an upgrade to another protocol.
func upgrade(ctx context.Context, a *harness.Hub, who *http.Client, request string) (net.Conn, error) {
	cfg := who.Transport.(*http.Transport).TLSClientConfig.Clone()
	cfg.NextProtos = []string{"http/1.1"}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", a.HTTPS)
	if err != nil {
		return nil, err
	}
	if cfg.ServerName == "" {
		cfg.ServerName, _, _ = net.SplitHostPort(a.HTTPS)
	}
	conn := tls.Client(inTurns{raw}, cfg)
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	_, err = io.WriteString(conn, request)
	var head []byte
	for b := make([]byte, 1); err == nil && !strings.HasSuffix(string(head), "\r\n\r\n"); head = append(head, b[0]) {
		_, err = conn.Read(b)
	}
	_ = conn.SetReadDeadline(time.Time{})
	if line, _, _ := strings.Cut(string(head), "\r\n"); err == nil && !strings.Contains(line, " 101 ") {
		err = errors.New(line)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// inTurns is an attacker's connection that writes endlessly, but lets the good device in this
// process run. That device should wait only for the hub.
type inTurns struct{ net.Conn }

func (c inTurns) Write(b []byte) (int, error) {
	runtime.Gosched()
	return c.Conn.Write(b)
}

// frames encodes frames of SPDY/3.1.
type frames struct {
	net.Conn
	block  bytes.Buffer
	packer *zlib.Writer // compresses all headers of a connection
}

// open opens a stream with headers: names and values in turn.
func (f *frames) open(stream int, headers ...string) error {
	if f.packer == nil {
		f.packer = zlib.NewWriter(&f.block)
	}
	plain := binary.BigEndian.AppendUint32(nil, uint32(len(headers)/2))
	for _, h := range headers {
		plain = append(binary.BigEndian.AppendUint32(plain, uint32(len(h))), h...)
	}
	if _, err := f.packer.Write(plain); err != nil {
		return err
	}
	if err := f.packer.Flush(); err != nil {
		return err
	}
	payload := append(binary.BigEndian.AppendUint32(nil, uint32(stream)), 0, 0, 0, 0, 0, 0)
	payload = append(payload, f.block.Bytes()...)
	f.block.Reset()
	return f.data(0x8003<<16|1, payload) // version and type of a control frame
}

func (f *frames) data(stream int, b []byte) error {
	head := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(stream)), uint32(len(b)))
	_, err := f.Write(append(head, b...))
	return err
}

// unreadStreams opens as many shells and ports as allowed. It sends data that the pod does not
// read, or does not read the responses.
func unreadStreams(ctx context.Context, a *harness.Hub) (string, error) {
	operator, err := a.As(ctx, "operator", "ola")
	if err != nil {
		return "", err
	}
	l, err := playing(ctx, a, operator)
	if err != nil {
		return "", err
	}
	defer l.Close()
	const pod = "/api/v1/namespaces/default/pods/quiet"
	var in, sent atomic.Int64
	harness.Each(ctx, 160, 160, func(i int) {
		path, protocol, kinds := pod+"/exec?command=sh&stdin=true&stdout=true", "v4.channel.k8s.io",
			[]string{"error", "stdout", "stdin"}
		if i%2 == 1 {
			path, protocol, kinds = pod+"/portforward", "portforward.k8s.io",
				[]string{"error", "data", "error", "data", "error", "data", "error", "data"}
		}
		conn, err := spdy(ctx, a, operator, path, protocol)
		if err != nil {
			return
		}
		defer conn.Close()
		in.Add(1)
		f := &frames{Conn: conn}
		if i%4 > 1 { // the attacker reads the responses on half of the connections only
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
		for n, kind := range kinds {
			if f.open(2*n+1, "streamtype", kind, "port", fmt.Sprint(80+n/2), "requestid", fmt.Sprint(n/2)) != nil {
				return
			}
		}
		harness.Pause(ctx, 3*time.Second)
		_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
		for n := 0; n < 64; n++ {
			if f.data(2*(n%len(kinds))+1, make([]byte, 1<<20)) != nil {
				break
			}
			sent.Add(1)
		}
		harness.Pause(ctx, 10*time.Second)
	})
	seen := fmt.Sprintf("%d streams opened, %d MiB sent", in.Load(), sent.Load())
	if in.Load() < 100 {
		return seen, errors.New("the attack's own streams do not open")
	}
	return seen, nil
}

// unreadSockets is unreadStreams over WebSockets, which kubectl uses since 1.31.
func unreadSockets(ctx context.Context, a *harness.Hub) (string, error) {
	operator, err := a.As(ctx, "operator", "ola")
	if err != nil {
		return "", err
	}
	l, err := playing(ctx, a, operator)
	if err != nil {
		return "", err
	}
	defer l.Close()
	const pod = "/api/v1/namespaces/default/pods/quiet"
	var in, sent atomic.Int64
	harness.Each(ctx, 160, 160, func(i int) {
		path, protocol, opcode := pod+"/exec?command=sh&stdin=true&stdout=true", "v5.channel.k8s.io", byte(2)
		if i%2 == 1 {
			path, protocol = pod+"/portforward?ports=80", "SPDY/3.1+portforward.k8s.io"
		}
		conn, err := socket(ctx, a, operator, path, protocol)
		if err != nil {
			return
		}
		defer conn.Close()
		in.Add(1)
		if i%4 > 1 { // the attacker reads the responses on half of the sockets only
			go func() { _, _ = io.Copy(io.Discard, conn) }()
		}
		if i%8 > 3 { // pings: each response is as long as its ping
			opcode = 9
		}
		size := map[byte]int{2: 1 << 20, 9: 125}[opcode]
		harness.Pause(ctx, 3*time.Second)
		_ = conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
		message := frame(opcode, make([]byte, size))
		switch {
		case opcode == 9:
			message = bytes.Repeat(message, 8000)
		case i%8 == 3: // many SPDY pings in one message; each needs a response
			message = frame(opcode, bytes.Repeat([]byte{0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1}, size/12))
		}
		for range 64 {
			if _, err := conn.Write(message); err != nil {
				break
			}
			sent.Add(int64(len(message)))
		}
		harness.Pause(ctx, 10*time.Second)
	})
	seen := fmt.Sprintf("%d sockets opened, %d MiB sent", in.Load(), sent.Load()>>20)
	if in.Load() < 100 {
		return seen, errors.New("the attack's own sockets do not open")
	}
	return seen, nil
}

// socket opens a WebSocket to a pod.
func socket(ctx context.Context, a *harness.Hub, who *http.Client, path, protocol string) (net.Conn, error) {
	return upgrade(ctx, a, who, fmt.Sprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: "+
		"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "+
		"AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: %s\r\n\r\n", path, a.HTTPS, protocol))
}

// frame encodes a whole message of a WebSocket client, with a mask of zeros.
func frame(opcode byte, b []byte) []byte {
	head := []byte{0x80 | opcode, 0x80 | byte(len(b))}
	if len(b) > 125 {
		head = binary.BigEndian.AppendUint64([]byte{0x80 | opcode, 0x80 | 127}, uint64(len(b)))
	}
	return append(append(head, 0, 0, 0, 0), b...)
}
