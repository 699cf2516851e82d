package link

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/wire"
)

// errNewBoot ends a session so that the link starts again with a new boot id, because another
// device has used the node's name in the meantime.
var errNewBoot = errors.New("the hub requests a new boot id: another device has used this node's name meanwhile")

// Boot returns the present boot id: Config.Boot, or a new one that the hub has requested.
func (l *Link) Boot() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.boot
}

// beginAnew gives the link a new boot id and message numbers, like those of a restarted agent. It
// is called between two sessions.
func (l *Link) beginAnew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boot = rand.Text()
	l.numbers.lease, l.numbers.status, l.numbers.pods, l.numbers.list = 0, 0, 0, 0
}

// dismissed records that the device's enrolment has ended.
func (l *Link) dismissed(d wire.Dismissed) {
	if l.cfg.Dismissed == nil {
		l.log.Error("ignoring that the hub has ended this device's enrolment", "node", l.cfg.Node,
			"by", d.By, "why", d.Reason)
		return
	}
	l.cfg.Dismissed(d)
	l.Leave()
}

// Leave makes Run end once the device has no pods and the hub has acknowledged that. If the hub
// cannot be reached, Run ends a minute after the last pod.
func (l *Link) Leave() {
	l.mu.Lock()
	l.gone = true
	l.mu.Unlock()
	signal(l.wake)
}

func (l *Link) isGone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// confirmFor is how long Run tries to report that the pods are gone. Without that report the hub
// assumes it after 40 s.
const confirmFor = time.Minute

// leave waits until the device has no pods, and reports that to the hub.
func (l *Link) leave(ctx context.Context) error {
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for len(l.cfg.Source.Pods().Pods) > 0 {
		select {
		case <-ctx.Done():
			return nil
		case <-l.wake:
		case <-look.C:
		}
	}
	for try, began := 0, time.Now(); time.Since(began) < confirmFor; try++ {
		err := l.connectOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			return ErrDismissed
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(l.backoff(try)):
		}
	}
	l.log.Warn("could not report that this device's pods are gone; the hub assumes it after a while", "node",
		l.cfg.Node)
	return ErrDismissed
}

// confirm sends the empty list of pods and waits for its acknowledgement.
func (s *session) confirm(ctx context.Context) error {
	s.sendPods()
	if s.pods.token == nil {
		return errors.New("cannot send the list of pods")
	}
	return wait(ctx, s.lost, ackTimeout, func() paho.Token { return s.pods.token })
}
