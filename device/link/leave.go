package link

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"flotilla.dev/shared/wire"
)

// errNewBoot ends a session whose boot another one has followed.
var errNewBoot = errors.New("the hub asks for a new boot id: another device was this node in between")

// Boot is the boot id under which the device speaks now: its own, or one that the hub has asked
// for.
func (l *Link) Boot() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.boot
}

// beginAnew makes the link speak as an agent that has just started. It is called
// between two sessions.
func (l *Link) beginAnew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.boot = rand.Text()
	l.numbers.lease, l.numbers.status, l.numbers.pods, l.numbers.list = 0, 0, 0, 0
}

// dismissed notes that the device's enrolment has ended.
func (l *Link) dismissed(d wire.Dismissed) {
	if l.cfg.Dismissed == nil {
		l.log.Error("the hub says that this device's enrolment has ended, and nobody here acts on it", "node", l.cfg.Node,
			"by", d.By, "why", d.Reason)
		return
	}
	l.cfg.Dismissed(d)
	l.Leave()
}

// Leave makes Run end when the device holds no pods any more, and the hub has heard
// so or cannot be reached for a minute.
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

// confirmFor is how long it is tried to tell the hub that the pods are gone. It needs
// no longer: it takes them for gone after 40 s.
const confirmFor = time.Minute

// leave waits until the device holds no pods, tells the hub, and ends.
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
	l.log.Warn("the hub was not told that this device's pods are gone; it takes them for gone by itself", "node",
		l.cfg.Node)
	return ErrDismissed
}

// confirm sends the list of pods, which is empty, and waits until the hub has it.
func (s *session) confirm(ctx context.Context) error {
	s.sendPods()
	if s.pods.token == nil {
		return errors.New("the list of pods could not be sent")
	}
	return wait(ctx, s.lost, ackTimeout, func() paho.Token { return s.pods.token })
}
