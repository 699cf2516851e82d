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

// wait waits for a token, a time, or the context.
func wait(ctx context.Context, t paho.Token, most time.Duration) error {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-t.Done():
		return t.Error()
	case <-timer.C:
		return fmt.Errorf("no answer from the hub within %s", most)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// explain puts paho's reasons into words that say what to do.
func explain(err error) error {
	switch {
	case errors.Is(err, packets.ErrorRefusedNotAuthorised), errors.Is(err, packets.ErrorRefusedBadUsernameOrPassword):
		return errors.New("the hub refuses this device: another machine lives under this node name, or the certificate was revoked; the hub's log says which")
	case errors.Is(err, packets.ErrorRefusedIDRejected):
		return errors.New("the hub refuses this device's client id: the node name is not the certificate's")
	case errors.Is(err, packets.ErrorRefusedServerUnavailable):
		return errors.New("the hub is busy with this node's earlier connection")
	}
	return errors.New(strings.TrimPrefix(err.Error(), "network Error : "))
}

// forgetful is a paho store that keeps nothing: what was not acknowledged is made
// anew, not sent again.
type forgetful struct{}

func (forgetful) Open()                             {}
func (forgetful) Put(string, packets.ControlPacket) {}
func (forgetful) Get(string) packets.ControlPacket  { return nil }
func (forgetful) All() []string                     { return nil }
func (forgetful) Del(string)                        {}
func (forgetful) Close()                            {}
func (forgetful) Reset()                            {}
