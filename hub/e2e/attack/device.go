package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"flotilla.dev/hub/e2e/harness"
	"flotilla.dev/shared/wire"
)

// deviceAttacks use one device or its certificate.
func deviceAttacks() []attack {
	return []attack{
		{name: "endless-quantities", by: "device", does: "capacities, pod statuses and registrations with 1e999999999 " +
			"and similar values, then more messages, then a restart", run: endless},
		{name: "damaged-messages", slow: true, by: "device", does: "every kind of message truncated or with a wrong byte, at " +
			"200 places each", run: damaged},
		{name: "changing-hardware", slow: true, by: "device", does: "240 KB of hardware that changes with each status, " +
			"for a minute, as fast as allowed", run: changing(func(i int) (map[string]any, map[string]any) {
			return nil, map[string]any{"hardware": map[string]any{"n": i, "x": noise(i, 240<<10)}}
		})},
		{name: "changing-images", slow: true, by: "device", does: "a list of images that changes with each status, as fast as allowed",
			run: changing(func(i int) (map[string]any, map[string]any) {
				images := make([]map[string]any, 1000)
				for k := range images {
					images[k] = map[string]any{"names": []string{noise(i*1000+k, 200)}, "sizeBytes": k}
				}
				return map[string]any{"images": images}, nil
			})},
		{name: "changing-conditions", slow: true, by: "device", does: "own conditions that change with each status, as fast as allowed",
			run: changing(func(i int) (map[string]any, map[string]any) {
				conditions := []map[string]any{{"type": "Ready", "status": "True"}}
				for k := range 60 {
					conditions = append(conditions,
						map[string]any{"type": fmt.Sprintf("C%d", k), "status": "True", "reason": "R", "message": noise(i*1000+k, 3000)})
				}
				return map[string]any{"conditions": conditions}, nil
			})},
		{name: "events", slow: true, by: "device", does: "3,000 events that are all different, beside one of another node",
			run: events},
		{name: "replaced", by: "device", does: "the stolen device of a replaced node keeps its session, and reconnects",
			run: replaced},
		{name: "foreign-identity", by: "device", does: "address Hostname, labels, taints and capacity of another node",
			run: foreign},
		{name: "bare-client-id", by: "device", does: "a second connection without a machine takes over the session",
			run: bare},
		{name: "second-machine", by: "device", does: "a clone with another machine id, while the first one is connected",
			run: clone},
		{name: "foreign-topics", slow: true, by: "device", does: "messages of other nodes, wildcards and $SYS, at full speed",
			run: topics},
		{name: "site-token", by: "device", does: "any token of the site and a machine id take over an existing node",
			run: siteToken},
		{name: "development-listener", by: "local user", does: "the name of an enrolled node on the development listener",
			run: devListener},
		{name: "reconnects", slow: true, by: "device", does: "eight clients connect and disconnect, with a new boot each time",
			run: reconnects},
		{name: "renewals", by: "device", does: "certificates renewed as fast as they are issued", run: renewals},
	}
}

// noise returns text that compresses badly. Equal seeds return equal text.
func noise(seed, size int) string {
	b := make([]byte, size)
	x := uint64(seed)*2654435761 + 88172645463325252
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = 'a' + byte(x%26)
	}
	return string(b)
}

// changing sends a different status each time for a minute.
func changing(what func(i int) (inner, fields map[string]any)) func(context.Context, *harness.Hub) (string, error) {
	return func(ctx context.Context, a *harness.Hub) (string, error) {
		d, err := a.NewDevice(ctx, "evil", "00000000000000ee")
		if err != nil {
			return "", err
		}
		l, err := d.Online(ctx)
		if err != nil {
			return "", err
		}
		defer l.Close()
		wrote, end, sent := a.Wrote(), time.Now().Add(time.Minute), 0
		for ; time.Now().Before(end) && sent < 20_000; sent++ {
			inner, fields := what(sent)
			payload := d.Good(inner, fields)
			if len(payload) > wire.MaxFromDevice {
				return "", fmt.Errorf("the attack's own payload is too large: %d", len(payload))
			}
			if !l.Open() {
				if l, err = d.Connect(ctx, d.ClientID()); err != nil {
					harness.Pause(ctx, time.Second)
					if l, err = d.Connect(ctx, d.ClientID()); err != nil {
						return "", fmt.Errorf("the device can no longer connect: %w", err)
					}
				}
			}
			_ = l.Publish("status", payload)
		}
		perMinute := a.Wrote() - wrote
		seen := fmt.Sprintf("%d sent, %d MiB written in a minute", sent, perMinute>>20)
		if perMinute > 64<<20 {
			return seen, errors.New("one device writes too much to the disk")
		}
		return seen, nil
	}
}

func events(ctx context.Context, a *harness.Hub) (string, error) {
	quiet, err := a.NewDevice(ctx, "quiet", "00000000000000c1")
	if err != nil {
		return "", err
	}
	q, err := quiet.Online(ctx)
	if err != nil {
		return "", err
	}
	defer q.Close()
	event := func(d *harness.Device, i int) []byte {
		e, _ := json.Marshal(wire.Event{Boot: d.Boot, Time: time.Now(), Type: "Warning", Reason: "Worn",
			Message: noise(i, 3000)})
		return e
	}
	if err := q.PublishAcked(ctx, "event", event(quiet, 1)); err != nil {
		return "", err
	}
	about := func() (n int, err error) {
		body, err := a.Get(ctx, "/api/v1/events?fieldSelector=involvedObject.name=quiet")
		var list corev1.EventList
		if err == nil {
			err = json.Unmarshal([]byte(body), &list)
		}
		return len(list.Items), err
	}
	before, err := about()
	if err != nil || before == 0 {
		return "", fmt.Errorf("the quiet node has %d events: %w", before, err)
	}
	evil, err := a.NewDevice(ctx, "evil", "00000000000000ee")
	if err != nil {
		return "", err
	}
	l, err := evil.Online(ctx)
	if err != nil {
		return "", err
	}
	defer l.Close()
	wrote := a.Wrote()
	for i := range 3000 {
		if l.Publish("event", event(evil, i+2)) != nil {
			break
		}
	}
	_ = l.Ping(60 * time.Second)
	after, err := about()
	seen := fmt.Sprintf("%d of %d events of the quiet node left, %d MiB written", after, before, (a.Wrote()-wrote)>>20)
	switch {
	case err != nil:
		return seen, err
	case after < before:
		return seen, errors.New("one device's events displace another's")
	case a.Wrote()-wrote > 64<<20:
		return seen, errors.New("one device's events write too much to the disk")
	}
	return seen, nil
}

func replaced(ctx context.Context, a *harness.Hub) (string, error) {
	stolen, err := a.NewDevice(ctx, "pi-1", "00000000000000d1")
	if err != nil {
		return "", err
	}
	l, err := stolen.Online(ctx)
	if err != nil {
		return "", err
	}
	defer l.Close()
	token, err := a.Token(ctx, "--site", "oslo", "--node", "pi-1")
	if err != nil {
		return "", err
	}
	fresh, err := a.Join(ctx, token, "pi-1", "00000000000000d2")
	if err != nil {
		return "", err
	}
	start := time.Now()
	if err := harness.Until(ctx, 5*time.Second, "the stolen device's session ends", func() (bool, error) {
		return !l.Open(), nil
	}); err != nil {
		return "", err
	}
	cut := time.Since(start)
	if err := outside(ctx, stolen); err != nil {
		return "", err
	}
	n, err := fresh.Online(ctx)
	if err != nil {
		return "", fmt.Errorf("its replacement is refused: %w", err)
	}
	defer n.Close()
	if err := outside(ctx, stolen); err != nil {
		return "", fmt.Errorf("stolen device beside its replacement: %w", err)
	}
	if err := n.Ping(2 * time.Second); err != nil {
		return "", fmt.Errorf("its replacement is disconnected: %w", err)
	}
	return fmt.Sprintf("cut %s after the replacement had joined", cut.Round(time.Millisecond)), nil
}

// outside returns nil if a replaced device receives only its dismissal notice and the hub ignores
// its messages.
func outside(ctx context.Context, d *harness.Device) error {
	l, err := d.Connect(ctx, d.ClientID())
	if err != nil {
		return nil
	}
	defer l.Close()
	for _, f := range wire.Filters(wire.DefaultPrefix, d.ID.Node) {
		_ = l.Subscribe(f)
	}
	_ = l.Publish("status", d.Good(nil, nil))
	_ = l.Send(harness.Packet(0x30, append(harness.Text(nil, l.Prefix+"lease"), d.Renewal()...)))
	if err := harness.Until(ctx, 15*time.Second, "the stolen device is disconnected", func() (bool, error) {
		return !l.Open(), nil
	}); err != nil {
		return err
	}
	for {
		select {
		case p := <-l.Packets:
			var desired wire.Desired
			if json.Unmarshal(p.Payload, &desired) != nil || desired.Dismissed == nil ||
				len(desired.Pods)+len(desired.Secrets) > 0 {
				return fmt.Errorf("the stolen device receives %.200q", p.Payload)
			}
		default:
			return nil
		}
	}
}

func foreign(ctx context.Context, a *harness.Hub) (string, error) {
	d, err := a.NewDevice(ctx, "evil", "00000000000000ee")
	if err != nil {
		return "", err
	}
	l, err := d.Connect(ctx, d.ClientID())
	if err != nil {
		return "", err
	}
	defer l.Close()
	huge := map[string]any{"cpu": "1000000", "memory": "1Pi", "pods": "-5", "example.com/gpu": "99999999"}
	err = l.PublishAcked(ctx, "status", d.Good(
		map[string]any{"addresses": []map[string]any{{"type": "Hostname", "address": "witness"},
			{"type": "InternalIP", "address": "127.0.0.1"}}, "capacity": map[string]any{"cpu": "2", "memory": "1Gi",
			"pods": "10"}, "allocatable": huge},
		map[string]any{"registration": map[string]any{"labels": map[string]string{
			"kubernetes.io/hostname": "witness", "topology.kubernetes.io/zone": "bergen",
			"node-restriction.kubernetes.io/x": "y", "node-role.kubernetes.io/control-plane": "",
		}}}))
	if err != nil {
		return "", err
	}
	if err := harness.Until(ctx, 5*time.Second, "the node exists", func() (bool, error) {
		_, err := a.Node(ctx, "evil")
		return err == nil, err
	}); err != nil {
		return "the hub does not register the node", nil
	}
	n, err := a.Node(ctx, "evil")
	if err != nil {
		return "", err
	}
	for key, want := range map[string]string{"kubernetes.io/hostname": "evil", "topology.kubernetes.io/zone": "oslo",
		"node-restriction.kubernetes.io/x": "", "node-role.kubernetes.io/control-plane": ""} {
		if _, has := n.Labels[key]; n.Labels[key] != want || has && want == "" {
			return "", fmt.Errorf("the label %s is %q", key, n.Labels[key])
		}
	}
	for name, q := range n.Status.Allocatable {
		if c, has := n.Status.Capacity[name]; has && q.Cmp(c) > 0 || q.Sign() < 0 {
			return "", fmt.Errorf("allocatable %s is %s of %s", name, q.String(), c.String())
		}
	}
	return "its own name, its own site, no more than it has", nil
}

func bare(ctx context.Context, a *harness.Hub) (string, error) {
	return second(ctx, a, "pi-1")
}

func clone(ctx context.Context, a *harness.Hub) (string, error) {
	return second(ctx, a, "pi-1:00000000000000d9")
}

// second connects with the same certificate and another client ID. The first connection must stay,
// and the administrator must see an event.
func second(ctx context.Context, a *harness.Hub, clientID string) (string, error) {
	d, err := a.NewDevice(ctx, "pi-1", "00000000000000d1")
	if err != nil {
		return "", err
	}
	l, err := d.Online(ctx)
	if err != nil {
		return "", err
	}
	defer l.Close()
	for range 5 {
		if other, err := d.Connect(ctx, clientID); err == nil {
			_ = other.Ping(time.Second)
			_ = other.Close()
		}
		if err := l.Ping(2 * time.Second); err != nil {
			return "", fmt.Errorf("the first connection is disconnected: %w", err)
		}
	}
	n, err := a.Node(ctx, "pi-1")
	if err != nil {
		return "", err
	}
	for _, c := range n.Status.Conditions {
		if c.Type == "IdentityConflict" && c.Status == corev1.ConditionTrue {
			return "refused five times, " + string(c.Type), nil
		}
	}
	return "", errors.New("without an event IdentityConflict")
}

func topics(ctx context.Context, a *harness.Hub) (string, error) {
	d, err := a.NewDevice(ctx, "evil", "00000000000000ee")
	if err != nil {
		return "", err
	}
	l, err := d.Online(ctx)
	if err != nil {
		return "", err
	}
	defer l.Close()
	for _, filter := range []string{"#", "+/#", "$SYS/#", "$share/g/#", "fleet/v1/nodes/+/desired",
		"fleet/v1/nodes/witness/desired", "fleet/v1/nodes/witness/request/+"} {
		_ = l.Subscribe(filter)
	}
	stale, _ := json.Marshal(wire.Presence{Boot: "boot-00000000000000aa", State: wire.PresenceShutdown})
	end, sent := time.Now().Add(20*time.Second), 0
	for ; time.Now().Before(end) && l.Open() && sent < 200_000; sent++ {
		topic := []string{"fleet/v1/nodes/witness/presence", "fleet/v1/nodes/witness/status",
			"fleet/v1/nodes/witness/desired", "x"}[sent%4]
		if l.Send(harness.Packet(0x30, append(harness.Text(nil, topic), stale...))) != nil {
			break
		}
	}
	if !l.Open() {
		return "", errors.New("the client was disconnected: a real client would reconnect for ever")
	}
	for {
		select {
		case p := <-l.Packets:
			if !strings.HasPrefix(p.Topic, l.Prefix) {
				return "", fmt.Errorf("the client received %s", p.Topic)
			}
			continue
		default:
		}
		return fmt.Sprintf("%d messages, none received", sent), nil
	}
}

func siteToken(ctx context.Context, a *harness.Hub) (string, error) {
	d, err := a.NewDevice(ctx, "pi-1", "00000000000000d1")
	if err != nil {
		return "", err
	}
	l, err := d.Online(ctx)
	if err != nil {
		return "", err
	}
	defer l.Close()
	token, err := a.Token(ctx, "--site", "oslo")
	if err != nil {
		return "", err
	}
	if _, err := a.Join(ctx, token, "pi-1", "00000000000000d1"); err == nil {
		return "", errors.New("a stranger who knows a machine id can join as its node")
	}
	return "refused", l.Ping(2 * time.Second)
}

func devListener(ctx context.Context, a *harness.Hub) (string, error) {
	d, err := a.NewDevice(ctx, "pi-1", "00000000000000d1")
	if err != nil {
		return "", err
	}
	l, err := d.Online(ctx)
	if err != nil {
		return "", err
	}
	for _, id := range []string{"pi-1:00000000000000d1", "pi-1", "pi-1:00000000000000d9"} {
		if other, err := a.Plain("pi-1", id); err == nil && other.Ping(time.Second) == nil {
			return "", fmt.Errorf("%s is accepted without a certificate", id)
		}
	}
	_ = l.Close()
	for _, id := range []string{"pi-1:00000000000000d1", "pi-1"} {
		if other, err := a.Plain("pi-1", id); err == nil && other.Ping(time.Second) == nil {
			return "", fmt.Errorf("%s is accepted without a certificate while the device is away", id)
		}
	}
	return "refused", nil
}

func renewals(ctx context.Context, a *harness.Hub) (string, error) {
	d, err := a.NewDevice(ctx, "evil", "00000000000000ee")
	if err != nil {
		return "", err
	}
	body, c, err := renewal2(d, a)
	if err != nil {
		return "", err
	}
	got, before, start := 0, a.CPU(), time.Now()
	for range 400 {
		code, _, err := a.Call(ctx, c, "POST", wire.PathRenew, "application/json", body)
		if err != nil {
			return "", err
		}
		if code == 200 {
			got++
		}
	}
	seen := fmt.Sprintf("%d of 400 in %s, %s of CPU", got, time.Since(start).Round(time.Millisecond), a.CPU()-before)
	if got > 20 {
		return seen, errors.New("one device has no limit of renewals")
	}
	return seen, nil
}
