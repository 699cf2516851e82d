package link

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/eclipse/paho.mqtt.golang/packets"
)

// wait starts a paho operation and waits for its token, a timeout, the context, or the end of the
// connection. paho accepts operations on a connection that has just ended and never completes them,
// or blocks for as long as a write may take.
func wait(ctx context.Context, lost <-chan error, most time.Duration, ask func() paho.Token) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	asked := make(chan paho.Token, 1)
	go func() { asked <- ask() }()
	var t paho.Token
	var answered <-chan struct{}
	for {
		select {
		case t = <-asked:
			answered = t.Done()
		case <-answered:
			return t.Error()
		case err := <-lost:
			return fmt.Errorf("connection lost: %w", err)
		case <-timer.C:
			return fmt.Errorf("no answer from the hub within %s", most)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// explain adds the cause or the next step to paho's errors.
func explain(err error) error {
	switch {
	case errors.Is(err, packets.ErrorRefusedNotAuthorised), errors.Is(err, packets.ErrorRefusedBadUsernameOrPassword):
		return errors.New("the hub refuses this device: another machine uses this node name, or the certificate " +
			"was revoked; see the hub's log")
	case errors.Is(err, packets.ErrorRefusedIDRejected):
		return errors.New("the hub refuses this device's client id: the node name is not the certificate's")
	case errors.Is(err, packets.ErrorRefusedServerUnavailable):
		return errors.New("the hub is busy with this node's earlier connection")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "network Error : "))
}

// noStore is a paho store without content, because the session builds unacknowledged messages
// again.
type noStore struct{}

func (noStore) Open()                             {}
func (noStore) Put(string, packets.ControlPacket) {}
func (noStore) Get(string) packets.ControlPacket  { return nil }
func (noStore) All() []string                     { return nil }
func (noStore) Del(string)                        {}
func (noStore) Close()                            {}
func (noStore) Reset()                            {}
