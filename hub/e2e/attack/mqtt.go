package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"flotilla.dev/hub/e2e/harness"
)

// mqttAttacks are floods of MQTT packets that carry no valid message. The hub must not spend more
// on them than on the messages that a device may send.
func mqttAttacks() []attack {
	var subscribe, unsubscribe, own []byte
	for i := range 12_000 {
		filter := harness.Text(nil, fmt.Sprintf("a/%d/+/#", i))
		subscribe, unsubscribe = append(append(subscribe, filter...), 1), append(unsubscribe, filter...)
	}
	for range 4_000 {
		own = append(harness.Text(own, "fleet/v1/nodes/evil/request/+"), 0)
	}
	return []attack{
		{name: "pings", slow: true, by: "device", does: "PINGREQ as fast as possible, for 20 s",
			run: packetFlood(bytes.Repeat([]byte{0xc0, 0}, 8000))},
		{name: "subscriptions", slow: true, by: "device", does: "SUBSCRIBE to 12,000 filters in one packet, repeatedly",
			run: packetFlood(harness.Packet(0x82, append([]byte{0, 1}, subscribe...)))},
		{name: "own-subscriptions", slow: true, by: "device",
			does: "SUBSCRIBE to its own filter 4,000 times in one packet, repeatedly",
			run:  packetFlood(harness.Packet(0x82, append([]byte{0, 1}, own...)))},
		{name: "small-subscriptions", slow: true, by: "device", does: "SUBSCRIBE to one forbidden filter as fast as possible",
			run: packetFlood(bytes.Repeat(harness.Packet(0x82, append(harness.Text([]byte{0, 1}, "#"), 0)), 1000))},
		{name: "unsubscriptions", slow: true, by: "device", does: "UNSUBSCRIBE from 12,000 filters in one packet, repeatedly",
			run: packetFlood(harness.Packet(0xa2, append([]byte{0, 1}, unsubscribe...)))},
		{name: "acknowledgements", slow: true, by: "device",
			does: "PUBACK, PUBREC, PUBREL and PUBCOMP of messages that were never sent",
			run:  packetFlood(bytes.Repeat([]byte{0x40, 2, 0, 9, 0x50, 2, 0, 9, 0x62, 2, 0, 9, 0x70, 2, 0, 9}, 1000))},
		{name: "exactly-once", slow: true, by: "device",
			does: "PUBLISH at QoS 2, and DUP, without acknowledgements",
			run: packetFlood(bytes.Repeat(harness.Packet(0x3c,
				append(harness.Text(nil, "fleet/v1/nodes/evil/status"), 0, 7, '{', '}')), 100))},
		{name: "no-topic", slow: true, by: "device", does: "PUBLISH without a topic, and truncated packets",
			run: packetFlood(append(bytes.Repeat(harness.Packet(0x30, []byte{0, 0, 'x'}), 1000), 0x30, 1, 0))},
	}
}

// packetFlood repeats packets for 20 s, and reconnects when it is disconnected. It fails if the hub
// uses more than a quarter of a processor core.
func packetFlood(what []byte) func(context.Context, *harness.Hub) (string, error) {
	const long = 20 * time.Second
	return func(ctx context.Context, a *harness.Hub) (string, error) {
		d, err := a.NewDevice(ctx, "evil", "00000000000000ee")
		if err != nil {
			return "", err
		}
		l, err := d.Online(ctx)
		if err != nil {
			return "", err
		}
		before, sent, cut := a.CPU(), 0, 0
		for end := time.Now().Add(long); time.Now().Before(end) && ctx.Err() == nil; {
			if err := l.Send(what); err == nil {
				sent += len(what)
				continue
			}
			cut++
			_ = l.Close()
			for l = nil; l == nil && time.Now().Before(end); harness.Pause(ctx, time.Second) {
				l, _ = d.Connect(ctx, d.ClientID())
			}
			if l == nil {
				break
			}
		}
		spent := a.CPU() - before
		if l != nil {
			_ = l.Close()
		}
		seen := fmt.Sprintf("%d KiB sent, disconnected %d times, %s of CPU in %s", sent>>10, cut, spent, long)
		if spent > long/4 {
			return seen, errors.New("the hub used more than a quarter of a processor core")
		}
		return seen, nil
	}
}
