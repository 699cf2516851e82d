package line

import "net"

// Packet limits the payload of a packet, as Linux does after losses (tcp_base_mss). Tunnels and
// mobile networks often carry less than Ethernet's 1,460 bytes without reporting it. Then short
// messages arrive, but TLS handshakes and desired states do not.
const Packet = 1024

// Dialer makes connections whose packets are at most Packet in both directions.
func Dialer() *net.Dialer { return &net.Dialer{Control: packets} }

// Listener returns a configuration whose accepted connections have packets of at most Packet.
func Listener() *net.ListenConfig {
	l := &net.ListenConfig{Control: packets}
	l.SetMultipathTCP(false) // MPTCP has no limit of packet sizes
	return l
}
