package broker

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/eclipse/paho.mqtt.golang/packets"

	"flotilla.dev/shared/line"
	"flotilla.dev/shared/wire"
)

// Limits before CONNECT is accepted.
const (
	maxConnect   = 4 << 10  // bytes of the CONNECT
	maxHandshake = 32 << 10 // bytes on the wire, including TLS
)

// Organization is the O in the subject of a device's certificate.
const Organization = "flotilla:devices"

// CONNACK codes of MQTT 3.1.1.
const (
	badVersion    = 1
	badClientID   = 2
	unavailable   = 3
	notAuthorized = 5
)

// A refusal is the reason why a connection was refused.
type refusal struct {
	why  reason
	code byte   // code of the CONNACK; 0: send no CONNACK
	node string // if known
	err  error
}

func (r *refusal) Error() string { return r.err.Error() }

// readConnectFrom reads a connection up to its CONNECT and checks TLS, one packet of at most 4 KiB,
// version, identity, client ID, will, and Handler.Connect. The caller has read the first byte.
func (b *Broker) readConnectFrom(raw *line.Conn, first []byte, l listener) (*session, *refusal) {
	limited := &limitedConn{Conn: raw, seen: first, left: maxHandshake}
	peer := Peer{Addr: raw.RemoteAddr().String(), Dev: l.tls == nil}
	var stream net.Conn = limited
	var observer *Observer
	if l.tls != nil {
		secure := tls.Server(limited, l.tls)
		if err := secure.HandshakeContext(context.Background()); err != nil {
			return nil, &refusal{why: badTLS, err: fmt.Errorf("TLS handshake: %w", err)}
		}
		if observer = b.observer(secure.ConnectionState(), peer.Addr); observer != nil {
			// The client is neither a device nor an observer.
		} else if err := identify(secure.ConnectionState(), &peer); err != nil {
			return nil, &refusal{why: badIdentity, code: notAuthorized, err: err}
		}
		stream = secure
		if observer == nil {
			dropCertificates(secure.ConnectionState())
		}
	}
	seen, connect, ref := readConnect(stream)
	if ref != nil {
		ref.node = peer.Node
		return nil, ref
	}
	var s *session
	if observer != nil {
		s, ref = b.checkObserverConnect(connect, *observer)
	} else {
		s, ref = b.checkConnect(connect, peer)
	}
	if ref != nil {
		ref.node = s.peer.Node
		refuse(stream, connect.ProtocolVersion, ref.code)
		return nil, ref
	}
	limited.left = -1
	if l.tls == nil {
		stream = raw // frees the memory of TLS
	}
	idle := time.Duration(s.keepAlive) * time.Second * 3 / 2
	if idle == 0 {
		idle = observerSilence
	}
	s.conn = newConn(stream, raw, seen, idle)
	s.conn.stats = &b.stats
	if observer == nil {
		s.conn.observers = &b.observers
	}
	return s, nil
}

// observer returns the observer of a certificate; nil: the certificate is not an observer's.
func (b *Broker) observer(state tls.ConnectionState, addr string) *Observer {
	if b.cfg.Observers == nil || len(state.PeerCertificates) == 0 {
		return nil
	}
	leaf := state.PeerCertificates[0]
	if !slices.Equal(leaf.Subject.Organization, []string{ObserverOrganization}) || leaf.Subject.CommonName == "" {
		return nil
	}
	return &Observer{Name: strings.TrimPrefix(leaf.Subject.CommonName, ObserverPrefix), Addr: addr,
		Chain: state.PeerCertificates}
}

// dropCertificates frees the peer's certificates, which a connection would keep. The 8 kB are not
// needed after the peer is known.
func dropCertificates(state tls.ConnectionState) {
	clear(state.PeerCertificates)
	for _, chain := range state.VerifiedChains {
		clear(chain)
	}
}

// identify reads the identity from the client certificate.
func identify(state tls.ConnectionState, p *Peer) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("no client certificate")
	}
	cert := state.PeerCertificates[0]
	key := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	p.Key = hex.EncodeToString(key[:])
	if !slices.Equal(cert.Subject.Organization, []string{Organization}) {
		return fmt.Errorf("client certificate of %.100q is not a device's: its subject must have O=%s", cert.Subject.String(),
			Organization)
	}
	if err := wire.ValidNode(cert.Subject.CommonName); err != nil {
		return fmt.Errorf("client certificate: %w", err)
	}
	p.Node = cert.Subject.CommonName
	return nil
}

// readConnect reads one CONNECT packet, and returns the bytes after it.
func readConnect(r io.Reader) (seen []byte, pk *packets.ConnectPacket, ref *refusal) {
	buf := make([]byte, 0, 512)
	for {
		total, err := packetLength(buf)
		switch {
		case err != nil:
			return nil, nil, &refusal{why: noConnect, err: err}
		case total > maxConnect:
			return nil, nil, &refusal{why: connectTooLarge,
				err: fmt.Errorf("CONNECT has %d bytes, but at most %d are allowed", total, maxConnect)}
		case total > 0 && len(buf) >= total:
			pk, ref := decodeConnect(buf[:total])
			if len(buf) > total {
				seen = bytes.Clone(buf[total:])
			}
			return seen, pk, ref
		}
		if len(buf) == cap(buf) {
			buf = slices.Grow(buf, maxConnect-len(buf)+1)
		}
		n, err := r.Read(buf[len(buf):cap(buf)])
		if buf = buf[:len(buf)+n]; err != nil && n == 0 {
			return nil, nil, &refusal{why: silent, err: fmt.Errorf("no complete CONNECT received: %w", err)}
		}
	}
}

// packetLength returns the length of the packet at the start of buf; 0: more bytes are needed.
func packetLength(buf []byte) (int, error) {
	if len(buf) == 0 {
		return 0, nil
	}
	if buf[0] != packets.Connect<<4 {
		return 0, fmt.Errorf("the first byte is 0x%02x, but MQTT begins with CONNECT, 0x10", buf[0])
	}
	length := 0
	for i, c := range buf[1:] {
		if i == 4 {
			return 0, errors.New("the length of the first packet is malformed")
		}
		length |= int(c&0x7f) << (7 * i)
		if c < 0x80 {
			return 2 + i + length, nil
		}
	}
	return 0, nil
}

// decodeConnect decodes a CONNECT of MQTT 3.1.1. Of another version it decodes only the version.
func decodeConnect(packet []byte) (*packets.ConnectPacket, *refusal) {
	_, header := packetSize(packet)
	body := packet[header:]
	pk := &packets.ConnectPacket{FixedHeader: packets.FixedHeader{MessageType: packets.Connect,
		RemainingLength: len(body)}}
	if len(body) < 2 {
		return nil, &refusal{why: noConnect, err: errors.New("CONNECT has no protocol name")}
	}
	name := int(binary.BigEndian.Uint16(body))
	if len(body) < 2+name+1 {
		return nil, &refusal{why: noConnect, err: errors.New("CONNECT ends in its protocol name")}
	}
	pk.ProtocolName, pk.ProtocolVersion = string(body[2:2+name]), body[2+name]
	if pk.ProtocolVersion != 4 {
		return pk, nil // other versions differ from here on
	}
	if err := unpack(packet[0], body, pk); err != nil {
		return nil, &refusal{why: noConnect, err: err}
	}
	return pk, nil
}

// validate returns how a CONNECT violates the standard.
func validate(pk *packets.ConnectPacket) error {
	switch {
	case pk.Validate() != packets.Accepted:
		return errors.New(packets.ConnackReturnCodes[pk.Validate()])
	case pk.WillQos > 2, !pk.WillFlag && (pk.WillQos > 0 || pk.WillRetain):
		return errors.New("the will's flags contradict each other")
	}
	return nil
}

// checkConnect accepts or refuses a CONNECT. The returned session always names the peer.
func (b *Broker) checkConnect(pk *packets.ConnectPacket, peer Peer) (*session, *refusal) {
	s := &session{broker: b, peer: peer}
	if pk.ProtocolVersion != 4 {
		return s, &refusal{why: version, code: badVersion, err: fmt.Errorf(
			"MQTT protocol level is %d, but this broker speaks 3.1.1 (level 4)", pk.ProtocolVersion)}
	}
	if err := validate(pk); err != nil {
		return s, &refusal{why: noConnect, err: fmt.Errorf("CONNECT: %w", err)}
	}
	if peer.Dev {
		name := pk.Username
		if err := wire.ValidNode(name); err != nil {
			return s, &refusal{why: badIdentity, code: notAuthorized,
				err: fmt.Errorf("the user name is the node on this listener: %w", err)}
		}
		s.peer.Node = name
	}
	node, machine, err := wire.ParseClientID(pk.ClientIdentifier)
	if err == nil && node != s.peer.Node {
		err = fmt.Errorf("client id %.100q belongs to node %s", pk.ClientIdentifier, node)
	}
	if err != nil {
		return s, &refusal{why: clientID, code: badClientID, err: fmt.Errorf("node %s: %w", s.peer.Node, err)}
	}
	s.peer.Machine = machine
	s.lease = wire.Topic(b.cfg.Prefix, node, wire.ChannelLease)
	if pk.WillFlag {
		if s.will, err = checkWill(pk, wire.Topic(b.cfg.Prefix, node, wire.ChannelPresence)); err != nil {
			return s, &refusal{why: badWill, code: notAuthorized, err: err}
		}
		s.peer.Boot = s.will.Boot
	}
	var f *Dismissal
	if err := b.cfg.Handler.Connect(s.peer); errors.As(err, &f) {
		s.dismissal = f.Payload
	} else if err != nil {
		return s, &refusal{why: refusedByHub, code: notAuthorized, err: err}
	}
	s.keepAlive = min(max(pk.Keepalive, minKeepAlive), maxKeepAlive)
	if pk.Keepalive == 0 {
		s.keepAlive = maxKeepAlive
	}
	s.rate = newBucket(b.cfg.Limits.NodeRate)
	return s, nil
}

// checkWill allows only one will: the node's own presence, lost, not retained.
func checkWill(c *packets.ConnectPacket, own string) (*wire.Presence, error) {
	switch {
	case c.WillTopic != own:
		return nil, fmt.Errorf("the will's topic is %.100q, but it must be %s", c.WillTopic, own)
	case c.WillRetain:
		return nil, errors.New("the will must not be retained")
	}
	p, err := wire.ParsePresence(c.WillMessage)
	if err == nil && p.State != wire.PresenceLost {
		err = fmt.Errorf("the will's state is %s, but must be %s", p.State, wire.PresenceLost)
	}
	if err != nil {
		return nil, fmt.Errorf("the will's payload: %w", err)
	}
	return &p, nil
}

// refuse sends a CONNACK with a code, in the client's version of MQTT.
func refuse(w io.Writer, version, code byte) {
	switch {
	case code == 0:
	case version == 5:
		_, _ = w.Write([]byte{packets.Connack << 4, 3, 0, 0x84, 0})
	default:
		_, _ = w.Write([]byte{packets.Connack << 4, 2, 0, code})
	}
}

// A limitedConn returns the first byte, which was read before, and then limits the number of bytes
// until CONNECT is accepted.
type limitedConn struct {
	net.Conn
	seen []byte
	left int // bytes; negative: no limit
}

func (c *limitedConn) Read(p []byte) (n int, err error) {
	switch {
	case len(c.seen) > 0 && len(p) > 0:
		n = copy(p, c.seen)
		c.seen = c.seen[n:]
	case c.left == 0:
		return 0, fmt.Errorf("more than %d bytes before CONNECT was finished", maxHandshake)
	case c.left > 0:
		n, err = c.Conn.Read(p[:min(len(p), c.left)])
	default:
		return c.Conn.Read(p)
	}
	if c.left > 0 {
		c.left = max(0, c.left-n)
	}
	return n, err
}
