package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

func endless(ctx context.Context, a *harness.Hub) (string, error) {
	for i, q := range []string{"1e999999999", "-1e999999999", "1e-999999999", "9e2147483647", "1e-2147483648",
		strings.Repeat("9", 4000)} {
		d, err := a.NewDevice(ctx, fmt.Sprintf("evil-%d", i), fmt.Sprintf("%016x", 0xe0+i))
		if err != nil {
			return "", err
		}
		l, err := d.Connect(ctx, d.ClientID())
		if err != nil {
			return "", err
		}
		hostile := map[string]any{"cpu": q, "memory": q, "pods": q, "example.com/x": q}
		for _, inner := range []map[string]any{{"capacity": hostile}, {"allocatable": hostile},
			{"capacity": hostile, "allocatable": hostile}, nil} {
			if err := l.Publish("status", d.Good(inner, map[string]any{"hardware": map[string]any{"memory": q}})); err != nil {
				break // the hub may also close the connection
			}
		}
		pods, _ := json.Marshal(map[string]any{"boot": d.Boot, "seq": 1, "generation": 0, "pods": []any{map[string]any{
			"uid": "u", "namespace": "default", "name": "p",
			"status": map[string]any{"containerStatuses": []any{map[string]any{"name": "c", "allocatedResources": hostile,
				"resources": map[string]any{"requests": hostile}}}},
		}}})
		_ = l.Publish("pods", pods)
		_ = l.Publish("status", d.Good(nil, nil))
		_ = l.Ping(10 * time.Second)
		_ = l.Close()
		if err := a.Answers(ctx, 2*time.Second); err != nil {
			return "", fmt.Errorf("after %.20s: %w", q, err)
		}
	}
	a.Kill()
	if err := a.Start(ctx); err != nil {
		return "", fmt.Errorf("the hub does not restart: %w", err)
	}
	if _, err := a.Get(ctx, "/api/v1/nodes"); err != nil {
		return "", err
	}
	return "refused, and back after kill -9", nil
}

// damaged sends truncated and corrupted messages. Every parser must find the end of such a message.
// One parser did not, and the hub stopped.
func damaged(ctx context.Context, a *harness.Hub) (string, error) {
	d, err := a.NewDevice(ctx, "evil", "00000000000000ee")
	if err != nil {
		return "", err
	}
	whole := map[string][]byte{"status": d.Good(nil, nil),
		"pods":  fmt.Appendf(nil, `{"boot":%q,"seq":1,"generation":0,"pods":[{"uid":"u","namespace":"default","name":"p","status":{"phase":"Running","containerStatuses":[{"name":"c","ready":true}]}}]}`, d.Boot),
		"lease": fmt.Appendf(nil, `{"boot":%q,"seq":1}`, d.Boot),
		"event": []byte(`{"reason":"A","message":"b","type":"Normal"}`), "presence": []byte(`{"online":true,"boot":"b"}`),
		"reply/1": []byte(`{"code":200}`)}
	var l *harness.Link
	defer func() {
		if l != nil {
			_ = l.Close()
		}
	}()
	sent, acked, links := 0, 0, 0
	for _, channel := range slices.Sorted(maps.Keys(whole)) {
		text := append([]byte(`{"x":["\u0041",1e00],`), whole[channel][1:]...) // such text makes the hub parse the message in full
		messages := [][]byte{[]byte(`["A"0e00`), []byte(`{"a":1`), []byte(`{"conditions":[{"type"`), {0x1f, 0x8b}}
		for i := range 100 {
			at := i * len(text) / 100
			wrong := slices.Clone(text)
			wrong[at] = "\x00\"[{:,\xff0"[i%8]
			messages = append(messages, text[:at], wrong)
		}
		for _, n := range messages {
			if l == nil || !l.Open() {
				if links++; links > 40 {
					break // the hub may close every connection
				}
				if l, err = d.Connect(ctx, d.ClientID()); err != nil {
					l = nil
					continue
				}
			}
			if l.Publish(channel, n) == nil {
				sent++
			}
		}
		if l != nil && l.Ping(time.Minute) == nil { // the hub has read all messages before the ping
			acked++
		}
		if err := a.Answers(ctx, 2*time.Second); err != nil {
			return "", fmt.Errorf("after damaged messages on %s: %w", channel, err)
		}
	}
	seen := fmt.Sprintf("%d sent over %d connections, %d of %d kinds acknowledged", sent, links, acked, len(whole))
	if sent == 0 {
		return seen, errors.New("the attack's own device cannot send")
	}
	return seen, nil
}
