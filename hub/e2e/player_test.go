package e2e

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"flotilla.dev/shared/wire"
)

// Environment of a child process that plays devices: the address of a development listener, and the
// number of devices.
const (
	devicesOf    = "FLOTILLA_E2E_DEVICES"
	devicesCount = "FLOTILLA_E2E_COUNT"
)

const playerBoot = "01JD8Y3QK8Z6M5N4P3R2S1T0VW"

// playDevices connects the devices, sends their statuses and prints "ready". Then it sends as many
// leases as each line of standard input says, as fast as possible. It encodes MQTT itself, because
// a client library would need more processor time than the broker.
func playDevices(addr string) (code int) {
	if err := play(addr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func play(addr string) error {
	count, err := strconv.Atoi(os.Getenv(devicesCount))
	if err != nil {
		return err
	}
	conns, topics := make([]net.Conn, count), make([]string, count)
	for i := range conns {
		node := fmt.Sprintf("play-%04d", i)
		if conns[i], err = playerConnect(addr, node, fmt.Sprintf("%016x", i)); err != nil {
			return fmt.Errorf("connect %s: %w", node, err)
		}
		topics[i] = "fleet/v1/nodes/" + node + "/lease"
	}
	fmt.Println("ready")
	seq := uint64(0)
	send := func(i int) error {
		seq++
		payload := wire.AppendLease(nil, wire.Lease{Boot: playerBoot, Seq: seq, Status: 1, Pods: 0,
			Desired: 1 << 40, Time: time.Now()})
		_, err := conns[i].Write(publish(topics[i], payload, 0))
		return err
	}
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		n, err := strconv.Atoi(in.Text())
		if err != nil {
			return err
		}
		for i := range n {
			if err := send(i % count); err != nil {
				return err
			}
		}
	}
	return nil
}

// playerConnect connects one device and sends its status.
func playerConnect(addr, node, machine string) (net.Conn, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	body := text(nil, "MQTT")
	body = append(body, 4, 0x82, 0, 0) // flags: user name and clean session; no keep-alive
	body = text(text(body, node+":"+machine), node)
	if _, err := conn.Write(packet(0x10, body)); err != nil {
		return nil, err
	}
	answer := make([]byte, 4)
	if _, err := io.ReadFull(conn, answer); err != nil || answer[3] != 0 {
		return nil, fmt.Errorf("CONNACK %x: %w", answer, err)
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }() // drop acknowledgements
	status, err := json.Marshal(map[string]any{
		"boot": playerBoot, "seq": 1, "time": time.Now(), "machineID": machine, "agentVersion": "0",
		"registration": map[string]any{"labels": map[string]string{"topology.kubernetes.io/zone": "play"}},
		"status": map[string]any{
			"capacity": map[string]string{"cpu": "4", "memory": "4Gi", "pods": "110"}, "allocatable": map[string]string{"cpu": "4", "memory": "4Gi", "pods": "110"},
			"conditions": []map[string]any{{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "it plays", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)}},
		},
	})
	if err != nil {
		return nil, err
	}
	_, err = conn.Write(publish("fleet/v1/nodes/"+node+"/status", status, 1))
	return conn, err
}

func text(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(s))), s...)
}

func packet(head byte, body []byte) []byte {
	return append(binary.AppendUvarint([]byte{head}, uint64(len(body))), body...)
}

func publish(topic string, payload []byte, qos byte) []byte {
	body := text(nil, topic)
	if qos > 0 {
		body = append(body, 0, 1)
	}
	return packet(0x30|qos<<1, append(body, payload...))
}
